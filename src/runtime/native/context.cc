// Contexts: makes them, decodes off the event loop, and returns the logits or embeddings of a decode.
#include <algorithm>
#include <cstdio>

#include "tap.h"

namespace kvfold {
namespace {

// Returns the sum, in bytes, of the sizes that llama.cpp logged as "... <what> = 12.34 MiB". llama.cpp has no call that returns them.
double loggedBytes(const Log &log, const std::string &what) {
  double sum = 0;
  for (auto &line : log.lines(what + " = ")) {
    double mebibytes = 0;
    if (std::sscanf(line.c_str() + line.find(what) + what.size(), " = %lf MiB", &mebibytes) == 1) sum += mebibytes;
  }
  return sum * 1024 * 1024;
}

Napi::Value create(const Napi::CallbackInfo &info) {
  auto env = info.Env();
  return guarded(info, [&]() -> Napi::Value {
    auto options = info[1].As<Napi::Object>();
    auto number = [&](const char *name) { return options.Get(name).As<Napi::Number>().Int64Value(); };
    auto params = llama_context_default_params();
    params.n_ctx = number("cells");
    params.n_batch = number("batch");
    params.n_ubatch = number("ubatch");
    params.n_seq_max = number("sequences");
    // llama.cpp needs room for one output per sequence, and ends the process if n_outputs_max (by default the batch size) is smaller.
    params.n_outputs_max = std::max(params.n_batch, params.n_seq_max);
    params.n_threads = number("threads");
    params.n_threads_batch = number("batchThreads");
    params.flash_attn_type = static_cast<llama_flash_attn_type>(number("flashAttention"));
    params.type_k = static_cast<ggml_type>(number("keyType"));
    params.type_v = static_cast<ggml_type>(number("valueType"));
    params.swa_full = options.Get("fullSlidingWindow").As<Napi::Boolean>();
    params.kv_unified = true;
    params.no_perf = true;
    auto made = std::make_shared<ContextHandle>();
    if (auto pooling = options.Get("pooling"); pooling.IsNumber()) {
      params.embeddings = true;
      params.pooling_type = static_cast<enum llama_pooling_type>(pooling.As<Napi::Number>().Int32Value());
      made->pooling = params.pooling_type;
    }
    made->model = modelOf(info[0]);
    params.abort_callback = [](void *data) {
      auto handle = static_cast<ContextHandle *>(data);
      return handle->abort && !handle->turning;
    };
    params.abort_callback_data = made.get();
    if (options.Get("attention").As<Napi::Boolean>()) {
      made->tap = std::make_unique<Tap>();
      made->tap->windowed = options.Get("windowed").As<Napi::Boolean>();
      made->tap->extra = number("cellExtra");
      params.cb_eval = Tap::evaluate;
      params.cb_eval_user_data = made->tap.get();
    }
    struct Figures {
      double cache = 0, compute = 0;
      bool flashAttention = false;
    };
    auto figures = std::make_shared<Figures>();
    // Register the context before the work begins, so that `freeAll` at exit waits for its lock and frees it before its model.
    live(env).add(made);
    return Task::run(
        env,
        [=] {
          std::lock_guard<std::mutex> lock(made->running);
          if (made->abort) throw Failure("native/disposed", "The program ends.");
          Log log;
          made->context = llama_init_from_model(made->model->model, params);
          if (made->context == nullptr) throw Failure("native/failed", "llama.cpp cannot make this context" + log.why());
          figures->cache = loggedBytes(log, "KV buffer size") + loggedBytes(log, "RS buffer size");
          figures->compute = loggedBytes(log, "compute buffer size") + loggedBytes(log, "output buffer size");
          // With `auto`, llama.cpp decides about flash attention while it makes the context. No call returns the decision, so read it from
          // the log: llama.cpp logs when it turns flash attention off.
          figures->flashAttention = params.flash_attn_type != LLAMA_FLASH_ATTN_TYPE_DISABLED &&
                                    log.lines("Flash Attention not supported").empty() && log.lines("flash_attn is not compatible").empty();
          if (made->tap != nullptr) made->tap->probe(made->context, log);
        },
        [made, figures](Napi::Env env) -> Napi::Value {
          auto *context = made->context;
          if (context == nullptr) throw Failure("native/disposed", "The program ends.");
          auto out = Napi::Object::New(env);
          out.Set("handle", boxed(env, made));
          out.Set("cells", llama_n_ctx(context));
          out.Set("batch", llama_n_batch(context));
          out.Set("ubatch", llama_n_ubatch(context));
          out.Set("sequences", llama_n_seq_max(context));
          out.Set("canShift", llama_memory_can_shift(llama_get_memory(context)));
          out.Set("cacheBytes", figures->cache);
          out.Set("computeBytes", figures->compute);
          out.Set("flashAttention", figures->flashAttention);
          out.Set("attention", made->tap == nullptr ? env.Null() : Napi::Value(int32Array(env, made->tap->headsOf)));
          return out;
        });
  });
}

Napi::Value release(const Napi::CallbackInfo &info) {
  auto context = unboxed<ContextHandle>(info[0]);
  return Task::run(info.Env(), [context] { context->free(); }, [](Napi::Env env) { return env.Undefined(); });
}

struct Decode : Batch {
  std::vector<std::shared_ptr<Capture>> captures;
  const char *status = "aborted";

  void run(ContextHandle &handle) {
    std::lock_guard<std::mutex> lock(handle.running);
    if (handle.context == nullptr) return;
    Armed armed(handle.tap.get(), handle.context, positions, captures);
    status = decode(handle);
  }
};

Napi::Value decode(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto context = contextOf(info[0]);
    auto work = std::make_shared<Decode>();
    work->tokens = int32s(info[1]), work->positions = int32s(info[2]), work->sequences = int32s(info[3]);
    auto outputs = info[4].As<Napi::Uint8Array>();
    for (size_t i = 0; i < outputs.ElementLength(); i++) work->outputs.push_back(outputs[i] != 0);
    if (info[5].IsArray()) {
      auto watched = info[5].As<Napi::Array>();
      for (uint32_t i = 0; i < watched.Length(); i++) work->captures.push_back(armedCapture(watched.Get(i).As<Napi::Object>()));
    }
    context->abort = false;
    return Task::run(
        info.Env(), [=] { work->run(*context); }, [work](Napi::Env env) -> Napi::Value { return Napi::String::New(env, work->status); });
  });
}

Napi::Value abortDecode(const Napi::CallbackInfo &info) {
  unboxed<ContextHandle>(info[0])->abort = true;
  return info.Env().Undefined();
}

Napi::Value submitted(const Napi::CallbackInfo &info) {
  return Napi::Number::New(info.Env(), static_cast<double>(unboxed<ContextHandle>(info[0])->submitted));
}

Napi::Value logits(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto context = contextOf(info[0]);
    const float *values = logitsAt(*context, info[1].As<Napi::Number>().Int32Value());
    size_t size = llama_vocab_n_tokens(context->model->vocab);
    auto out = Napi::Float32Array::New(info.Env(), size);
    std::copy_n(values, size, out.Data());
    return out;
  });
}

// Returns an embedding of the last decode. `at` is a sequence if the context pools embeddings, else a batch index.
Napi::Value embedding(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto handle = contextOf(info[0]);
    int32_t at = info[1].As<Napi::Number>().Int32Value();
    const float *values = nullptr;
    // A failed decode leaves no outputs. `values` then stays null.
    if (at >= 0 && !handle->outputs.empty()) {
      if (handle->pooling != LLAMA_POOLING_TYPE_NONE) values = llama_get_embeddings_seq(handle->context, at);
      else if (static_cast<size_t>(at) < handle->outputs.size()) values = llama_get_embeddings_ith(handle->context, at);
    }
    if (values == nullptr)
      throw Failure("native/bad-argument",
                    "There is no embedding at " + std::to_string(at) + ": the last decode did not compute it, or it failed.");
    auto *model = handle->model->model;
    size_t size = handle->pooling == LLAMA_POOLING_TYPE_RANK ? llama_model_n_cls_out(model) : llama_model_n_embd_out(model);
    auto out = Napi::Float32Array::New(info.Env(), size);
    std::copy_n(values, size, out.Data());
    return out;
  });
}

}  // namespace

std::vector<int32_t> int32s(const Napi::Value &value) {
  auto array = value.As<Napi::Int32Array>();
  return {array.Data(), array.Data() + array.ElementLength()};
}

const char *Batch::decode(ContextHandle &handle) {
  std::vector<int32_t> counts(tokens.size(), 1);
  std::vector<llama_seq_id *> lists(tokens.size());
  for (size_t i = 0; i < tokens.size(); i++) lists[i] = &sequences[i];
  llama_batch batch{};
  batch.n_tokens = tokens.size();
  batch.token = tokens.data();
  batch.pos = positions.data();
  batch.n_seq_id = counts.data();
  batch.seq_id = lists.data();
  batch.logits = outputs.data();
  // Counts the tokens of this batch that are in the cache, by the positions that llama.cpp reports for their sequences.
  auto entered = [&] {
    uint64_t count = 0;
    for (size_t i = 0; i < tokens.size(); i++)
      if (positions[i] <= llama_memory_seq_pos_max(llama_get_memory(handle.context), sequences[i])) count++;
    return count;
  };
  handle.outputs.clear();
  Log log;
  int32_t result = 0;
  try {
    result = llama_decode(handle.context, batch);
    // A GPU may still be computing. Wait on this thread, so that reading the logits does not block the event loop.
    llama_synchronize(handle.context);
  } catch (...) {
    handle.submitted += entered();
    throw;
  }
  // llama.cpp refuses a bad batch before it turns keys.
  if (result >= 0) handle.turning = false;
  handle.submitted += result == 0 ? tokens.size() : result == 1 ? 0 : entered();
  if (result < 0) throw Failure("native/failed", "llama.cpp could not decode the batch (" + std::to_string(result) + ")" + log.why());
  if (result == 0) handle.outputs = outputs;
  return result == 0 ? "done" : result == 1 ? "no-room" : "aborted";
}

const float *logitsAt(ContextHandle &context, int32_t index) {
  if (context.pooling != LLAMA_POOLING_TYPE_UNSPECIFIED)
    throw Failure("native/bad-argument", "A context made for embeddings has no logits; create one without.");
  bool asked = index >= 0 && static_cast<size_t>(index) < context.outputs.size() && context.outputs[index] != 0;
  const float *values = asked ? llama_get_logits_ith(context.context, index) : nullptr;
  if (values == nullptr)
    throw Failure("native/bad-argument",
                  "There are no logits for batch index " + std::to_string(index) + ": the last decode did not output them, or it failed.");
  return values;
}

void exportContext(Napi::Env env, Napi::Object exports) {
  exports.Set("contextCreate", Napi::Function::New(env, create));
  exports.Set("contextFree", Napi::Function::New(env, release));
  exports.Set("decode", Napi::Function::New(env, decode));
  exports.Set("abort", Napi::Function::New(env, abortDecode));
  exports.Set("submitted", Napi::Function::New(env, submitted));
  exports.Set("logits", Napi::Function::New(env, logits));
  exports.Set("embedding", Napi::Function::New(env, embedding));
}

}  // namespace kvfold
