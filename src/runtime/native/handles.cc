// Lifetimes of native objects: which object keeps which alive, and how they are freed when an environment ends. Also turns exceptions into
// error messages.
#include <algorithm>

#include "answer-limits.h"
#include "grammar.h"
#include "lazy-grammar.h"
#include "reasoning-budget.h"
#include "tap.h"

namespace kvfold {

void ModelHandle::free() {
  std::unique_lock<std::shared_mutex> lock(reading);
  if (model != nullptr) llama_model_free(model);
  model = nullptr;
  vocab = nullptr;
}

std::string pieceOf(const llama_vocab *vocab, llama_token token) {
  std::string piece(64, 0);
  int32_t size = llama_token_to_piece(vocab, token, piece.data(), piece.size(), 0, true);
  if (size < 0) {
    piece.resize(-size);
    size = llama_token_to_piece(vocab, token, piece.data(), piece.size(), 0, true);
  }
  piece.resize(std::max(size, 0));
  return piece;
}

const Pieces &ModelHandle::pieces() {
  std::call_once(listed, [&] {
    auto &[texts, ends, order, shared, own, tails, longest] = listing;
    for (llama_token token = 0; token < llama_vocab_n_tokens(vocab); token++) {
      auto &text = texts.emplace_back(pieceOf(vocab, token));
      ends.push_back(llama_vocab_is_eog(vocab, token));
      longest = std::max(longest, text.size());
      if (!ends.back() && !text.empty() && text[0] != '\0') order.push_back(token);
    }
    std::sort(order.begin(), order.end(), [&](llama_token a, llama_token b) { return texts[a] < texts[b]; });
    for (size_t i = 0; i < order.size(); i++) {
      auto &text = texts[order[i]], &before = texts[order[i == 0 ? 0 : i - 1]];
      size_t same = 0;
      while (i > 0 && same < std::min(text.size(), before.size()) && text[same] == before[same]) same++;
      shared.push_back(same);
      own.push_back(text.size() - same);
      tails += text.substr(same);
    }
  });
  return listing;
}

ContextHandle::ContextHandle() = default;

ContextHandle::~ContextHandle() { free(); }

void ContextHandle::free() {
  abort = true;
  std::lock_guard<std::mutex> lock(running);
  if (context != nullptr) llama_free(context);
  context = nullptr;
  outputs.clear();
}

SamplerHandle::SamplerHandle() = default;

SamplerHandle::~SamplerHandle() { free(); }

void SamplerHandle::free() {
  std::lock_guard<std::mutex> lock(mutex);
  lazy.reset();
  grammar.reset();
  limits.reset();
  seeing.clear();
  if (chain != nullptr) llama_sampler_free(chain);
  chain = nullptr;
}

void Live::freeAll() {
  *stopping = true;
  for (auto &entry : contexts)
    if (auto context = entry.lock()) context->abort = true;
  for (auto &entry : contexts)
    if (auto context = entry.lock()) context->free();
  for (auto &entry : samplers)
    if (auto sampler = entry.lock()) sampler->free();
  for (auto &entry : models)
    if (auto model = entry.lock()) model->free();
}

Live &live(Napi::Env env) { return *env.GetInstanceData<Live>(); }

std::string currentFailure() {
  try {
    throw;
  } catch (const Failure &failure) {
    return failure.code + "\n" + failure.message;
  } catch (const std::bad_alloc &) {
    return "memory/insufficient\nThe system has not enough memory for this call; close other programs or ask for less.";
  } catch (const std::exception &error) {
    return std::string("native/failed\nllama.cpp failed: ") + error.what();
  } catch (...) {
    return "native/failed\nllama.cpp failed without saying why.";
  }
}

std::shared_ptr<ModelHandle> modelOf(const Napi::Value &value) {
  auto handle = unboxed<ModelHandle>(value);
  if (handle->model == nullptr) throw Failure("native/disposed", "The model was disposed; load it again.");
  return handle;
}

std::shared_ptr<ContextHandle> contextOf(const Napi::Value &value) {
  auto handle = unboxed<ContextHandle>(value);
  if (handle->context == nullptr) throw Failure("native/disposed", "The context was disposed; create another.");
  return handle;
}

std::shared_ptr<SamplerHandle> samplerOf(const Napi::Value &value) {
  auto handle = unboxed<SamplerHandle>(value);
  if (handle->chain == nullptr || handle->model->model == nullptr)
    throw Failure("native/disposed", "The sampler was disposed; create another.");
  return handle;
}

}  // namespace kvfold
