// A grammar that holds only from where one of its triggers stands in what was written.
//
// llama_sampler_init_grammar_lazy_patterns has the same purpose and was not taken: it matches a std::regex over the whole answer at every token, which
// takes stack with its length, it knows no reasoning in which nothing triggers, and what follows a trigger within one token is only found wrong when it
// has been written. Here a token that completes a trigger is tried before it is accepted.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "kvfold.h"

namespace kvfold {

// Whether the grammar can go on with the token.
bool allows(llama_sampler *grammar, llama_token token);

class LazyGrammar {
 public:
  // Takes the grammar, as it is before any token.
  LazyGrammar(ModelHandle &model, llama_sampler *pristine, const Napi::Object &options);
  ~LazyGrammar();
  LazyGrammar(const LazyGrammar &) = delete;
  // From the beginning: null, or the grammar where what the prompt opened wakes it.
  llama_sampler *begin();
  // Whether the token may be written: it wakes nothing, or what it wakes goes on with it.
  bool permits(llama_token token) const;
  // Takes a token that is permitted in; gives the grammar, to be freed by whom it is given, where it wakes.
  llama_sampler *take(llama_token token);

 private:
  struct State {
    // The end of what was written that may still be part of a tag.
    std::string tail;
    // The tag that ends the reasoning that is open; empty: none is.
    std::string closing;
  };
  // Goes on by a text; true with the text from the trigger on in `tail` when there is one.
  bool advance(State &state, const std::string &text) const;
  // The grammar behind the text; null where it does not go.
  llama_sampler *woken(const std::string &text) const;

  ModelHandle &model;
  llama_sampler *pristine;
  std::vector<std::string> triggers;
  std::vector<std::pair<std::string, std::string>> reasoning;
  std::string opened;
  size_t longest = 1;
  State state;
};

}  // namespace kvfold
