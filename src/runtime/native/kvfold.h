// Shared by all parts of the addon: handles, errors with a code, llama.cpp's last log lines, and the guard around every function that
// JavaScript calls.
#pragma once
#define NAPI_VERSION 8
#include <llama.h>
#include <napi.h>

#include <algorithm>
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

// An error that the caller in JavaScript receives. Its `code` is one of src/runtime/core/errors.ts.
struct Failure : std::exception {
  std::string code, message;
  Failure(std::string code, std::string message) : code(std::move(code)), message(std::move(message)) {}
  const char *what() const noexcept override { return message.c_str(); }
};

// The texts of all tokens of a vocabulary, sorted so that a search can share work between texts with a common beginning.
struct Pieces {
  // The text of each token, by its id; control tokens are written out.
  std::vector<std::string> texts;
  // For each token: whether it ends generation.
  std::vector<uint8_t> ends;
  // The ids of the tokens that have a text and do not end generation, sorted by their texts.
  std::vector<llama_token> order;
  // For each token in `order`: how many bytes its text shares with the beginning of the previous token's text, and how many bytes follow.
  std::vector<uint32_t> shared, own;
  // For all tokens in `order`, one after another: the bytes of their texts that follow the shared beginning.
  std::string tails;
  size_t longest = 0;
};

struct ModelHandle {
  llama_model *model = nullptr;
  const llama_vocab *vocab = nullptr;
  // Threads that read the vocabulary hold this lock as readers. `free` waits for them.
  std::shared_mutex reading;
  ~ModelHandle() { free(); }
  void free();
  // The texts of all tokens. The first call makes them, which takes a tenth of a second for a large vocabulary.
  const Pieces &pieces();

 private:
  std::once_flag listed;
  Pieces listing;
};

// A LoRA adapter. llama.cpp frees it with its model; `adapterFree` frees it earlier.
struct AdapterHandle {
  std::shared_ptr<ModelHandle> model;
  llama_adapter_lora *adapter = nullptr;
};

// Returns a token's text; control tokens are written out.
std::string pieceOf(const llama_vocab *vocab, llama_token token);

inline bool isSpace(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

// Whether the first `length` bytes of the text are whitespace only.
inline bool isBlank(const std::string &text, size_t length) {
  return std::all_of(text.begin(), text.begin() + std::min(length, text.size()), isSpace);
}

struct Tap;

struct ContextHandle {
  ContextHandle();
  // Keeps the model alive, because llama.cpp's context points into it.
  std::shared_ptr<ModelHandle> model;
  llama_context *context = nullptr;
  std::atomic<bool> abort{false};
  // Whether cells were shifted since the last decode. llama.cpp turns their keys in place when the next decode begins, layer by layer. A
  // stop in between would leave some layers turned, and the decode after it would turn these again. So that decode is not stopped.
  std::atomic<bool> turning{false};
  // Whether a run (run.cc) should end before its next decode. Set by `pause`.
  std::atomic<bool> pause{false};
  // A lock that is held while a decode runs on another thread.
  std::mutex running;
  // How many tokens have entered the KV cache since the context was made.
  uint64_t submitted = 0;
  // By batch index of the last decode: 1 if the logits (or embedding) of that token were requested. Empty if the decode failed.
  std::vector<int8_t> outputs;
  // How embeddings are pooled; unspecified if the context computes logits instead.
  enum llama_pooling_type pooling = LLAMA_POOLING_TYPE_UNSPECIFIED;
  // Captures attention; null if the context cannot do that.
  std::unique_ptr<Tap> tap;
  ~ContextHandle();
  // Stops a running decode, waits for its end, and frees the memory.
  void free();
};

// The tokens that a grammar allows next (grammar.cc).
class Grammar;
// Finds where a lazy grammar begins to apply (lazy-grammar.cc).
class LazyGrammar;
// Bounds the reasoning of an answer (reasoning-budget.cc).
class ReasoningBudget;
// Limits the tokens of an answer: forbidden words, allowed tokens, and where it may end (answer-limits.cc).
class AnswerLimits;

struct SamplerHandle {
  std::shared_ptr<ModelHandle> model;
  // Held while a token is drawn or accepted, and while the sampler is freed. A run draws on another thread.
  std::mutex mutex;
  // The tokens that the grammar allows next; null without a grammar.
  std::unique_ptr<Grammar> grammar;
  // Makes the grammar apply from the answer's first tool call on; null if it applies from the beginning.
  std::unique_ptr<LazyGrammar> lazy;
  // Whether the grammar applies to the next token. False while a lazy grammar has seen no trigger.
  bool awake = false;
  // Limits how many tokens the reasoning may have; null for no limit.
  std::unique_ptr<ReasoningBudget> budget;
  // The limits of the answer; null if it has none.
  std::unique_ptr<AnswerLimits> limits;
  llama_sampler *chain = nullptr;
  // The samplers in the chain that also count the tokens before the answer, and (next field) these tokens.
  std::vector<llama_sampler *> seeing;
  std::vector<int32_t> seen;
  // The tokens that the logit bias forbids.
  std::vector<llama_token> banned;
  // Whether a draw changes the chain's state (mirostat, adaptive-p), so that a draw cannot be repeated.
  bool stateful = false;
  std::vector<llama_token_data> candidates;
  SamplerHandle();
  ~SamplerHandle();
  void free();
};

// Collects the lines that llama.cpp logs on this thread while the object lives. Without such an object they are dropped. Must not be
// nested.
class Log {
 public:
  Log();
  ~Log();
  Log(const Log &) = delete;
  // Returns the last errors, or the last warnings if there are no errors, in the form ": why; why." that ends a sentence. Returns "." for
  // none.
  std::string why() const;
  // Returns all collected lines, of any level, that contain `part`.
  std::vector<std::string> lines(const std::string &part) const;

 private:
  friend void keepLog(ggml_log_level, const char *, void *);
  std::vector<std::pair<ggml_log_level, std::string>> kept;
};

// Drops the lines that llama.cpp logs on this thread while the object lives.
class Silence {
 public:
  Silence();
  ~Silence();
  Silence(const Silence &) = delete;

 private:
  Log *kept;
};

// All llama.cpp objects of one Node environment (main thread or worker). Frees them when the environment ends.
class Live {
 public:
  ~Live() { freeAll(); }
  void add(const std::shared_ptr<ModelHandle> &handle) { keep(models, handle); }
  void add(const std::shared_ptr<ContextHandle> &handle) { keep(contexts, handle); }
  void add(const std::shared_ptr<SamplerHandle> &handle) { keep(samplers, handle); }
  // Stops running loads and frees all objects. Later calls on their handles fail with native/disposed. Calling it again does nothing.
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

// Returns the exception that is being handled as "code\nsentence". addon.ts turns this form into a KvfoldError.
std::string currentFailure();

// Runs `body` for a call from JavaScript, and turns any C++ exception into a JavaScript error.
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

// Runs `work` off the event loop. Then runs `finish` on the event loop and resolves the promise with its value.
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
  void OnOK() override {
    try {
      deferred.Resolve(finish(Env()));
    } catch (const Napi::Error &error) {
      deferred.Reject(error.Value());
    } catch (...) {
      deferred.Reject(Napi::Error::New(Env(), currentFailure()).Value());
    }
  }
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

// Return the object behind a JavaScript handle. Throw native/disposed if it was freed, by dispose or at exit.
std::shared_ptr<ModelHandle> modelOf(const Napi::Value &value);
std::shared_ptr<ContextHandle> contextOf(const Napi::Value &value);
std::shared_ptr<SamplerHandle> samplerOf(const Napi::Value &value);

// The tokens of one decode, each with its position and its sequence.
struct Batch {
  std::vector<int32_t> tokens, positions, sequences;
  // For each token: 1 if its logits (or embedding) are requested.
  std::vector<int8_t> outputs;
  // Decodes the batch and counts the tokens that entered the cache. The caller must hold the context's `running`. Returns "done", "no-room"
  // or "aborted". Throws native/failed.
  const char *decode(ContextHandle &handle);
};

// Returns a copy of an Int32Array.
std::vector<int32_t> int32s(const Napi::Value &value);

// Returns the logits of batch index `index` of the last decode: one float per token of the vocabulary, valid until the next decode. Throws
// native/bad-argument if they were not requested.
const float *logitsAt(ContextHandle &context, int32_t index);

// Draws a token from logits and accepts it. Throws engine/bad-grammar, native/disposed.
llama_token drawFrom(SamplerHandle &sampler, const float *logits);
// Whether this token ends the answer: an end token of the vocabulary, or one of the sampler's stop tokens.
bool endsAnswer(SamplerHandle &sampler, llama_token token);

// A block of host memory for a saved sequence (host-blocks.cc). Its content is undefined until it is written.
struct HostBlock {
  uint8_t *data = nullptr;
  size_t size = 0;
  // The pinned buffer that contains the block; null if the block is not pinned.
  ggml_backend_buffer_t pinned = nullptr;
};

// Returns a block of at least `size` bytes, from any thread. Reuses a block that was given back if one fits. Throws std::bad_alloc.
HostBlock takeBlock(size_t size);
// Gives a block back. It is kept for later states or freed.
void giveBlock(const HostBlock &block);
// Returns a Uint8Array over the block's first `size` bytes, normally without a copy. The block is given back when the array is collected.
Napi::Value bytesOf(Napi::Env env, const HostBlock &block, size_t size);

void exportModel(Napi::Env env, Napi::Object exports);
void exportVocabulary(Napi::Env env, Napi::Object exports);
void exportContext(Napi::Env env, Napi::Object exports);
void exportRun(Napi::Env env, Napi::Object exports);
void exportAdapter(Napi::Env env, Napi::Object exports);
void exportMemory(Napi::Env env, Napi::Object exports);
void exportSampler(Napi::Env env, Napi::Object exports);
void exportDeadline(Napi::Env env, Napi::Object exports);
void exportCapture(Napi::Env env, Napi::Object exports);

}  // namespace kvfold
