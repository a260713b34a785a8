// Finds where a grammar wakes that holds only from where one of its triggers stands in what was written.
//
// A token that completes a trigger and goes on behind it is tried before it is accepted, and within reasoning nothing triggers.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "grammar.h"

namespace kvfold {

class LazyGrammar {
 public:
  // The grammar must outlive it.
  LazyGrammar(ModelHandle &model, Grammar &grammar, const Napi::Object &options);
  LazyGrammar(const LazyGrammar &) = delete;
  // From the beginning; true where what the prompt opened wakes the grammar.
  bool begin();
  // Whether the token may be written: it wakes nothing, or the grammar begins with what it completes.
  bool permits(llama_token token) const;
  // Takes a token that is permitted in; true where it wakes the grammar, which goes on behind it.
  bool take(llama_token token);

 private:
  struct State {
    // The end of what was written that may still be part of a tag.
    std::string tail;
    // The tag that ends the reasoning that is open; empty: none is.
    std::string closing;
  };
  // Goes on by a text; true with the text from the trigger on in `tail` when there is one.
  bool advance(State &state, const std::string &text) const;

  ModelHandle &model;
  Grammar &grammar;
  std::vector<std::string> triggers;
  std::vector<std::pair<std::string, std::string>> reasoning;
  std::string opened;
  size_t longest = 1;
  State state;
};

}  // namespace kvfold
