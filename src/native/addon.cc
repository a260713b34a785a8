// The addon's entry: what it exports, llama.cpp's log, and what the library says of itself.
#include <algorithm>
#include <deque>
#include <mutex>

#include "kvfold.h"

namespace kvfold {
namespace {

std::mutex logMutex;
std::deque<std::string> logLines;
constexpr size_t LOG_LINES = 4;

void keep(ggml_log_level level, const char *text, void *) {
  if (level != GGML_LOG_LEVEL_ERROR && level != GGML_LOG_LEVEL_WARN) return;
  std::string line(text);
  line.erase(std::remove(line.begin(), line.end(), '\n'), line.end());
  if (line.empty()) return;
  std::lock_guard<std::mutex> lock(logMutex);
  logLines.push_back(line);
  if (logLines.size() > LOG_LINES) logLines.pop_front();
}

Napi::Value start(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    llama_log_set(keep, nullptr);
    llama_backend_init();
    return info.Env().Undefined();
  });
}

Napi::Value about(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto env = info.Env();
    auto out = Napi::Object::New(env);
    out.Set("version", llama_version());
    out.Set("systemInfo", llama_print_system_info());
    out.Set("maxSequences", static_cast<double>(llama_max_parallel_sequences()));
    auto devices = Napi::Array::New(env);
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
      auto *device = ggml_backend_dev_get(i);
      size_t free = 0, total = 0;
      ggml_backend_dev_memory(device, &free, &total);
      auto entry = Napi::Object::New(env);
      entry.Set("name", ggml_backend_dev_name(device));
      entry.Set("description", ggml_backend_dev_description(device));
      entry.Set("gpu", ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_GPU);
      entry.Set("free", static_cast<double>(free));
      entry.Set("total", static_cast<double>(total));
      devices.Set(i, entry);
    }
    out.Set("devices", devices);
    return out;
  });
}

}  // namespace

std::string takeLog() {
  std::lock_guard<std::mutex> lock(logMutex);
  std::string out;
  for (auto &line : logLines) out += (out.empty() ? "" : "; ") + line;
  logLines.clear();
  return out;
}

}  // namespace kvfold

Napi::Object init(Napi::Env env, Napi::Object exports) {
  exports.Set("start", Napi::Function::New(env, kvfold::start));
  exports.Set("about", Napi::Function::New(env, kvfold::about));
  kvfold::exportModel(env, exports);
  kvfold::exportContext(env, exports);
  kvfold::exportSampler(env, exports);
  return exports;
}

NODE_API_MODULE(kvfold, init)
