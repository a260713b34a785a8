// A lazy grammar applies only from a trigger on. This class finds the trigger in the answer's text.
//
// A spaced trigger is one in which a space stands for any whitespace that JSON allows, or none.
//
// If a token completes a trigger and has more text behind it, the grammar must allow that text, or the token is refused. Within reasoning,
// triggers have no effect.
#pragma once

#include <string>
#include <vector>

#include "grammar.h"

namespace kvfold {

class LazyGrammar {
 public:
  // The grammar must outlive this object.
  LazyGrammar(ModelHandle &model, Grammar &grammar, const Napi::Object &options);
  LazyGrammar(const LazyGrammar &) = delete;
  // Starts again at the beginning of an answer. Returns true if the answer's beginning, which the prompt already contains, completes a
  // trigger.
  bool begin();
  // Whether the token may be written. If it completes a trigger, the grammar must allow the trigger and the text behind it.
  bool permits(llama_token token) const;
  // Takes a token that `permits` allows. Returns true if the token completes a trigger. The grammar has then read the text from the trigger
  // on, and applies to all later tokens.
  bool take(llama_token token);

 private:
  struct State {
    // The last bytes of the text, which may be the beginning of a trigger or a tag.
    std::string tail;
    // The tag that closes the open reasoning; empty if no reasoning is open.
    std::string closing;
    // Whether text other than whitespace has left `tail`.
    bool hasText = false;
    // Erases the beginning of `tail`, which is text.
    void leave(size_t length);
  };
  // Appends a text. Returns true if a trigger is in it; then `tail` is the text from the trigger on.
  bool advance(State &state, const std::string &text) const;

  ModelHandle &model;
  Grammar &grammar;
  std::vector<std::string> triggers, spaced;
  struct Tags {
    std::string open, close;
    // Whether they have a meaning only before any other text.
    bool isFirst;
  };
  std::vector<Tags> reasoning;
  std::string opened;
  size_t longest = 1;
  State state;
};

}  // namespace kvfold
