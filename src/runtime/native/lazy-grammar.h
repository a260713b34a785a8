// A lazy grammar: finds the trigger in the text from which on its grammar applies.
//
// A spaced trigger is one in which a space stands for any whitespace that JSON allows, or none.
//
// If a token completes a trigger and has more text behind it, the grammar must allow that text, or the token is refused. Within reasoning,
// triggers have no effect.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "grammar.h"

namespace kvfold {

class LazyGrammar {
 public:
  // The grammar must outlive this object.
  LazyGrammar(ModelHandle &model, Grammar &grammar, const Napi::Object &options);
  LazyGrammar(const LazyGrammar &) = delete;
  // Returns to the beginning. Returns true if the text that the prompt opened completes a trigger.
  bool begin();
  // Whether the token may be written: it completes no trigger, or the grammar allows the trigger that it completes and the text behind it.
  bool permits(llama_token token) const;
  // Takes a token that `permits` allows. Returns true if it completes a trigger. The grammar has then read the text from the trigger on, and
  // applies to all later tokens.
  bool take(llama_token token);

 private:
  struct State {
    // The end of the text that may still be the beginning of a tag.
    std::string tail;
    // The tag that closes the open reasoning; empty if no reasoning is open.
    std::string closing;
  };
  // Continues with a text. Returns true if it has a trigger; then `tail` is the text from the trigger on.
  bool advance(State &state, const std::string &text) const;

  ModelHandle &model;
  Grammar &grammar;
  std::vector<std::string> triggers, spaced;
  std::vector<std::pair<std::string, std::string>> reasoning;
  std::string opened;
  size_t longest = 1;
  State state;
};

}  // namespace kvfold
