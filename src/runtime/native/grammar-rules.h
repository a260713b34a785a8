// The rules of a GBNF grammar, in the form that its matcher (grammar.h) uses.
//
// kvfold does not use llama.cpp's own matcher. That keeps a list of stacks, which an ambiguous grammar multiplies without a bound, at the
// start and at each token. It also recurses as deep as the rules nest, and refuses repetitions that would easily fit into memory.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kvfold.h"

namespace kvfold {

// A set of characters: ranges of code points (first, last), sorted, without overlaps.
using CharClass = std::vector<std::pair<uint32_t, uint32_t>>;

struct GrammarRules {
  enum class Kind : uint8_t { end, call, chars, token, otherToken };
  // `value` is the called rule for `call`, the index of the class for `chars`, and the token's id for the two token kinds.
  struct Element {
    Kind kind;
    uint32_t value;
  };

  // Parses a grammar in GBNF. Throws engine/bad-grammar if the text does not parse, if the grammar becomes too large when its repetitions
  // are written out, or if a rule begins with itself.
  GrammarRules(const llama_vocab *vocab, const std::string &text);

  // The elements of all alternatives of all rules, one alternative after another, each followed by an `end`. Index 0 is an extra `end`.
  std::vector<Element> elements;
  // For each rule: the index in `elements` at which each of its alternatives begins.
  std::vector<std::vector<uint32_t>> rules;
  std::vector<CharClass> classes;
  uint32_t root = 0;
};

}  // namespace kvfold
