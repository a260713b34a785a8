// What the parts of the addon share: handles, errors with a code, and the guard around every call into llama.cpp.
#pragma once
#define NAPI_VERSION 8
#include <llama.h>
#include <napi.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

namespace kvfold {

// An error a caller is meant to see: `code` as in src/core/errors.ts.
struct Failure : std::exception {
  std::string code, message;
  Failure(std::string code, std::string message) : code(std::move(code)), message(std::move(message)) {}
  const char *what() const noexcept override { return message.c_str(); }
};

struct ModelHandle {
  llama_model *model = nullptr;
  const llama_vocab *vocab = nullptr;
};

struct ContextHandle {
  ModelHandle *model = nullptr;
  llama_context *context = nullptr;
  std::atomic<bool> abort{false};
  // Tokens that entered the cache since the context was made.
  uint64_t submitted = 0;
  // Batch index -> whether its logits were asked for in the last decode.
  std::vector<int8_t> outputs;
};

struct SamplerHandle {
  const llama_vocab *vocab = nullptr;
  // Null without a grammar; masks candidates before `chain` sees them.
  llama_sampler *grammar = nullptr;
  llama_sampler *chain = nullptr;
  std::vector<llama_token_data> candidates;
};

// The last lines llama.cpp logged at warning level or above, newest last; empties the store.
std::string takeLog();

// Turns anything thrown by `body` into a JavaScript error whose message is "code\nsentence".
template <typename Body>
Napi::Value guarded(const Napi::CallbackInfo &info, Body body) {
  std::string code = "native/failed", message;
  try {
    return body();
  } catch (const Napi::Error &) {
    throw;
  } catch (const Failure &failure) {
    code = failure.code, message = failure.message;
  } catch (const std::bad_alloc &) {
    code = "memory/insufficient", message = "The system has no memory left for this call; close something or ask for less.";
  } catch (const std::exception &error) {
    message = std::string("llama.cpp failed: ") + error.what();
  } catch (...) {
    message = "llama.cpp failed without saying why.";
  }
  throw Napi::Error::New(info.Env(), code + "\n" + message);
}

// Runs `work` off the event loop; the promise resolves with what `finish` makes of it there.
class Task : public Napi::AsyncWorker {
 public:
  using Work = std::function<void()>;
  using Finish = std::function<Napi::Value(Napi::Env)>;
  static Napi::Promise run(Napi::Env env, Work work, Finish finish) {
    auto *task = new Task(env, std::move(work), std::move(finish));
    auto promise = task->deferred.Promise();
    task->Queue();
    return promise;
  }

 protected:
  void Execute() override {
    try {
      work();
    } catch (const Failure &failure) {
      SetError(failure.code + "\n" + failure.message);
    } catch (const std::bad_alloc &) {
      SetError("memory/insufficient\nThe system has no memory left for this call; close something or ask for less.");
    } catch (const std::exception &error) {
      SetError(std::string("native/failed\nllama.cpp failed: ") + error.what());
    } catch (...) {
      SetError("native/failed\nllama.cpp failed without saying why.");
    }
  }
  void OnOK() override { deferred.Resolve(finish(Env())); }
  void OnError(const Napi::Error &error) override { deferred.Reject(error.Value()); }

 private:
  Task(Napi::Env env, Work work, Finish finish)
      : Napi::AsyncWorker(env), deferred(Napi::Promise::Deferred::New(env)), work(std::move(work)), finish(std::move(finish)) {}
  Napi::Promise::Deferred deferred;
  Work work;
  Finish finish;
};

template <typename T>
T *handle(const Napi::Value &value) {
  return value.As<Napi::External<T>>().Data();
}

void exportModel(Napi::Env env, Napi::Object exports);
void exportContext(Napi::Env env, Napi::Object exports);
void exportSampler(Napi::Env env, Napi::Object exports);

}  // namespace kvfold
