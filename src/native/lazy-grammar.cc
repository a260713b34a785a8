#include "lazy-grammar.h"

#include <algorithm>
#include <cmath>

namespace kvfold {

bool allows(llama_sampler *grammar, llama_token token) {
  llama_token_data candidate{token, 1.0f, 0.0f};
  llama_token_data_array array{&candidate, 1, -1, false};
  llama_sampler_apply(grammar, &array);
  return std::isfinite(candidate.logit);
}

LazyGrammar::LazyGrammar(ModelHandle &model, llama_sampler *pristine, const Napi::Object &options)
    : model(model), pristine(pristine), opened(options.Get("opened").As<Napi::String>()) {
  auto longer = [&](const std::string &tag) { longest = std::max(longest, tag.size()); };
  auto listed = options.Get("triggers").As<Napi::Array>();
  for (uint32_t i = 0; i < listed.Length(); i++) longer(triggers.emplace_back(listed.Get(i).As<Napi::String>().Utf8Value()));
  auto tags = options.Get("reasoning").As<Napi::Array>();
  for (uint32_t i = 0; i < tags.Length(); i++) {
    auto pair = tags.Get(i).As<Napi::Object>();
    reasoning.emplace_back(pair.Get("open").As<Napi::String>().Utf8Value(), pair.Get("close").As<Napi::String>().Utf8Value());
    longer(reasoning.back().first);
  }
}

LazyGrammar::~LazyGrammar() { llama_sampler_free(pristine); }

llama_sampler *LazyGrammar::begin() {
  state = State();
  if (!advance(state, opened)) return nullptr;
  auto *grammar = woken(state.tail);
  if (grammar == nullptr) throw Failure("engine/bad-grammar", "The grammar does not begin with what the prompt ends with.");
  return grammar;
}

bool LazyGrammar::permits(llama_token token) const {
  if (llama_vocab_is_eog(model.vocab, token)) return true;
  State next = state;
  if (!advance(next, pieceOf(model.vocab, token))) return true;
  auto *grammar = woken(next.tail);
  if (grammar == nullptr) return false;
  llama_sampler_free(grammar);
  return true;
}

llama_sampler *LazyGrammar::take(llama_token token) {
  if (llama_vocab_is_eog(model.vocab, token) || !advance(state, pieceOf(model.vocab, token))) return nullptr;
  return woken(state.tail);
}

bool LazyGrammar::advance(State &state, const std::string &text) const {
  state.tail += text;
  for (;;) {
    if (!state.closing.empty()) {
      size_t end = state.tail.find(state.closing);
      if (end == std::string::npos) {
        size_t keep = std::min(state.tail.size(), state.closing.size() - 1);
        state.tail.erase(0, state.tail.size() - keep);
        return false;
      }
      state.tail.erase(0, end + state.closing.size());
      state.closing.clear();
    }
    size_t trigger = std::string::npos, open = std::string::npos;
    for (auto &tag : triggers) trigger = std::min(trigger, state.tail.find(tag));
    const std::pair<std::string, std::string> *opening = nullptr;
    for (auto &tags : reasoning) {
      size_t at = state.tail.find(tags.first);
      if (at < open) opening = &tags, open = at;
    }
    if (trigger != std::string::npos && trigger <= open) {
      state.tail.erase(0, trigger);
      return true;
    }
    if (opening == nullptr) {
      size_t keep = std::min(state.tail.size(), longest - 1);
      state.tail.erase(0, state.tail.size() - keep);
      return false;
    }
    state.tail.erase(0, open + opening->first.size());
    state.closing = opening->second;
  }
}

llama_sampler *LazyGrammar::woken(const std::string &text) const {
  auto *grammar = llama_sampler_clone(pristine);
  // A grammar knows characters only, so any tokens will do that make up the text.
  for (size_t at = 0; at < text.size();) {
    llama_token token = LLAMA_TOKEN_NULL;
    size_t length = std::min(text.size() - at, size_t(16));
    for (; length > 0 && token == LLAMA_TOKEN_NULL; length--) {
      auto found = model.pieces().find(text.substr(at, length));
      if (found != model.pieces().end()) {
        token = found->second;
        break;
      }
    }
    if (token == LLAMA_TOKEN_NULL || !allows(grammar, token)) {
      llama_sampler_free(grammar);
      return nullptr;
    }
    llama_sampler_accept(grammar, token);
    at += length;
  }
  return grammar;
}

}  // namespace kvfold
