// Limits of an answer: forbidden words, the only tokens that it may have, the fewest tokens, and further tokens that end it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kvfold.h"

namespace kvfold {

// Forbidden words, prepared for one vocabulary.
struct BadWords {
  // Finds the tokens that contain a word. It reads every token's text, so call it on another thread. Throws native/disposed if the model
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
  // Starts a new answer: forgets the tokens so far.
  void begin();
  // Bans tokens that may not come next; `candidates` has every token at the index of its id. End tokens stay if the grammar allows nothing
  // else. Throws engine/bad-request if no token is left.
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
  // The vocabulary's end tokens; empty if neither `ignoreEnd` nor `minTokens` ever bans them.
  std::vector<llama_token> ends;
  // For each token: 1 if it is one of `allowedTokens`. Empty if all tokens are allowed.
  std::vector<uint8_t> only;

  int32_t taken = 0;
  // The last bytes of the answer, in which a forbidden word may have begun.
  std::string tail;
};

}  // namespace kvfold
