// Host memory for saved sequences. It is pinned if the GPU's backend offers that, is never zeroed, and is reused for later states.
#include <algorithm>
#include <cstdlib>
#include <system_error>
#include <thread>

#include "kvfold.h"

namespace kvfold {
namespace {

// Smaller blocks are not kept for reuse, because the system's allocator is fast for them.
constexpr size_t SMALLEST_KEPT = 1 << 20;
// The size of a kept block is a multiple of this many bytes. So a state can reuse the block of a state of similar length.
constexpr size_t UNIT = 2 << 20;
// The most bytes of unused blocks that are kept for later states.
constexpr size_t MOST_FREE = size_t{2} << 30;
// The most bytes that are pinned at a time. The system cannot use pinned memory for anything else.
constexpr size_t MOST_PINNED = size_t{8} << 30;

struct Pool {
  std::mutex mutex;
  std::vector<HostBlock> free;
  size_t freeBytes = 0;
  size_t pinnedBytes = 0;
};

// Never destroyed, because states may be freed after the backends are unloaded.
Pool &pool() {
  static auto *made = new Pool();
  return *made;
}

// Returns the buffer type for pinned memory of the first GPU; null if there is no GPU, or if its backend offers none.
ggml_backend_buffer_type_t pinnedType() {
  static ggml_backend_buffer_type_t type = [] {
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
      auto *device = ggml_backend_dev_get(i);
      auto kind = ggml_backend_dev_type(device);
      if (kind == GGML_BACKEND_DEVICE_TYPE_GPU || kind == GGML_BACKEND_DEVICE_TYPE_IGPU) return ggml_backend_dev_host_buffer_type(device);
    }
    return static_cast<ggml_backend_buffer_type_t>(nullptr);
  }();
  return type;
}

HostBlock made(size_t size) {
  HostBlock block;
  block.size = size;
  if (size >= SMALLEST_KEPT) {
    Silence silence;
    bool allowed = false;
    {
      std::lock_guard<std::mutex> lock(pool().mutex);
      allowed = pinnedType() != nullptr && pool().pinnedBytes + size <= MOST_PINNED;
      if (allowed) pool().pinnedBytes += size;
    }
    if (allowed) block.pinned = ggml_backend_buft_alloc_buffer(pinnedType(), size);
    if (block.pinned != nullptr) {
      block.data = static_cast<uint8_t *>(ggml_backend_buffer_get_base(block.pinned));
      return block;
    }
    if (allowed) {
      std::lock_guard<std::mutex> lock(pool().mutex);
      pool().pinnedBytes -= size;
    }
    block.data = static_cast<uint8_t *>(std::aligned_alloc(UNIT, size));
  } else {
    block.data = static_cast<uint8_t *>(std::malloc(std::max<size_t>(size, 1)));
  }
  if (block.data == nullptr) throw std::bad_alloc();
  return block;
}

void release(const HostBlock &block) {
  if (block.pinned == nullptr) std::free(block.data);
  else ggml_backend_buffer_free(block.pinned);
}

}  // namespace

HostBlock takeBlock(size_t size) {
  if (size < SMALLEST_KEPT) return made(size);
  size_t rounded = (size + UNIT - 1) / UNIT * UNIT;
  {
    std::lock_guard<std::mutex> lock(pool().mutex);
    auto &free = pool().free;
    auto best = free.end();
    for (auto each = free.begin(); each != free.end(); each++)
      if (each->size >= size && each->size <= 2 * rounded && (best == free.end() || each->size < best->size)) best = each;
    if (best != free.end()) {
      auto block = *best;
      pool().freeBytes -= block.size;
      free.erase(best);
      return block;
    }
  }
  return made(rounded);
}

void giveBlock(const HostBlock &block) {
  std::vector<HostBlock> released;
  {
    std::lock_guard<std::mutex> lock(pool().mutex);
    auto &free = pool().free;
    if (block.size < SMALLEST_KEPT || block.size > MOST_FREE) released.push_back(block);
    else {
      free.push_back(block);
      pool().freeBytes += block.size;
    }
    // The oldest free blocks are at the front. Release them until the limit holds.
    while (pool().freeBytes > MOST_FREE) {
      pool().freeBytes -= free.front().size;
      released.push_back(free.front());
      free.erase(free.begin());
    }
    for (auto &each : released)
      if (each.pinned != nullptr) pool().pinnedBytes -= each.size;
  }
  if (released.empty()) return;
  auto releaseAll = [released] {
    for (auto &each : released) release(each);
  };
  // The system needs a tenth of a second to take back a GiB, and JavaScript gives blocks back on the event loop. So large blocks are freed
  // on another thread.
  try {
    if (block.size < SMALLEST_KEPT) releaseAll();
    else std::thread(releaseAll).detach();
  } catch (const std::system_error &) {
    releaseAll();
  }
}

namespace {

// Makes a Uint8Array of `what`, an ArrayBuffer or a number of bytes. In Node 20 an array has at most 4 GiB. For more, JavaScript's
// constructor throws, while N-API's function would end the process.
Napi::Uint8Array bytes(Napi::Env env, Napi::Value what, size_t size) {
  try {
    return env.Global().Get("Uint8Array").As<Napi::Function>().New({what}).As<Napi::Uint8Array>();
  } catch (const Napi::Error &) {
    throw Failure("memory/insufficient", "A saved sequence of " + std::to_string(size) +
                                             " bytes is longer than this version of Node.js allows; use a newer version, or shorter contexts.");
  }
}

}  // namespace

Napi::Value bytesOf(Napi::Env env, const HostBlock &block, size_t size) {
  auto *kept = new HostBlock(block);
  auto give = [](napi_env, void *, void *hint) {
    auto *block = static_cast<HostBlock *>(hint);
    giveBlock(*block);
    delete block;
  };
  napi_value buffer;
  if (napi_create_external_arraybuffer(env, block.data, size, give, kept, &buffer) == napi_ok)
    return bytes(env, Napi::Value(env, buffer), size);
  // Some programs that embed Node forbid arrays over memory that Node did not allocate. Then copy the bytes.
  try {
    auto copy = bytes(env, Napi::Number::New(env, static_cast<double>(size)), size);
    std::copy_n(block.data, size, copy.Data());
    give(env, nullptr, kept);
    return copy;
  } catch (...) {
    give(env, nullptr, kept);
    throw;
  }
}

}  // namespace kvfold
