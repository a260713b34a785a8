// A lazy grammar applies only from a trigger on, e.g. from the tag that begins a tool call. This class finds the trigger in the answer's
// text. In a spaced trigger, a space stands for any whitespace that JSON allows, or none. Within reasoning, triggers have no effect.
//
// A token may complete a trigger and contain more text after it. Then the grammar must allow that text, or the token is refused.
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
  // Resets the state for a new answer. Returns true if the end of the prompt (`opened`) already contains a trigger. Throws
  // engine/bad-grammar if the grammar does not allow what follows the trigger.
  bool begin();
  // Whether the token may come next. If it completes a trigger, the grammar must allow the text from the trigger on.
  bool permits(llama_token token) const;
  // Takes a token that `permits` allows. Returns true if it completes a trigger. The grammar has then read the text from the trigger on,
  // and applies to all later tokens.
  bool take(llama_token token);

 private:
  struct State {
    // The last bytes of the answer, in which a trigger or a tag may have begun.
    std::string tail;
    // The tag that closes the open reasoning; empty if no reasoning is open.
    std::string closing;
    // Whether text other than whitespace has left `tail`.
    bool hasText = false;
    // Removes the first `length` bytes of `tail`, because no trigger or tag begins in them.
    void leave(size_t length);
  };
  // Appends a text. Returns true if it completes a trigger; then `tail` is the text from the trigger on.
  bool advance(State &state, const std::string &text) const;

  ModelHandle &model;
  Grammar &grammar;
  std::vector<std::string> triggers, spaced;
  struct Tags {
    std::string open, close;
    // Whether the tags count only before any other text.
    bool isFirst;
  };
  std::vector<Tags> reasoning;
  std::string opened;
  size_t longest = 1;
  State state;
};

}  // namespace kvfold
