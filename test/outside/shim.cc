// Preloaded under a program that uses llama.cpp: passes every call on and writes down what it did to the cache, a line a call, into the file
// named by KVFOLD_OUTSIDE_LOG. Pointers name contexts and memories. Tokens that a decode left behind are told by the highest position of
// each of its sequences, states by a hash of their bytes.
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>

#include "llama.h"

namespace {

// llama.cpp's own calls of its interface are part of the outer one.
thread_local int depth = 0;
struct Inside {
  const bool outermost = depth++ == 0;
  ~Inside() { depth--; }
};

void *library() {
  static void *handle = [] {
    std::string path;
    dl_iterate_phdr(
        [](dl_phdr_info *info, size_t, void *found) {
          const char *slash = std::strrchr(info->dlpi_name, '/');
          const char *name = slash == nullptr ? info->dlpi_name : slash + 1;
          if (std::strncmp(name, "libllama.", 9) != 0) return 0;
          *static_cast<std::string *>(found) = info->dlpi_name;
          return 1;
        },
        &path);
    return path.empty() ? nullptr : dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  }();
  return handle;
}

template <typename Function>
Function real(Function, const char *name) {
  void *found = library() == nullptr ? nullptr : dlsym(library(), name);
  if (found == nullptr) {
    std::fprintf(stderr, "outside shim: %s is not in libllama\n", name);
    std::abort();
  }
  return reinterpret_cast<Function>(found);
}

#define REAL(name) \
  static auto *const actual = real(&name, #name)

// One write a line, so that a killed program leaves whole lines.
void say(const std::string &line) {
  static std::mutex mutex;
  static int file = [] {
    const char *path = std::getenv("KVFOLD_OUTSIDE_LOG");
    return path == nullptr ? -1 : open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  }();
  if (file < 0) return;
  std::lock_guard<std::mutex> lock(mutex);
  const std::string whole = line + "\n";
  for (size_t at = 0; at < whole.size();) {
    ssize_t written = write(file, whole.data() + at, whole.size() - at);
    if (written <= 0) std::abort();
    at += written;
  }
}

std::string at(const void *pointer) {
  char text[32];
  std::snprintf(text, sizeof text, "%" PRIxPTR, reinterpret_cast<uintptr_t>(pointer));
  return text;
}

std::string hash(const uint8_t *bytes, size_t size) {
  uint64_t value = 14695981039346656037ull;
  for (size_t i = 0; i < size; i++) value = (value ^ bytes[i]) * 1099511628211ull;
  char text[32];
  std::snprintf(text, sizeof text, "%016" PRIx64, value);
  return text;
}

std::string num(int64_t value) { return std::to_string(value); }

}  // namespace

extern "C" {

llama_context *llama_init_from_model(llama_model *model, llama_context_params params) {
  REAL(llama_init_from_model);
  Inside inside;
  auto *context = actual(model, params);
  if (inside.outermost && context != nullptr)
    say("N " + at(context) + " " + at(llama_get_memory(context)) + " " + num(llama_n_ctx(context)) + " " + num(llama_n_seq_max(context)));
  return context;
}

void llama_free(llama_context *context) {
  REAL(llama_free);
  Inside inside;
  if (inside.outermost) say("F " + at(context));
  actual(context);
}

int32_t llama_decode(llama_context *context, llama_batch batch) {
  REAL(llama_decode);
  Inside inside;
  // Written before it runs, too: a program that dies in here leaves its last batch.
  int32_t result;
  std::string rows;
  std::set<llama_seq_id> sequences;
  if (inside.outermost) {
    for (int32_t i = 0; i < batch.n_tokens; i++) {
      rows += " " + num(batch.token == nullptr ? -1 : batch.token[i]) + "," + num(batch.pos == nullptr ? -1 : batch.pos[i]) + ",";
      for (int32_t j = 0; j < batch.n_seq_id[i]; j++) {
        rows += (j == 0 ? "" : "+") + num(batch.seq_id[i][j]);
        sequences.insert(batch.seq_id[i][j]);
      }
      rows += batch.logits != nullptr && batch.logits[i] != 0 ? ",1" : ",0";
    }
    say("D " + at(context) + " " + num(batch.n_tokens) + rows);
  }
  auto finish = [&](const std::string &how) {
    if (!inside.outermost) return;
    std::string ends;
    for (auto seq : sequences) ends += " " + num(seq) + ":" + num(llama_memory_seq_pos_max(llama_get_memory(context), seq));
    say("E " + at(context) + " " + how + ends);
  };
  try {
    result = actual(context, batch);
  } catch (...) {
    finish("-99");
    throw;
  }
  finish(num(result));
  return result;
}

void llama_memory_clear(llama_memory_t memory, bool data) {
  REAL(llama_memory_clear);
  Inside inside;
  actual(memory, data);
  if (inside.outermost) say("K " + at(memory));
}

bool llama_memory_seq_rm(llama_memory_t memory, llama_seq_id seq, llama_pos p0, llama_pos p1) {
  REAL(llama_memory_seq_rm);
  Inside inside;
  const bool done = actual(memory, seq, p0, p1);
  if (inside.outermost) say("R " + at(memory) + " " + num(seq) + " " + num(p0) + " " + num(p1) + " " + num(done));
  return done;
}

void llama_memory_seq_cp(llama_memory_t memory, llama_seq_id from, llama_seq_id to, llama_pos p0, llama_pos p1) {
  REAL(llama_memory_seq_cp);
  Inside inside;
  actual(memory, from, to, p0, p1);
  if (inside.outermost) say("C " + at(memory) + " " + num(from) + " " + num(to) + " " + num(p0) + " " + num(p1));
}

void llama_memory_seq_keep(llama_memory_t memory, llama_seq_id seq) {
  REAL(llama_memory_seq_keep);
  Inside inside;
  actual(memory, seq);
  if (inside.outermost) say("U llama_memory_seq_keep");
}

void llama_memory_seq_add(llama_memory_t memory, llama_seq_id seq, llama_pos p0, llama_pos p1, llama_pos delta) {
  REAL(llama_memory_seq_add);
  Inside inside;
  actual(memory, seq, p0, p1, delta);
  if (inside.outermost) say("A " + at(memory) + " " + num(seq) + " " + num(p0) + " " + num(p1) + " " + num(delta));
}

void llama_memory_seq_div(llama_memory_t memory, llama_seq_id seq, llama_pos p0, llama_pos p1, int d) {
  REAL(llama_memory_seq_div);
  Inside inside;
  actual(memory, seq, p0, p1, d);
  if (inside.outermost) say("U llama_memory_seq_div");
}

size_t llama_state_set_data(llama_context *context, const uint8_t *bytes, size_t size) {
  REAL(llama_state_set_data);
  Inside inside;
  if (inside.outermost) say("U llama_state_set_data");
  return actual(context, bytes, size);
}

// Single sequences; -1 is the readback of all cells.
static void saved(llama_context *context, llama_seq_id seq, const uint8_t *bytes, size_t size) {
  if (seq >= 0) say("S " + at(context) + " " + num(seq) + " " + num(size) + " " + hash(bytes, size));
}

size_t llama_state_seq_get_data(llama_context *context, uint8_t *bytes, size_t room, llama_seq_id seq) {
  REAL(llama_state_seq_get_data);
  Inside inside;
  const size_t size = actual(context, bytes, room, seq);
  if (inside.outermost) saved(context, seq, bytes, size);
  return size;
}

size_t llama_state_seq_get_data_ext(llama_context *context, uint8_t *bytes, size_t room, llama_seq_id seq, llama_state_seq_flags flags) {
  REAL(llama_state_seq_get_data_ext);
  Inside inside;
  const size_t size = actual(context, bytes, room, seq, flags);
  if (inside.outermost) saved(context, seq, bytes, size);
  return size;
}

// A load that fails may throw; it leaves the sequence empty either way.
extern "C++" {
template <typename Load>
size_t loaded(llama_context *context, llama_seq_id seq, const uint8_t *bytes, size_t room, Load load) {
  Inside inside;
  size_t size = 0;
  auto tell = [&] {
    if (inside.outermost)
      say("L " + at(context) + " " + num(seq) + " " + num(size) + " " + hash(bytes, size == 0 ? room : size));
  };
  try {
    size = load();
  } catch (...) {
    tell();
    throw;
  }
  tell();
  return size;
}
}

size_t llama_state_seq_set_data(llama_context *context, const uint8_t *bytes, size_t room, llama_seq_id seq) {
  REAL(llama_state_seq_set_data);
  return loaded(context, seq, bytes, room, [&] { return actual(context, bytes, room, seq); });
}

size_t llama_state_seq_set_data_ext(llama_context *context, const uint8_t *bytes, size_t room, llama_seq_id seq,
                                    llama_state_seq_flags flags) {
  REAL(llama_state_seq_set_data_ext);
  return loaded(context, seq, bytes, room, [&] { return actual(context, bytes, room, seq, flags); });
}
}
