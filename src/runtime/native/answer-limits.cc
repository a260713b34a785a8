#include "answer-limits.h"

#include <algorithm>
#include <cmath>

namespace kvfold {
namespace {

std::vector<llama_token> tokensIn(const Napi::Object &options, const char *name) {
  std::vector<llama_token> tokens;
  if (!options.Get(name).IsArray()) return tokens;
  auto list = options.Get(name).As<Napi::Array>();
  for (uint32_t i = 0; i < list.Length(); i++) tokens.push_back(list.Get(i).As<Napi::Number>().Int32Value());
  return tokens;
}

}  // namespace

BadWords::BadWords(ModelHandle &model, std::vector<std::string> given) : words(std::move(given)) {
  std::shared_lock<std::shared_mutex> lock(model.reading);
  if (model.vocab == nullptr) throw Failure("native/disposed", "The model was disposed; load it again.");
  auto &pieces = model.pieces();
  for (auto &word : words) longest = std::max(longest, word.size());
  for (llama_token token : pieces.order) {
    auto &text = pieces.texts[token];
    if (std::any_of(words.begin(), words.end(), [&](auto &word) { return text.find(word) != std::string::npos; })) whole.push_back(token);
  }
}

AnswerLimits::AnswerLimits(ModelHandle &model, const Napi::Object &options, std::shared_ptr<const BadWords> words)
    : model(model), words(std::move(words)), stops(tokensIn(options, "stopTokens")) {
  std::sort(stops.begin(), stops.end());
  if (options.Get("minTokens").IsNumber()) minTokens = options.Get("minTokens").As<Napi::Number>().Int32Value();
  ignoreEnd = options.Get("ignoreEnd").ToBoolean();
  int32_t count = llama_vocab_n_tokens(model.vocab);
  if (ignoreEnd || minTokens > 0)
    for (llama_token token = 0; token < count; token++)
      if (llama_vocab_is_eog(model.vocab, token)) ends.push_back(token);
  if (options.Get("allowedTokens").IsArray()) {
    only.resize(count);
    for (llama_token token : tokensIn(options, "allowedTokens")) only[token] = 1;
  }
}

void AnswerLimits::begin() {
  taken = 0;
  tail.clear();
}

void AnswerLimits::mask(std::vector<llama_token_data> &candidates) const {
  auto ban = [&](llama_token token) { candidates[token].logit = -INFINITY; };
  for (size_t token = 0; token < only.size(); token++)
    if (!only[token]) ban(token);
  if (words != nullptr) {
    auto &pieces = model.pieces();
    for (llama_token token : words->whole) ban(token);
    // If the answer ends with the beginning of a forbidden word, ban all tokens that begin with the rest of the word. These tokens are
    // neighbours in `order`, which is sorted by text.
    for (auto &word : words->words) {
      for (size_t begun = 1; begun < word.size() && begun <= tail.size(); begun++) {
        if (tail.compare(tail.size() - begun, begun, word, 0, begun) != 0) continue;
        auto rest = word.substr(begun);
        auto at = std::lower_bound(pieces.order.begin(), pieces.order.end(), rest,
                                   [&](llama_token token, const std::string &text) { return pieces.texts[token] < text; });
        for (; at != pieces.order.end() && pieces.texts[*at].compare(0, rest.size(), rest) == 0; at++) ban(*at);
      }
    }
  }
  auto isLeft = [](const llama_token_data &candidate) { return candidate.logit > -INFINITY; };
  auto left = [&] { return std::any_of(candidates.begin(), candidates.end(), isLeft); };
  std::vector<std::pair<llama_token, float>> held;
  auto hold = [&](const std::vector<llama_token> &tokens) {
    for (llama_token token : tokens) {
      held.emplace_back(token, candidates[token].logit);
      ban(token);
    }
  };
  if (ignoreEnd || taken < minTokens) hold(ends);
  if (taken < minTokens) hold(stops);
  if (left()) return;
  // Restore the logits in reverse order. A token may be held twice, and its first entry has the original logit.
  for (auto one = held.rbegin(); one != held.rend(); one++) candidates[one->first].logit = one->second;
  if (!left())
    throw Failure("engine/bad-request",
                  "No token is left that the answer may have here: forbidden words, allowed tokens, the logit bias and the grammar exclude all of them. Loosen one of them.");
}

void AnswerLimits::take(llama_token token) {
  taken++;
  if (words == nullptr || model.pieces().ends[token]) return;
  tail += model.pieces().texts[token];
  size_t keep = std::min(tail.size(), words->longest - 1);
  tail.erase(0, tail.size() - keep);
}

bool AnswerLimits::stopsAt(llama_token token) const { return std::binary_search(stops.begin(), stops.end(), token); }

}  // namespace kvfold
