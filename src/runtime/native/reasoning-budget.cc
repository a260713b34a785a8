#include "reasoning-budget.h"

#include <algorithm>

namespace kvfold {
namespace {

// How many tokens the model may write beyond the budget, to complete a character or the closing tag. A character has four bytes at most; a
// closing tag that is not one token has a few tokens.
constexpr int32_t LATEST = 8;

// Whether the text ends within a UTF-8 character.
bool endsWithinCharacter(const std::string &text) {
  for (size_t back = 1; back <= std::min(text.size(), size_t(3)); back++) {
    auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if (byte < 0x80) return false;
    if (byte >= 0xc0) return back < (byte >= 0xf0 ? 4u : byte >= 0xe0 ? 3u : 2u);
  }
  return false;
}

}  // namespace

ReasoningBudget::ReasoningBudget(const Napi::Object &options)
    : budget(options.Get("tokens").As<Napi::Number>()),
      open(options.Get("open").As<Napi::String>()),
      close(options.Get("close").As<Napi::String>()),
      opened(options.Get("opened").As<Napi::Boolean>()),
      isFirst(options.Get("isFirst").ToBoolean()) {
  auto tokens = options.Get("forced").As<Napi::Int32Array>();
  forced.assign(tokens.Data(), tokens.Data() + tokens.ElementLength());
  begin();
}

void ReasoningBudget::begin() {
  state = opened ? State::inside : State::outside;
  left = budget;
  late = 0;
  written = 0;
  tail.clear();
}

llama_token ReasoningBudget::due() {
  if (state == State::inside && left <= 0 && !(isBetween() && late++ < LATEST)) {
    state = State::closing;
    written = 0;
  }
  return state == State::closing ? forced[written] : LLAMA_TOKEN_NULL;
}

bool ReasoningBudget::isBetween() const {
  if (endsWithinCharacter(tail)) return true;
  for (size_t length = std::min(tail.size(), close.size() - 1); length > 0; length--)
    if (tail.compare(tail.size() - length, length, close, 0, length) == 0) return true;
  return false;
}

void ReasoningBudget::take(llama_token token, const std::string &piece, bool opens) {
  if (state == State::over) return;
  if (state == State::closing) {
    if (token == forced[written] && ++written < forced.size()) return;
    state = State::outside;
    tail.clear();
    return;
  }
  if (state == State::inside) left--;
  else if (!opens) {
    if (isFirst) state = State::over;
    tail.clear();
    return;
  }
  tail += piece;
  for (;;) {
    auto &tag = state == State::inside ? close : open;
    size_t at = tail.find(tag);
    size_t kept = std::max(tag.size() - 1, size_t(3));
    size_t before = at == std::string::npos ? tail.size() - std::min(tail.size(), kept) : at;
    if (state == State::outside && isFirst && !isBlank(tail, before)) {
      state = State::over;
      return;
    }
    if (at == std::string::npos) {
      tail.erase(0, before);
      return;
    }
    tail.erase(0, at + tag.size());
    state = state == State::inside ? State::outside : State::inside;
    late = 0;
  }
}

}  // namespace kvfold
