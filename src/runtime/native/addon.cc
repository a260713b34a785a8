// The addon's entry: its exports, and what the loaded library reports about itself.
#include "kvfold.h"

#include <cstring>

namespace kvfold {

void keepLog(ggml_log_level, const char *, void *);

namespace {

Napi::Value about(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto env = info.Env();
    auto out = Napi::Object::New(env);
    out.Set("version", llama_version());
    out.Set("systemInfo", llama_print_system_info());
    out.Set("maxSequences", static_cast<double>(llama_max_parallel_sequences()));
    // llama.cpp computes on integrated GPUs only if there is no other GPU.
    size_t discrete = 0;
    for (size_t i = 0; i < ggml_backend_dev_count(); i++)
      if (ggml_backend_dev_type(ggml_backend_dev_get(i)) == GGML_BACKEND_DEVICE_TYPE_GPU) discrete++;
    auto devices = Napi::Array::New(env);
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
      auto *device = ggml_backend_dev_get(i);
      size_t free = 0, total = 0;
      ggml_backend_dev_memory(device, &free, &total);
      auto entry = Napi::Object::New(env);
      entry.Set("name", ggml_backend_dev_name(device));
      entry.Set("description", ggml_backend_dev_description(device));
      auto used = discrete > 0 ? GGML_BACKEND_DEVICE_TYPE_GPU : GGML_BACKEND_DEVICE_TYPE_IGPU;
      entry.Set("gpu", ggml_backend_dev_type(device) == used);
      entry.Set("free", static_cast<double>(free));
      entry.Set("total", static_cast<double>(total));
      devices.Set(i, entry);
    }
    out.Set("devices", devices);
    // [bytes, elements] of one block of every tensor type of this release; [0, 0] for a number that is not in use.
    auto types = Napi::Array::New(env);
    for (int type = 0; type < GGML_TYPE_COUNT; type++) {
      auto block = Napi::Array::New(env, 2);
      block.Set(0u, static_cast<double>(ggml_type_size(static_cast<ggml_type>(type))));
      block.Set(1u, static_cast<double>(ggml_blck_size(static_cast<ggml_type>(type))));
      types.Set(type, block);
    }
    out.Set("tensorTypes", types);
    return out;
  });
}

// Replaces a backend by the library in a file; the arguments are (ggml's name of the backend, path). Must be called before the first model
// is loaded: objects of the old backend would lose their code (ggml-backend-reg.cpp).
Napi::Value useLibrary(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto name = info[0].As<Napi::String>().Utf8Value();
    auto path = info[1].As<Napi::String>().Utf8Value();
    auto *before = ggml_backend_reg_by_name(name.c_str());
    // ggml returns null for a library of another interface version, and for one that this processor or this machine's driver cannot run.
    auto *now = ggml_backend_load(path.c_str());
    if (now == nullptr)
      throw Failure("native/library-mismatch", "ggml cannot use the " + name + " library " + path + " on this machine or with this release; run kvfold compile again, or kvfold compile --remove.");
    // If another thread of the process has loaded this library before, `now` equals `before`, and must stay loaded.
    if (before != nullptr && before != now) ggml_backend_unload(before);
    return info.Env().Undefined();
  });
}

// Loads the backends whose libraries are in the folder, the only argument. Of several CPU libraries, ggml picks the best for this processor
// (ggml-backend-reg.cpp).
Napi::Value loadBackends(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    ggml_backend_load_all_from_path(info[0].As<Napi::String>().Utf8Value().c_str());
    return info.Env().Undefined();
  });
}

// Converts tensor data to floats (ggml_type_traits, ggml.h). The arguments are (ggml_type, bytes, count); the bytes are whole blocks with
// `count` numbers in total.
Napi::Value dequantise(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto type = static_cast<ggml_type>(info[0].As<Napi::Number>().Int32Value());
    auto bytes = info[1].As<Napi::Uint8Array>();
    auto count = info[2].As<Napi::Number>().Int64Value();
    auto values = Napi::Float32Array::New(info.Env(), count);
    auto *toFloat = ggml_get_type_traits(type)->to_float;
    if (type == GGML_TYPE_F32)
      std::memcpy(values.Data(), bytes.Data(), count * sizeof(float));
    else if (toFloat)
      toFloat(bytes.Data(), values.Data(), count);
    else
      throw Failure("native/unsupported", std::string("ggml cannot turn numbers of type ") + ggml_type_name(type) + " into floats.");
    return values;
  });
}

Napi::Value shutdown(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    live(info.Env()).freeAll();
    return info.Env().Undefined();
  });
}

}  // namespace
}  // namespace kvfold

Napi::Object init(Napi::Env env, Napi::Object exports) {
  llama_log_set(kvfold::keepLog, nullptr);
  llama_backend_init();
  env.SetInstanceData(new kvfold::Live());
  exports.Set("about", Napi::Function::New(env, kvfold::about));
  exports.Set("loadBackends", Napi::Function::New(env, kvfold::loadBackends));
  exports.Set("useLibrary", Napi::Function::New(env, kvfold::useLibrary));
  exports.Set("dequantise", Napi::Function::New(env, kvfold::dequantise));
  exports.Set("shutdown", Napi::Function::New(env, kvfold::shutdown));
  kvfold::exportModel(env, exports);
  kvfold::exportVocabulary(env, exports);
  kvfold::exportContext(env, exports);
  kvfold::exportRun(env, exports);
  kvfold::exportAdapter(env, exports);
  kvfold::exportMemory(env, exports);
  kvfold::exportSampler(env, exports);
  kvfold::exportCapture(env, exports);
  kvfold::exportDeadline(env, exports);
  return exports;
}

NODE_API_MODULE(kvfold, init)
