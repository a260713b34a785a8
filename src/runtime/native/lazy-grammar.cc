#include "lazy-grammar.h"

#include <algorithm>

namespace kvfold {

// The most characters of whitespace that one space of a spaced trigger surely matches, even if they arrive in several tokens.
constexpr size_t MOST_SPACES = 32;

// Returns the byte index at which a spaced trigger first occurs in the text; npos if it does not occur.
static size_t findSpaced(const std::string &text, const std::string &trigger) {
  for (size_t start = text.find(trigger[0]); start != std::string::npos; start = text.find(trigger[0], start + 1)) {
    size_t at = start, of = 0;
    for (; of < trigger.size(); of++) {
      if (trigger[of] == ' ') {
        while (at < text.size() && isSpace(text[at])) at++;
      } else if (at < text.size() && text[at] == trigger[of]) {
        at++;
      } else {
        break;
      }
    }
    if (of == trigger.size()) return start;
  }
  return std::string::npos;
}

LazyGrammar::LazyGrammar(ModelHandle &model, Grammar &grammar, const Napi::Object &options)
    : model(model), grammar(grammar), opened(options.Get("opened").As<Napi::String>()) {
  auto longer = [&](const std::string &tag) { longest = std::max(longest, tag.size()); };
  auto listed = options.Get("triggers").As<Napi::Array>();
  for (uint32_t i = 0; i < listed.Length(); i++) longer(triggers.emplace_back(listed.Get(i).As<Napi::String>().Utf8Value()));
  if (options.Get("spaced").IsArray()) {
    auto all = options.Get("spaced").As<Napi::Array>();
    for (uint32_t i = 0; i < all.Length(); i++) {
      auto &trigger = spaced.emplace_back(all.Get(i).As<Napi::String>().Utf8Value());
      longest = std::max(longest, trigger.size() + MOST_SPACES * std::count(trigger.begin(), trigger.end(), ' '));
    }
  }
  auto tags = options.Get("reasoning").As<Napi::Array>();
  for (uint32_t i = 0; i < tags.Length(); i++) {
    auto pair = tags.Get(i).As<Napi::Object>();
    reasoning.push_back({pair.Get("open").As<Napi::String>(), pair.Get("close").As<Napi::String>(), pair.Get("isFirst").ToBoolean()});
    longer(reasoning.back().open);
  }
}

bool LazyGrammar::begin() {
  state = State();
  if (!advance(state, opened)) return false;
  if (!grammar.beginsWith(state.tail, true)) throw Failure("engine/bad-grammar", "The prompt ends with the beginning of a call that the grammar does not allow.");
  return true;
}

bool LazyGrammar::permits(llama_token token) const {
  auto &pieces = model.pieces();
  if (pieces.ends[token]) return true;
  State next = state;
  return !advance(next, pieces.texts[token]) || grammar.beginsWith(next.tail, false);
}

bool LazyGrammar::take(llama_token token) {
  auto &pieces = model.pieces();
  return !pieces.ends[token] && advance(state, pieces.texts[token]) && grammar.beginsWith(state.tail, true);
}

void LazyGrammar::State::leave(size_t length) {
  hasText = hasText || !isBlank(tail, length);
  tail.erase(0, length);
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
    for (auto &tag : spaced) trigger = std::min(trigger, findSpaced(state.tail, tag));
    const Tags *opening = nullptr;
    for (auto &tags : reasoning) {
      size_t at = state.tail.find(tags.open);
      if (tags.isFirst && (state.hasText || !isBlank(state.tail, at))) continue;
      if (at < open) opening = &tags, open = at;
    }
    if (trigger != std::string::npos && trigger <= open) {
      state.tail.erase(0, trigger);
      return true;
    }
    if (opening == nullptr) {
      size_t keep = std::min(state.tail.size(), longest - 1);
      state.leave(state.tail.size() - keep);
      return false;
    }
    state.leave(open);
    state.tail.erase(0, opening->open.size());
    state.closing = opening->close;
  }
}

}  // namespace kvfold
