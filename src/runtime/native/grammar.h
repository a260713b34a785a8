// Finds the tokens that a grammar allows next. It runs an automaton over the text: the text so far is one state, and states are made when
// they are first reached.
//
// A state holds all positions in the rules at which the text may be. A node holds the elements that follow a call of a rule. If one rule is
// called from several positions at once, these calls share a node. So an ambiguous grammar makes states larger, but never doubles them.
// Equal nodes and states are stored once, so states recur: within a JSON string every ordinary character leads back to one state. The step
// from a state to the next is computed once and then looked up.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "grammar-rules.h"

namespace kvfold {

class Grammar {
 public:
  // How far the text has come: a state, and the bytes of the last character if the tokens so far end within it.
  struct Place {
    int32_t state;
    // The bits known of the unfinished character, and (next field) how many of its bytes are missing.
    uint32_t value = 0;
    int32_t missing = 0;
    // How many bytes the unfinished character has in UTF-8.
    int32_t size = 0;
  };

  // Throws engine/bad-grammar if the grammar allows no text at all. All functions also throw it if one token takes more than MOST_WORK.
  Grammar(std::shared_ptr<const GrammarRules> rules, ModelHandle &model);
  // A copy continues from the same point of the text and shares the rules.
  Grammar(const Grammar &) = default;

  // Starts again with the empty text.
  void begin();
  bool allows(llama_token token);
  // Continues the text with a token. Throws engine/bad-grammar if the token is not allowed.
  void take(llama_token token);
  // Bans all tokens that are not allowed; `candidates` has every token at the index of its id.
  void mask(std::vector<llama_token_data> &candidates);
  // Whether a text of the grammar can begin with `text`. If so and `goOn` is set, the grammar continues after `text`.
  bool beginsWith(const std::string &text, bool goOn);

 private:
  // One way to go on: read the rules from element `at` to the end of its alternative, then continue with any thread of `node`. A node is a
  // list of threads.
  struct Thread {
    uint32_t at;
    int32_t node;
    bool operator<(const Thread &other) const { return at != other.at ? at < other.at : node < other.node; }
    bool operator==(const Thread &other) const { return at == other.at && node == other.node; }
  };
  using Threads = std::vector<Thread>;
  // A range of characters that all lead from one state to the same next state.
  struct Step {
    uint32_t from, to;
    int32_t state;
  };
  struct State {
    Threads threads;
    // Whether the text may end in this state.
    bool ends = false;
    bool hasTokens = false;
    std::vector<int32_t> ascii;
    // The steps computed so far, sorted by characters, without overlaps.
    std::vector<Step> steps;
    // All characters that the state allows next, sorted, without overlaps. Computed by `charactersOf` when it is first needed (isJoined).
    CharClass characters;
    bool isJoined = false;
  };
  using Index = std::unordered_multimap<size_t, int32_t>;

  void spend(size_t work);
  int32_t nodeOf(Threads threads);
  int32_t stateOf(Threads threads, bool ends);
  // Follows rules, without reading a character, to all threads that read one. Returns their state.
  int32_t close(Threads begun);
  int32_t next(int32_t state, uint32_t character);
  bool matches(const Place &place, llama_token token) const;
  // Returns the characters that the state allows next. They are computed once, so that all tokens of a large vocabulary can be checked.
  const CharClass &charactersOf(int32_t state);
  // Whether the rules allow a character that begins with the bytes of the unfinished one.
  bool isPossible(const Place &place);
  bool step(Place &place, unsigned char byte);
  bool follow(Place &place, const std::string &text);
  // Drops all nodes and states that neither `start` nor `place` needs.
  void forget();

  std::shared_ptr<const GrammarRules> rules;
  ModelHandle *model;
  std::vector<Threads> nodes;
  std::vector<State> states;
  Index nodeIndex, stateIndex;
  // The size of all nodes and states, in threads and steps (MOST_HELD bounds it).
  size_t held = 0;
  size_t work = 0;
  Place start{0}, place{0};
};

}  // namespace kvfold
