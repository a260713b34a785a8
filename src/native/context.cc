// Contexts: decoding, logits, and the operations on the unified cache.
#include <cstring>

#include "kvfold.h"

namespace kvfold {
namespace {

llama_memory_t memoryOf(ContextHandle *context) { return llama_get_memory(context->context); }

Napi::Value create(const Napi::CallbackInfo &info) {
  auto env = info.Env();
  auto *model = handle<ModelHandle>(info[0]);
  auto options = info[1].As<Napi::Object>();
  auto number = [&](const char *name) { return options.Get(name).As<Napi::Number>().Int64Value(); };
  auto params = llama_context_default_params();
  params.n_ctx = number("cells");
  params.n_batch = number("batch");
  params.n_ubatch = number("ubatch");
  params.n_seq_max = number("sequences");
  params.n_threads = number("threads");
  params.n_threads_batch = number("batchThreads");
  params.flash_attn_type = static_cast<llama_flash_attn_type>(number("flashAttention"));
  params.type_k = static_cast<ggml_type>(number("keyType"));
  params.type_v = static_cast<ggml_type>(number("valueType"));
  params.embeddings = options.Get("embeddings").As<Napi::Boolean>();
  params.swa_full = options.Get("fullSlidingWindow").As<Napi::Boolean>();
  params.kv_unified = true;
  params.no_perf = true;
  auto *context = new ContextHandle();
  context->model = model;
  params.abort_callback = [](void *data) { return static_cast<ContextHandle *>(data)->abort.load(); };
  params.abort_callback_data = context;
  return Task::run(
      env,
      [=]() {
        takeLog();
        try {
          context->context = llama_init_from_model(model->model, params);
        } catch (...) {
          delete context;
          throw;
        }
        if (context->context == nullptr) {
          delete context;
          auto log = takeLog();
          throw Failure("native/failed", "llama.cpp cannot make this context" + (log.empty() ? std::string(".") : ": " + log));
        }
      },
      [context](Napi::Env env) -> Napi::Value { return Napi::External<ContextHandle>::New(env, context); });
}

Napi::Value release(const Napi::CallbackInfo &info) {
  auto *context = handle<ContextHandle>(info[0]);
  return Task::run(
      info.Env(),
      [context] {
        llama_free(context->context);
        delete context;
      },
      [](Napi::Env env) { return env.Undefined(); });
}

Napi::Value sizes(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto *context = handle<ContextHandle>(info[0])->context;
    auto out = Napi::Object::New(info.Env());
    out.Set("cells", llama_n_ctx(context));
    out.Set("batch", llama_n_batch(context));
    out.Set("ubatch", llama_n_ubatch(context));
    out.Set("sequences", llama_n_seq_max(context));
    out.Set("canShift", llama_memory_can_shift(llama_get_memory(context)));
    return out;
  });
}

// Tokens of this batch that are in the cache now, told from the positions each of its sequences holds.
uint64_t entered(ContextHandle *context, const llama_batch &batch) {
  uint64_t count = 0;
  for (int32_t i = 0; i < batch.n_tokens; i++)
    if (batch.pos[i] <= llama_memory_seq_pos_max(memoryOf(context), batch.seq_id[i][0])) count++;
  return count;
}

Napi::Value decode(const Napi::CallbackInfo &info) {
  auto env = info.Env();
  auto *context = handle<ContextHandle>(info[0]);
  auto copy = [&](size_t at) {
    auto array = info[at].As<Napi::Int32Array>();
    return std::vector<int32_t>(array.Data(), array.Data() + array.ElementLength());
  };
  struct Work {
    std::vector<int32_t> tokens, positions, sequences;
    std::vector<int8_t> outputs;
    int32_t result = 0;
  };
  auto work = std::make_shared<Work>();
  work->tokens = copy(1), work->positions = copy(2), work->sequences = copy(3);
  auto outputs = info[4].As<Napi::Uint8Array>();
  work->outputs.assign(outputs.Data(), outputs.Data() + outputs.ElementLength());
  context->abort = false;
  return Task::run(
      env,
      [=] {
        size_t size = work->tokens.size();
        std::vector<int32_t> counts(size, 1);
        std::vector<llama_seq_id *> sequences(size);
        for (size_t i = 0; i < size; i++) sequences[i] = &work->sequences[i];
        llama_batch batch{};
        batch.n_tokens = size;
        batch.token = work->tokens.data();
        batch.pos = work->positions.data();
        batch.n_seq_id = counts.data();
        batch.seq_id = sequences.data();
        batch.logits = work->outputs.data();
        context->outputs.clear();
        takeLog();
        try {
          work->result = llama_decode(context->context, batch);
        } catch (...) {
          context->submitted += entered(context, batch);
          throw;
        }
        context->submitted += work->result == 0 ? size : entered(context, batch);
        if (work->result == 0) context->outputs = work->outputs;
        if (work->result < 0) {
          auto log = takeLog();
          throw Failure("native/failed", "llama_decode returned " + std::to_string(work->result) + (log.empty() ? "." : ": " + log));
        }
      },
      [work](Napi::Env env) -> Napi::Value { return Napi::String::New(env, work->result == 0 ? "done" : work->result == 1 ? "no-room" : "aborted"); });
}

Napi::Value abortDecode(const Napi::CallbackInfo &info) {
  handle<ContextHandle>(info[0])->abort = true;
  return info.Env().Undefined();
}

Napi::Value submitted(const Napi::CallbackInfo &info) { return Napi::Number::New(info.Env(), handle<ContextHandle>(info[0])->submitted); }

Napi::Value logits(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto *context = handle<ContextHandle>(info[0]);
    int32_t index = info[1].As<Napi::Number>();
    if (index < 0 || static_cast<size_t>(index) >= context->outputs.size() || !context->outputs[index])
      throw Failure("native/bad-argument", "Logits of batch index " + std::to_string(index) + " were not asked for in the last decode.");
    const float *values = llama_get_logits_ith(context->context, index);
    size_t size = llama_vocab_n_tokens(context->model->vocab);
    auto out = Napi::Float32Array::New(info.Env(), size);
    std::copy_n(values, size, out.Data());
    return out;
  });
}

Napi::Value tag(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto at = [&](size_t i) { return info[i].As<Napi::Number>().Int32Value(); };
    llama_memory_seq_cp(memoryOf(handle<ContextHandle>(info[0])), at(1), at(2), at(3), at(4));
    return info.Env().Undefined();
  });
}

Napi::Value untag(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto at = [&](size_t i) { return info[i].As<Napi::Number>().Int32Value(); };
    if (!llama_memory_seq_rm(memoryOf(handle<ContextHandle>(info[0])), at(1), at(2), at(3)))
      throw Failure("model/unsupported", "This model's cache cannot drop a part of a sequence.");
    return info.Env().Undefined();
  });
}

Napi::Value shift(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto at = [&](size_t i) { return info[i].As<Napi::Number>().Int32Value(); };
    llama_memory_seq_add(memoryOf(handle<ContextHandle>(info[0])), at(1), at(2), at(3), at(4));
    return info.Env().Undefined();
  });
}

// [min, max] of a sequence, [-1, -1] when it holds nothing.
Napi::Value positions(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto memory = memoryOf(handle<ContextHandle>(info[0]));
    llama_seq_id seq = info[1].As<Napi::Number>();
    auto out = Napi::Array::New(info.Env(), 2);
    out.Set(0u, llama_memory_seq_pos_min(memory, seq));
    out.Set(1u, llama_memory_seq_pos_max(memory, seq));
    return out;
  });
}

Napi::Value clear(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    llama_memory_clear(memoryOf(handle<ContextHandle>(info[0])), false);
    return info.Env().Undefined();
  });
}

// Cells as [position, count, sequence...] runs, read from the head of the state that llama.cpp writes (llama_context::state_write_data:
// architecture name; llama_kv_cache::state_write: streams, cells; state_write_meta: per cell position, count and sequence ids).
Napi::Value readback(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto *context = handle<ContextHandle>(info[0])->context;
    std::vector<uint8_t> state(llama_state_get_size(context));
    size_t size = llama_state_get_data(context, state.data(), state.size());
    size_t at = 0;
    auto next = [&]() {
      uint32_t value;
      if (at + sizeof value > size) throw Failure("native/failed", "The state of the context ends early.");
      std::memcpy(&value, state.data() + at, sizeof value);
      at += sizeof value;
      return value;
    };
    uint32_t name = next();
    at += name;
    uint32_t streams = next();
    if (streams != 1) throw Failure("native/failed", "Expected one stream in a unified cache.");
    std::vector<int32_t> out;
    for (uint32_t cell = 0, count = next(); cell < count; cell++) {
      out.push_back(next());
      uint32_t sequences = next();
      out.push_back(sequences);
      for (uint32_t i = 0; i < sequences; i++) out.push_back(next());
    }
    auto array = Napi::Int32Array::New(info.Env(), out.size());
    std::copy(out.begin(), out.end(), array.Data());
    return array;
  });
}

Napi::Value save(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto *context = handle<ContextHandle>(info[0])->context;
    llama_seq_id seq = info[1].As<Napi::Number>();
    std::vector<uint8_t> state(llama_state_seq_get_size(context, seq));
    size_t size = llama_state_seq_get_data(context, state.data(), state.size(), seq);
    auto out = Napi::Uint8Array::New(info.Env(), size);
    std::copy_n(state.begin(), size, out.Data());
    return out;
  });
}

Napi::Value loadState(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto *context = handle<ContextHandle>(info[0])->context;
    llama_seq_id seq = info[1].As<Napi::Number>();
    auto state = info[2].As<Napi::Uint8Array>();
    size_t read = 0;
    try {
      read = llama_state_seq_set_data(context, state.Data(), state.ElementLength(), seq);
    } catch (const std::exception &) {
      read = 0;
    }
    if (read == 0) llama_memory_seq_rm(llama_get_memory(context), seq, -1, -1);
    return Napi::Boolean::New(info.Env(), read > 0);
  });
}

}  // namespace

void exportContext(Napi::Env env, Napi::Object exports) {
  auto set = [&](const char *name, Napi::Value (*function)(const Napi::CallbackInfo &)) { exports.Set(name, Napi::Function::New(env, function)); };
  set("contextCreate", create);
  set("contextFree", release);
  set("contextSizes", sizes);
  set("decode", decode);
  set("abort", abortDecode);
  set("submitted", submitted);
  set("logits", logits);
  set("tag", tag);
  set("untag", untag);
  set("shift", shift);
  set("positions", positions);
  set("clear", clear);
  set("readback", readback);
  set("saveSequence", save);
  set("loadSequence", loadState);
}

}  // namespace kvfold
