// llama.cpp's log: lines are kept while a Log lives on the thread that wrote them; all other lines are dropped.
#include <algorithm>

#include "kvfold.h"

namespace kvfold {
namespace {

thread_local Log *listening = nullptr;
constexpr size_t TOLD = 3;

}  // namespace

void keepLog(ggml_log_level level, const char *text, void *) {
  if (listening == nullptr) return;
  std::string line(text);
  line.erase(std::remove(line.begin(), line.end(), '\n'), line.end());
  if (line.empty()) return;
  // llama.cpp logs the continuation of a line separately; append it to the line before.
  if (level == GGML_LOG_LEVEL_CONT && !listening->kept.empty()) listening->kept.back().second += line;
  else listening->kept.emplace_back(level, line);
}

// The callback is set for every Log, because node-llama-cpp may have set its own in the same library.
Log::Log() {
  llama_log_set(keepLog, nullptr);
  listening = this;
}

Log::~Log() { listening = nullptr; }

Silence::Silence() : kept(listening) { listening = nullptr; }

Silence::~Silence() { listening = kept; }

std::string Log::why() const {
  for (auto wanted : {GGML_LOG_LEVEL_ERROR, GGML_LOG_LEVEL_WARN}) {
    std::vector<std::string> told;
    for (auto &[level, line] : kept)
      if (level == wanted && std::find(told.begin(), told.end(), line) == told.end()) told.push_back(line);
    if (told.size() > TOLD) told.erase(told.begin(), told.end() - TOLD);
    std::string all;
    for (auto &line : told) all += (all.empty() ? ": " : "; ") + line;
    if (!all.empty()) return all + ".";
  }
  return ".";
}

std::vector<std::string> Log::lines(const std::string &part) const {
  std::vector<std::string> found;
  for (auto &[level, line] : kept)
    if (line.find(part) != std::string::npos) found.push_back(line);
  return found;
}

}  // namespace kvfold
