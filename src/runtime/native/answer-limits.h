// Limits of an answer: forbidden words, the only tokens that it may have, and the fewest tokens. Some limits name tokens that end the
// answer, beside the vocabulary's own end tokens.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kvfold.h"

namespace kvfold {

// Words that no answer may contain, prepared for one vocabulary.
struct BadWords {
  // Finds the tokens that contain a word. It looks at every token's text, so call it on another thread. Throws native/disposed if the model
  // was freed.
  BadWords(ModelHandle &model, std::vector<std::string> words);
  std::vector<std::string> words;
  // Tokens whose own text contains a word.
  std::vector<llama_token> whole;
  // Bytes of the longest word.
  size_t longest = 1;
};

class AnswerLimits {
 public:
  // `words` may be null. The model must outlive this object.
  AnswerLimits(ModelHandle &model, const Napi::Object &options, std::shared_ptr<const BadWords> words);
  // Forgets the tokens so far, because a new answer begins.
  void begin();
  // Bans tokens that may not come next; `candidates` has every token at the index of its id. A token that ends the answer stays if the
  // grammar has left no other token. Throws engine/bad-request if no token is left.
  void mask(std::vector<llama_token_data> &candidates) const;
  void take(llama_token token);
  // Whether this token ends the answer because the options name it as a stop token.
  bool stopsAt(llama_token token) const;

 private:
  ModelHandle &model;
  std::shared_ptr<const BadWords> words;
  int32_t minTokens = 0;
  bool ignoreEnd = false;
  // Further tokens that end the answer (option `stopTokens`), sorted.
  std::vector<llama_token> stops;
  // The vocabulary's tokens that end an answer. The list is empty if no limit ever holds them back.
  std::vector<llama_token> ends;
  // For each token: 1 if the answer may have it. Empty if the answer may have all tokens.
  std::vector<uint8_t> only;

  int32_t taken = 0;
  // The last bytes of the text, in which a forbidden word may have begun.
  std::string tail;
};

}  // namespace kvfold
