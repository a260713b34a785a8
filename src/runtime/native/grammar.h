// Which tokens may come next under a grammar: what was written so far is one state of an automaton that is made as the text goes on.
//
// A state holds all places in the rules where the text may stand. What stands behind a call of a rule is a node; calls of one rule from several places
// at once share it, so an ambiguous grammar makes states larger and never doubles them. Equal nodes and states are the same, so states come back
// (within a text every character leads to one state) and steps between them are looked up.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "grammar-rules.h"

namespace kvfold {

class Grammar {
 public:
  // Where a text stands: a state, and the character within which it ends.
  struct Place {
    int32_t state;
    // The bits that are known of the character, and the bytes that are missing.
    uint32_t value = 0;
    int32_t missing = 0;
    // Of a character of so many bytes.
    int32_t size = 0;
  };

  // Throws engine/bad-grammar, as all that follows, where a step is too much work; and where no text at all is allowed.
  Grammar(std::shared_ptr<const GrammarRules> rules, ModelHandle &model);
  // A copy goes on from the same place and shares the rules.
  Grammar(const Grammar &) = default;

  // Goes back to where nothing is written.
  void begin();
  bool allows(llama_token token);
  // Goes on by a token that is allowed.
  void take(llama_token token);
  // Bans all tokens that are not allowed; `candidates` has every token at its place.
  void mask(std::vector<llama_token_data> &candidates);
  // Whether a text can stand at the very beginning; then the grammar goes on behind it where `goOn` is set.
  bool beginsWith(const std::string &text, bool goOn);

 private:
  // An element of the rules, and the node that is behind its alternative. Nodes are lists of these too: where it goes on.
  struct Thread {
    uint32_t at;
    int32_t node;
    bool operator<(const Thread &other) const { return at != other.at ? at < other.at : node < other.node; }
    bool operator==(const Thread &other) const { return at == other.at && node == other.node; }
  };
  using Threads = std::vector<Thread>;
  // Characters that lead to one state.
  struct Step {
    uint32_t from, to;
    int32_t state;
  };
  struct State {
    Threads threads;
    // Whether the text may end.
    bool ends = false;
    bool hasTokens = false;
    std::vector<int32_t> ascii;
    // Sorted and apart.
    std::vector<Step> steps;
  };
  using Index = std::unordered_multimap<size_t, int32_t>;

  void spend(size_t work);
  int32_t nodeOf(Threads threads);
  int32_t stateOf(Threads threads, bool ends);
  // The state of all places that are reached from these without a character.
  int32_t close(Threads begun);
  int32_t next(int32_t state, uint32_t character);
  bool matches(const Place &place, llama_token token) const;
  // Whether some character that begins as the place says can come.
  bool isPossible(const Place &place);
  bool step(Place &place, unsigned char byte);
  bool follow(Place &place, const std::string &text);
  // Drops all nodes and states but what the place needs.
  void forget();

  std::shared_ptr<const GrammarRules> rules;
  ModelHandle *model;
  std::vector<Threads> nodes;
  std::vector<State> states;
  Index nodeIndex, stateIndex;
  // Threads and steps that nodes and states hold.
  size_t held = 0;
  size_t work = 0;
  Place start{0}, place{0};
};

}  // namespace kvfold
