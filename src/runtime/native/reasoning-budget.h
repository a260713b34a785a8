// Limits the tokens of an answer's reasoning. When they are used up, the tokens that close the reasoning are written instead of the model's
// choice.
#pragma once

#include <string>
#include <vector>

#include "kvfold.h"

namespace kvfold {

class ReasoningBudget {
 public:
  explicit ReasoningBudget(const Napi::Object &options);
  // Resets the state for a new answer.
  void begin();
  // The token that must be written next; LLAMA_TOKEN_NULL if the model may choose.
  llama_token due();
  // Counts the next token of the answer. `opens`: whether a tag in it may open reasoning; inside a tool call it may not.
  void take(llama_token token, const std::string &piece, bool opens = true);
  // Sets the rest of the budget to 0: open reasoning is closed next, and later reasoning as soon as it begins.
  void end() { left = 0; }
  // Drops the budget for the rest of the answer, because the token that is due cannot be written here.
  void giveUp() { state = State::over; }

 private:
  enum class State { outside, inside, closing, over };
  // Whether the text ends within a character or within the closing tag, which the model may still complete.
  bool isBetween() const;

  int32_t budget;
  std::string open, close;
  // Whether the prompt has opened the reasoning.
  bool opened;
  // Whether the opening tag has a meaning only before any other text.
  bool isFirst;
  // The tokens that are written to close the reasoning.
  std::vector<llama_token> forced;

  State state = State::outside;
  // How many tokens of reasoning the rest of the answer may have, in all its reasoning blocks together.
  int32_t left = 0;
  // How many tokens the model has written beyond the budget, to complete a character or the closing tag.
  int32_t late = 0;
  // How many of `forced` have been written.
  size_t written = 0;
  // The last bytes of the answer, in which a tag may have begun.
  std::string tail;
};

}  // namespace kvfold
