// The rules of a GBNF grammar, as its matcher (grammar.h) goes through them.
//
// llama.cpp's own matcher was not taken. It keeps a list of stacks that an ambiguous grammar multiplies without a bound, at the start and at each
// token, and nothing stops it. It also recurses as deep as the rules nest, and refuses repetitions that fit into memory many times over.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kvfold.h"

namespace kvfold {

// Code points from and to, sorted and apart.
using CharClass = std::vector<std::pair<uint32_t, uint32_t>>;

struct GrammarRules {
  enum class Kind : uint8_t { end, call, chars, token, otherToken };
  // `value`: of a call the rule, of chars the class, else the token.
  struct Element {
    Kind kind;
    uint32_t value;
  };

  // Parses GBNF. Throws engine/bad-grammar: where it is none, where it writes out to too much, where a rule begins with itself.
  GrammarRules(const llama_vocab *vocab, const std::string &text);

  // All alternatives, one behind another, each with an end. The first element of all is an end.
  std::vector<Element> elements;
  // By rule, where each of its alternatives begins.
  std::vector<std::vector<uint32_t>> rules;
  std::vector<CharClass> classes;
  uint32_t root = 0;
};

}  // namespace kvfold
