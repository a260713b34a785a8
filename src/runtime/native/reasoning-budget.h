// Bounds the reasoning of an answer. When its tokens are used up, the tokens that close the reasoning are written in place of the model's.
#pragma once

#include <string>
#include <vector>

#include "kvfold.h"

namespace kvfold {

class ReasoningBudget {
 public:
  explicit ReasoningBudget(const Napi::Object &options);
  // Returns to the beginning of an answer.
  void begin();
  // The token that must be written next; LLAMA_TOKEN_NULL if the model may choose.
  llama_token due();
  void take(llama_token token, const std::string &piece);
  // Gives the budget up, because the due token cannot be written here: the answer continues without one.
  void giveUp() { state = State::over; }

 private:
  enum class State { outside, inside, closing, over };
  // Whether the text ends within a character or within the closing tag, which the model may still complete.
  bool isBetween() const;

  int32_t budget;
  std::string open, close;
  // Whether the prompt has opened the reasoning.
  bool opened;
  // The tokens that close the reasoning, and those that must follow.
  std::vector<llama_token> forced;

  State state = State::outside;
  // How many tokens of reasoning the answer may still have, over all its stretches of reasoning.
  int32_t left = 0;
  // How many tokens the model was allowed beyond them.
  int32_t late = 0;
  // How many of `forced` are written.
  size_t written = 0;
  // The end of the text, as long as a tag may have begun in it.
  std::string tail;
};

}  // namespace kvfold
