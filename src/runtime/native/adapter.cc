// LoRA adapters: loads them for a model, and sets which of them a context's decodes apply.
#include "kvfold.h"

namespace kvfold {
namespace {

// Loads an adapter; the arguments are (model, path). No context of the model may exist: llama.cpp keeps a list of the model's adapters,
// which decodes read.
Napi::Value load(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto env = info.Env();
    auto made = std::make_shared<AdapterHandle>();
    made->model = modelOf(info[0]);
    std::string path = info[1].As<Napi::String>();
    return Task::run(
        env,
        [made, path] {
          // Keeps the model alive: ModelHandle::free waits for this lock.
          std::shared_lock<std::shared_mutex> lock(made->model->reading);
          if (made->model->model == nullptr) throw Failure("native/disposed", "The model was disposed; load it again.");
          Log log;
          made->adapter = llama_adapter_lora_init(made->model->model, path.c_str());
          if (made->adapter == nullptr) throw Failure("model/bad-file", "llama.cpp cannot load the adapter " + path + log.why());
        },
        [made](Napi::Env env) -> Napi::Value {
          return Napi::External<std::shared_ptr<AdapterHandle>>::New(
              env, new std::shared_ptr<AdapterHandle>(made), [](Napi::Env, std::shared_ptr<AdapterHandle> *box) { delete box; });
        });
  });
}

// Frees an adapter; the argument is (adapter). No context of its model may exist.
Napi::Value release(const Napi::CallbackInfo &info) {
  auto adapter = unboxed<AdapterHandle>(info[0]);
  // If the model was freed before, llama.cpp has freed the adapter with it.
  if (adapter->adapter != nullptr && adapter->model->model != nullptr) llama_adapter_lora_free(adapter->adapter);
  adapter->adapter = nullptr;
  return info.Env().Undefined();
}

// Sets the adapters that the context applies; the arguments are (context, adapters, scales: Float32Array). After a change, the next decode
// builds its graph anew.
Napi::Value use(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto context = contextOf(info[0]);
    auto list = info[1].As<Napi::Array>();
    auto scales = info[2].As<Napi::Float32Array>();
    std::vector<llama_adapter_lora *> adapters;
    for (uint32_t i = 0; i < list.Length(); i++) {
      auto handle = unboxed<AdapterHandle>(list.Get(i));
      if (handle->adapter == nullptr) throw Failure("native/disposed", "The adapter was disposed; load it again.");
      if (handle->model != context->model) throw Failure("native/bad-argument", "The adapter and the context belong to different models.");
      adapters.push_back(handle->adapter);
    }
    std::vector<float> factors(scales.Data(), scales.Data() + scales.ElementLength());
    std::lock_guard<std::mutex> lock(context->running);
    if (llama_set_adapters_lora(context->context, adapters.data(), adapters.size(), factors.data()) != 0)
      throw Failure("native/failed", "llama.cpp refused to apply these adapters.");
    return info.Env().Undefined();
  });
}

}  // namespace

void exportAdapter(Napi::Env env, Napi::Object exports) {
  exports.Set("adapterLoad", Napi::Function::New(env, load));
  exports.Set("adapterFree", Napi::Function::New(env, release));
  exports.Set("useAdapters", Napi::Function::New(env, use));
}

}  // namespace kvfold
