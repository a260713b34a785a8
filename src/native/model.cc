// Models: loading, what the file says of itself, and the vocabulary.
#include "kvfold.h"

namespace kvfold {
namespace {

const char *vocabTypeName(enum llama_vocab_type type) {
  switch (type) {
    case LLAMA_VOCAB_TYPE_NONE: return "none";
    case LLAMA_VOCAB_TYPE_SPM: return "spm";
    case LLAMA_VOCAB_TYPE_BPE: return "bpe";
    case LLAMA_VOCAB_TYPE_WPM: return "wpm";
    case LLAMA_VOCAB_TYPE_UGM: return "ugm";
    case LLAMA_VOCAB_TYPE_RWKV: return "rwkv";
    case LLAMA_VOCAB_TYPE_PLAMO2: return "plamo2";
    default: return "unknown";
  }
}

const char *ropeName(enum llama_rope_type type) {
  switch (type) {
    case LLAMA_ROPE_TYPE_NONE: return "none";
    case LLAMA_ROPE_TYPE_NORM: return "norm";
    case LLAMA_ROPE_TYPE_NEOX: return "neox";
    case LLAMA_ROPE_TYPE_MROPE: return "mrope";
    case LLAMA_ROPE_TYPE_IMROPE: return "imrope";
    case LLAMA_ROPE_TYPE_VISION: return "vision";
    default: return "unknown";
  }
}

// Reads a string that llama.cpp measures first: `read(buffer, size)` returns the length it needs, negative on failure.
template <typename Read>
std::string text(Read read) {
  std::string out(256, '\0');
  int32_t size = read(out.data(), out.size());
  if (size < 0) return "";
  if (static_cast<size_t>(size) >= out.size()) {
    out.resize(size + 1);
    size = read(out.data(), out.size());
  }
  out.resize(std::max(size, 0));
  return out;
}

Napi::Value load(const Napi::CallbackInfo &info) {
  auto env = info.Env();
  std::string path = info[0].As<Napi::String>();
  auto options = info[1].As<Napi::Object>();
  auto params = llama_model_default_params();
  params.n_gpu_layers = options.Get("gpuLayers").As<Napi::Number>().Int32Value();
  bool mmap = options.Get("mmap").As<Napi::Boolean>(), mlock = options.Get("mlock").As<Napi::Boolean>();
  params.load_mode = mmap ? (mlock ? LLAMA_LOAD_MODE_MMAP_MLOCK : LLAMA_LOAD_MODE_MMAP) : (mlock ? LLAMA_LOAD_MODE_MLOCK : LLAMA_LOAD_MODE_NONE);
  params.vocab_only = options.Get("vocabOnly").As<Napi::Boolean>();
  params.check_tensors = options.Get("checkTensors").As<Napi::Boolean>();

  // Progress travels through a thread-safe function: the loader calls from the worker thread.
  Napi::ThreadSafeFunction progress;
  bool reports = info[2].IsFunction();
  if (reports) progress = Napi::ThreadSafeFunction::New(env, info[2].As<Napi::Function>(), "kvfold load progress", 0, 1);
  auto *reporter = reports ? new Napi::ThreadSafeFunction(progress) : nullptr;
  auto *loaded = new ModelHandle();
  return Task::run(
      env,
      [=]() mutable {
        if (reporter != nullptr) {
          params.progress_callback_user_data = reporter;
          params.progress_callback = [](float value, void *data) {
            static_cast<Napi::ThreadSafeFunction *>(data)->NonBlockingCall([value](Napi::Env env, Napi::Function call) { call.Call({Napi::Number::New(env, value)}); });
            return true;
          };
        }
        auto release = [&]() {
          if (reporter == nullptr) return;
          reporter->Release();
          delete reporter;
        };
        try {
          takeLog();
          loaded->model = llama_model_load_from_file(path.c_str(), params);
        } catch (...) {
          release();
          delete loaded;
          throw;
        }
        release();
        if (loaded->model == nullptr) {
          delete loaded;
          auto log = takeLog();
          throw Failure("model/bad-file", "llama.cpp cannot load " + path + (log.empty() ? "." : ": " + log));
        }
        loaded->vocab = llama_model_get_vocab(loaded->model);
      },
      [loaded](Napi::Env env) -> Napi::Value { return Napi::External<ModelHandle>::New(env, loaded); });
}

Napi::Value release(const Napi::CallbackInfo &info) {
  auto *model = handle<ModelHandle>(info[0]);
  return Task::run(
      info.Env(),
      [model] {
        llama_model_free(model->model);
        delete model;
      },
      [](Napi::Env env) { return env.Undefined(); });
}

Napi::Value describe(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto env = info.Env();
    auto *handled = handle<ModelHandle>(info[0]);
    auto *model = handled->model;
    auto out = Napi::Object::New(env);
    auto number = [&](const char *name, double value) { out.Set(name, Napi::Number::New(env, value)); };
    out.Set("description", text([&](char *buffer, size_t size) { return llama_model_desc(model, buffer, size); }));
    number("parameters", llama_model_n_params(model));
    number("size", llama_model_size(model));
    number("layers", llama_model_n_layer(model));
    number("embedding", llama_model_n_embd(model));
    // A vocabulary alone has no layers, and llama.cpp ends the process when asked for the heads of layer 0 then.
    bool layered = llama_model_n_layer(model) > 0;
    number("heads", layered ? llama_model_n_head(model) : 0);
    number("kvHeads", layered ? llama_model_n_head_kv(model) : 0);
    number("trainedContext", llama_model_n_ctx_train(model));
    number("vocabulary", llama_vocab_n_tokens(handled->vocab));
    number("slidingWindow", llama_model_n_swa(model));
    out.Set("vocabType", vocabTypeName(llama_vocab_type(handled->vocab)));
    out.Set("rope", ropeName(llama_model_rope_type(model)));
    out.Set("recurrent", llama_model_is_recurrent(model));
    out.Set("hybrid", llama_model_is_hybrid(model));
    out.Set("encoder", llama_model_has_encoder(model) || !llama_model_has_decoder(model));
    auto metadata = Napi::Object::New(env);
    for (int32_t i = 0; i < llama_model_meta_count(model); i++)
      metadata.Set(text([&](char *b, size_t n) { return llama_model_meta_key_by_index(model, i, b, n); }),
                   text([&](char *b, size_t n) { return llama_model_meta_val_str_by_index(model, i, b, n); }));
    out.Set("metadata", metadata);
    const char *chatTemplate = llama_model_chat_template(model, nullptr);
    out.Set("chatTemplate", chatTemplate == nullptr ? env.Null() : Napi::Value(Napi::String::New(env, chatTemplate)));
    auto special = Napi::Object::New(env);
    auto token = [&](const char *name, llama_token id) {
      special.Set(name, id == LLAMA_TOKEN_NULL ? env.Null() : Napi::Value(Napi::Number::New(env, id)));
    };
    token("bos", llama_vocab_bos(handled->vocab));
    token("eos", llama_vocab_eos(handled->vocab));
    token("eot", llama_vocab_eot(handled->vocab));
    token("newline", llama_vocab_nl(handled->vocab));
    special.Set("addBos", llama_vocab_get_add_bos(handled->vocab));
    special.Set("addEos", llama_vocab_get_add_eos(handled->vocab));
    out.Set("special", special);
    // Per token: bit 0 ends generation, bit 1 is control or unknown.
    int32_t count = llama_vocab_n_tokens(handled->vocab);
    auto flags = Napi::Uint8Array::New(env, count);
    for (llama_token id = 0; id < count; id++) {
      bool control = (llama_vocab_get_attr(handled->vocab, id) & (LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN)) != 0;
      flags[id] = (llama_vocab_is_eog(handled->vocab, id) ? 1 : 0) | (control ? 2 : 0);
    }
    out.Set("flags", flags);
    return out;
  });
}

Napi::Value tokenize(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto *vocab = handle<ModelHandle>(info[0])->vocab;
    std::string input = info[1].As<Napi::String>();
    bool addSpecial = info[2].As<Napi::Boolean>(), parseSpecial = info[3].As<Napi::Boolean>();
    std::vector<llama_token> tokens(input.size() + 8);
    int32_t count = llama_tokenize(vocab, input.data(), input.size(), tokens.data(), tokens.size(), addSpecial, parseSpecial);
    if (count == INT32_MIN) throw Failure("native/bad-argument", "The text is too long to tokenize in one call.");
    if (count < 0) {
      tokens.resize(-count);
      count = llama_tokenize(vocab, input.data(), input.size(), tokens.data(), tokens.size(), addSpecial, parseSpecial);
    }
    auto out = Napi::Int32Array::New(info.Env(), count);
    std::copy_n(tokens.begin(), count, out.Data());
    return out;
  });
}

Napi::Value piece(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto *vocab = handle<ModelHandle>(info[0])->vocab;
    llama_token token = info[1].As<Napi::Number>();
    bool special = info[2].As<Napi::Boolean>();
    std::string out(64, '\0');
    int32_t size = llama_token_to_piece(vocab, token, out.data(), out.size(), 0, special);
    if (size < 0) {
      out.resize(-size);
      size = llama_token_to_piece(vocab, token, out.data(), out.size(), 0, special);
    }
    auto bytes = Napi::Uint8Array::New(info.Env(), size);
    std::copy_n(reinterpret_cast<uint8_t *>(out.data()), size, bytes.Data());
    return bytes;
  });
}

}  // namespace

void exportModel(Napi::Env env, Napi::Object exports) {
  exports.Set("modelLoad", Napi::Function::New(env, load));
  exports.Set("modelFree", Napi::Function::New(env, release));
  exports.Set("modelDescribe", Napi::Function::New(env, describe));
  exports.Set("tokenize", Napi::Function::New(env, tokenize));
  exports.Set("piece", Napi::Function::New(env, piece));
}

}  // namespace kvfold
