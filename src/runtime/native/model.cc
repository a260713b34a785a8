// Models: loads a model file and describes the model.
#include <algorithm>
#include <chrono>
#include <future>

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

// Reads a string of unknown length from llama.cpp. `read(buffer, size)` returns the string's length, or a negative number on failure.
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

// Reports the progress of a load to JavaScript. llama.cpp reports it on the worker thread, so it goes through a thread-safe function.
struct Progress {
  Napi::ThreadSafeFunction function;
  bool wanted = false;
  std::shared_ptr<std::atomic<bool>> stopping;
  ~Progress() {
    if (wanted) function.Release();
  }
  // Receives the share that is loaded, 0..1. Returns false to stop the load.
  bool report(float value) {
    if (wanted)
      function.NonBlockingCall([value](Napi::Env env, Napi::Function call) { call.Call({Napi::Number::New(env, value)}); });
    return !*stopping;
  }
  // Waits on the worker thread until JavaScript has received all reports, or the environment ends.
  void drain() {
    if (!wanted) return;
    auto heard = std::make_shared<std::promise<void>>();
    auto done = heard->get_future();
    if (function.NonBlockingCall([heard](Napi::Env, Napi::Function) { heard->set_value(); }) != napi_ok) return;
    while (!*stopping && done.wait_for(std::chrono::milliseconds(10)) != std::future_status::ready) continue;
  }
};

Napi::Value load(const Napi::CallbackInfo &info) {
  auto env = info.Env();
  std::string path = info[0].As<Napi::String>();
  auto options = info[1].As<Napi::Object>();
  auto flag = [&](const char *name) { return options.Get(name).As<Napi::Boolean>().Value(); };
  auto params = llama_model_default_params();
  params.n_gpu_layers = options.Get("gpuLayers").As<Napi::Number>().Int32Value();
  if (flag("mmap")) params.load_mode = flag("mlock") ? LLAMA_LOAD_MODE_MMAP_MLOCK : LLAMA_LOAD_MODE_MMAP;
  else params.load_mode = flag("mlock") ? LLAMA_LOAD_MODE_MLOCK : LLAMA_LOAD_MODE_NONE;
  params.vocab_only = flag("vocabOnly");
  params.check_tensors = flag("checkTensors");
  bool hostOnly = flag("hostOnly");

  auto progress = std::make_shared<Progress>();
  progress->stopping = live(env).stopping;
  if (info[2].IsFunction()) {
    progress->function = Napi::ThreadSafeFunction::New(env, info[2].As<Napi::Function>(), "kvfold load progress", 0, 1);
    progress->wanted = true;
  }
  auto loaded = std::make_shared<ModelHandle>();
  return Task::run(
      env,
      [=]() mutable {
        params.progress_callback_user_data = progress.get();
        params.progress_callback = [](float value, void *data) { return static_cast<Progress *>(data)->report(value); };
        // A list of devices that contains only its end mark, so that llama.cpp uses no GPU. Without a list it uses every GPU.
        ggml_backend_dev_t none = nullptr;
        if (hostOnly) params.devices = &none;
        Log log;
        loaded->model = llama_model_load_from_file(path.c_str(), params);
        progress->drain();
        progress.reset();
        if (loaded->model == nullptr) throw Failure("model/bad-file", "llama.cpp cannot load " + path + log.why());
        loaded->vocab = llama_model_get_vocab(loaded->model);
      },
      [loaded](Napi::Env env) { return boxed(env, loaded); });
}

Napi::Value release(const Napi::CallbackInfo &info) {
  auto model = unboxed<ModelHandle>(info[0]);
  return Task::run(info.Env(), [model] { model->free(); }, [](Napi::Env env) { return env.Undefined(); });
}

Napi::Value describe(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto env = info.Env();
    auto handle = modelOf(info[0]);
    auto *model = handle->model;
    auto out = Napi::Object::New(env);
    auto number = [&](const char *name, double value) { out.Set(name, Napi::Number::New(env, value)); };
    out.Set("description", text([&](char *buffer, size_t size) { return llama_model_desc(model, buffer, size); }));
    number("parameters", llama_model_n_params(model));
    number("size", llama_model_size(model));
    number("layers", llama_model_n_layer(model));
    number("embedding", llama_model_n_embd(model));
    // llama.cpp ends the process if it is asked for the heads of a model without layers, such as one loaded with vocabOnly.
    bool layered = llama_model_n_layer(model) > 0;
    number("heads", layered ? llama_model_n_head(model) : 0);
    number("kvHeads", layered ? llama_model_n_head_kv(model) : 0);
    number("trainedContext", llama_model_n_ctx_train(model));
    number("slidingWindow", llama_model_n_swa(model));
    out.Set("vocabType", vocabTypeName(llama_vocab_type(handle->vocab)));
    out.Set("rope", ropeName(llama_model_rope_type(model)));
    out.Set("recurrent", llama_model_is_recurrent(model));
    out.Set("hybrid", llama_model_is_hybrid(model));
    // True for models that do not generate token by token over a KV cache: they only encode, or generate all tokens at once.
    out.Set("encoder", llama_model_has_encoder(model) || !llama_model_has_decoder(model) || llama_model_is_diffusion(model));
    auto metadata = Napi::Object::New(env);
    for (int32_t i = 0; i < llama_model_meta_count(model); i++)
      metadata.Set(text([&](char *b, size_t n) { return llama_model_meta_key_by_index(model, i, b, n); }),
                   text([&](char *b, size_t n) { return llama_model_meta_val_str_by_index(model, i, b, n); }));
    out.Set("metadata", metadata);
    const char *chatTemplate = llama_model_chat_template(model, nullptr);
    out.Set("chatTemplate", chatTemplate == nullptr ? env.Null() : Napi::Value(Napi::String::New(env, chatTemplate)));
    return out;
  });
}

}  // namespace

void exportModel(Napi::Env env, Napi::Object exports) {
  exports.Set("modelLoad", Napi::Function::New(env, load));
  exports.Set("modelFree", Napi::Function::New(env, release));
  exports.Set("modelDescribe", Napi::Function::New(env, describe));
}

}  // namespace kvfold
