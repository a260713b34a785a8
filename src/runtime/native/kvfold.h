// What the parts of the addon share: handles, errors with a code, llama.cpp's last words, and the guard around every call into it.
#pragma once
#define NAPI_VERSION 8
#include <llama.h>
#include <napi.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <vector>

namespace kvfold {

// An error a caller is meant to see: `code` as in src/runtime/core/errors.ts.
struct Failure : std::exception {
  std::string code, message;
  Failure(std::string code, std::string message) : code(std::move(code)), message(std::move(message)) {}
  const char *what() const noexcept override { return message.c_str(); }
};

// A vocabulary's texts.
struct Pieces {
  // By token, control tokens written out.
  std::vector<std::string> texts;
  // By token: whether it ends generation.
  std::vector<uint8_t> ends;
  // The tokens that write something, in the order of their texts.
  std::vector<llama_token> order;
  // By place in `order`: bytes that the text begins with as the one before it, and bytes behind those.
  std::vector<uint32_t> shared, own;
  // Those bytes behind, of all texts one after another.
  std::string tails;
  size_t longest = 0;
};

struct ModelHandle {
  llama_model *model = nullptr;
  const llama_vocab *vocab = nullptr;
  // Tasks that read the vocabulary on another thread share it; `free` waits for them.
  std::shared_mutex reading;
  ~ModelHandle() { free(); }
  void free();
  // The texts of all tokens. Made at the first call, which takes a tenth of a second for a large vocabulary.
  const Pieces &pieces();

 private:
  std::once_flag listed;
  Pieces listing;
};

// A token's text, control tokens written out.
std::string pieceOf(const llama_vocab *vocab, llama_token token);

struct Tap;

struct ContextHandle {
  ContextHandle();
  // Kept alive because llama.cpp's context points into it.
  std::shared_ptr<ModelHandle> model;
  llama_context *context = nullptr;
  std::atomic<bool> abort{false};
  // A run (run.cc) ends before its next decode.
  std::atomic<bool> pause{false};
  // Held while a decode runs on another thread.
  std::mutex running;
  // Tokens that entered the cache since the context was made.
  uint64_t submitted = 0;
  // Batch index -> whether its logits (or embedding) were asked for in the last decode that was done.
  std::vector<int8_t> outputs;
  // How embeddings are pooled; unspecified where the context makes none.
  enum llama_pooling_type pooling = LLAMA_POOLING_TYPE_UNSPECIFIED;
  // Null where attention cannot be captured.
  std::unique_ptr<Tap> tap;
  ~ContextHandle();
  // Stops a running decode, waits for it, gives the memory back.
  void free();
};

// What may come next (grammar.cc).
class Grammar;
// Finds where a grammar wakes that holds only from there (lazy-grammar.cc).
class LazyGrammar;
// How long an answer may reason (reasoning-budget.cc).
class ReasoningBudget;

struct SamplerHandle {
  std::shared_ptr<ModelHandle> model;
  // Held by whoever draws, accepts or frees: a run draws on another thread.
  std::mutex mutex;
  // Null without one.
  std::unique_ptr<Grammar> grammar;
  // Wakes the grammar where a call begins; null where it holds from the beginning.
  std::unique_ptr<LazyGrammar> lazy;
  // Whether the grammar holds from the next token on.
  bool awake = false;
  // Null: as long as the model will.
  std::unique_ptr<ReasoningBudget> budget;
  llama_sampler *chain = nullptr;
  // Its state changes with every draw (mirostat).
  bool stateful = false;
  std::vector<llama_token_data> candidates;
  SamplerHandle();
  ~SamplerHandle();
  void free();
};

// What llama.cpp logs on this thread while the object lives; at other times it logs nothing. Not to be nested.
class Log {
 public:
  Log();
  ~Log();
  Log(const Log &) = delete;
  // The last errors (warnings where there are none), as the end of a sentence: ": why; why." or "."
  std::string why() const;
  // Every line of any level that contains `part`.
  std::vector<std::string> lines(const std::string &part) const;

 private:
  friend void keepLog(ggml_log_level, const char *, void *);
  std::vector<std::pair<ggml_log_level, std::string>> kept;
};

// While the object lives, what llama.cpp logs on this thread is kept by nobody.
class Silence {
 public:
  Silence();
  ~Silence();
  Silence(const Silence &) = delete;

 private:
  Log *kept;
};

// What an environment (a main thread or a worker) holds of llama.cpp; frees all of it when the environment ends.
class Live {
 public:
  ~Live() { freeAll(); }
  void add(const std::shared_ptr<ModelHandle> &handle) { keep(models, handle); }
  void add(const std::shared_ptr<ContextHandle> &handle) { keep(contexts, handle); }
  void add(const std::shared_ptr<SamplerHandle> &handle) { keep(samplers, handle); }
  // Idempotent; later calls on any handle fail with native/disposed. Also stops loads that are running.
  void freeAll();
  std::shared_ptr<std::atomic<bool>> stopping = std::make_shared<std::atomic<bool>>(false);

 private:
  template <typename T>
  void keep(std::vector<std::weak_ptr<T>> &list, const std::shared_ptr<T> &handle) {
    size_t kept = 0;
    for (auto &entry : list)
      if (!entry.expired()) list[kept++] = entry;
    list.resize(kept);
    list.push_back(handle);
  }
  std::vector<std::weak_ptr<SamplerHandle>> samplers;
  std::vector<std::weak_ptr<ContextHandle>> contexts;
  std::vector<std::weak_ptr<ModelHandle>> models;
};

Live &live(Napi::Env env);

// The failure that is being handled right now, as "code\nsentence": how errors travel to addon.ts.
std::string currentFailure();

// Turns anything thrown by `body` into a JavaScript error.
template <typename Body>
Napi::Value guarded(const Napi::CallbackInfo &info, Body body) {
  std::string message;
  try {
    return body();
  } catch (const Napi::Error &) {
    throw;
  } catch (...) {
    message = currentFailure();
  }
  throw Napi::Error::New(info.Env(), message);
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
    } catch (...) {
      SetError(currentFailure());
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
Napi::Value boxed(Napi::Env env, const std::shared_ptr<T> &handle) {
  live(env).add(handle);
  return Napi::External<std::shared_ptr<T>>::New(env, new std::shared_ptr<T>(handle), [](Napi::Env, std::shared_ptr<T> *box) { delete box; });
}

template <typename T>
std::shared_ptr<T> unboxed(const Napi::Value &value) {
  return *value.As<Napi::External<std::shared_ptr<T>>>().Data();
}

// The object behind a handle; what was freed, by dispose or at exit, fails with native/disposed.
std::shared_ptr<ModelHandle> modelOf(const Napi::Value &value);
std::shared_ptr<ContextHandle> contextOf(const Napi::Value &value);
std::shared_ptr<SamplerHandle> samplerOf(const Napi::Value &value);

// Tokens that are decoded together, each in a sequence.
struct Batch {
  std::vector<int32_t> tokens, positions, sequences;
  // Whether logits (or an embedding) are asked for.
  std::vector<int8_t> outputs;
  // Counts what entered the cache, while `running` is held; gives "done", "no-room" or "aborted". Throws native/failed.
  const char *decode(ContextHandle &handle);
};

// A copy of an Int32Array.
std::vector<int32_t> int32s(const Napi::Value &value);

// The logits of batch index `index` of the last decode, one float a token of the vocabulary; they last until the next one.
const float *logitsAt(ContextHandle &context, int32_t index);

// Draws from these logits and accepts the token. Throws engine/bad-grammar, native/disposed.
llama_token drawFrom(SamplerHandle &sampler, const float *logits);

void exportModel(Napi::Env env, Napi::Object exports);
void exportVocabulary(Napi::Env env, Napi::Object exports);
void exportContext(Napi::Env env, Napi::Object exports);
void exportRun(Napi::Env env, Napi::Object exports);
void exportMemory(Napi::Env env, Napi::Object exports);
void exportSampler(Napi::Env env, Napi::Object exports);
void exportDeadline(Napi::Env env, Napi::Object exports);
void exportCapture(Napi::Env env, Napi::Object exports);

}  // namespace kvfold
