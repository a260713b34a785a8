// How long an answer may reason: when its tokens are spent, what closes the reasoning is written in the model's place.
#pragma once

#include <string>
#include <vector>

#include "kvfold.h"

namespace kvfold {

class ReasoningBudget {
 public:
  explicit ReasoningBudget(const Napi::Object &options);
  // From the beginning of an answer.
  void begin();
  // What has to be written next; LLAMA_TOKEN_NULL where the model may go on.
  llama_token due();
  void take(llama_token token, const std::string &piece);
  // What is due cannot be written here: the answer goes on without a budget.
  void giveUp() { state = State::over; }

 private:
  enum class State { outside, inside, closing, over };
  // Whether the text ends within a character or within the closing tag, which the model is let to end.
  bool isBetween() const;

  int32_t budget;
  std::string open, close;
  // The prompt has opened the reasoning.
  bool opened;
  // What closes it, and what must stand behind that.
  std::vector<llama_token> forced;

  State state = State::outside;
  // Tokens of reasoning that the answer may still have, over all its reasonings.
  int32_t left = 0;
  // Tokens that the model was let to write beyond them.
  int32_t late = 0;
  // Of `forced`, those that are written.
  size_t written = 0;
  // The end of the text, as far as a tag may have begun in it.
  std::string tail;
};

}  // namespace kvfold
