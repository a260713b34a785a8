#include "grammar-rules.h"

#include <algorithm>
#include <map>

namespace kvfold {
namespace {

using Kind = GrammarRules::Kind;
using Element = GrammarRules::Element;

// The most elements of a grammar with its repetitions written out: `x{9}` counts nine times.
constexpr size_t MOST_ELEMENTS = 1'000'000;
// The deepest nesting of brackets. The parser recurses into them, so deeper nesting could overflow the stack.
constexpr int DEEPEST = 500;
constexpr uint64_t UNBOUNDED = UINT64_MAX;
constexpr uint32_t LAST = 0x10ffff;

[[noreturn]] void refuse(const std::string &sentence) { throw Failure("engine/bad-grammar", sentence); }

// Sorts the ranges and joins those that overlap or touch.
CharClass joined(CharClass ranges) {
  std::sort(ranges.begin(), ranges.end());
  CharClass out;
  for (auto [from, to] : ranges) {
    if (from > to) continue;
    if (!out.empty() && from <= out.back().second + 1) out.back().second = std::max(out.back().second, to);
    else out.emplace_back(from, to);
  }
  return out;
}

// Returns all characters that are in none of these ranges. Halves of surrogate pairs do not count as characters.
CharClass without(CharClass ranges) {
  ranges.emplace_back(0xd800, 0xdfff);
  CharClass out;
  uint32_t next = 0;
  for (auto [from, to] : joined(std::move(ranges))) {
    if (from > next) out.emplace_back(next, from - 1);
    next = to + 1;
  }
  if (next <= LAST) out.emplace_back(next, LAST);
  return out;
}

class Parser {
 public:
  Parser(GrammarRules &out, const llama_vocab *vocab, const std::string &text) : out(out), vocab(vocab), text(text) {}

  void read() {
    space(true);
    while (at < text.size()) rule();
    for (size_t id = 0; id < drafts.size(); id++)
      if (!drafts[id].isDefined) refuse("The grammar does not parse: the rule " + quoted(drafts[id].name) + " is not defined.");
    auto root = ids.find("root");
    if (root == ids.end()) refuse("The grammar has no rule named root; add one, because the text begins there.");
    out.root = root->second;
    flatten();
    refuseLeftRecursion();
  }

 private:
  using Sequence = std::vector<Element>;
  struct Draft {
    std::string name;
    bool isDefined = false;
    std::vector<Sequence> alternatives;
  };

  char next() const { return at < text.size() ? text[at] : '\0'; }

  [[noreturn]] void bad(const std::string &what) const {
    auto line = 1 + std::count(text.begin(), text.begin() + std::min(at, text.size()), '\n');
    auto rest = text.substr(std::min(at, text.size()), 40);
    rest = rest.substr(0, rest.find('\n'));
    while (!rest.empty() && (static_cast<unsigned char>(rest.back()) & 0x80) != 0) rest.pop_back();
    refuse("The grammar does not parse: " + what + " in line " + std::to_string(line) + (rest.empty() ? ", at its end." : ", at " + rest + "."));
  }

  static std::string quoted(const std::string &name) { return "\"" + name.substr(0, 80) + "\""; }

  static bool isWord(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || (c >= '0' && c <= '9'); }
  static bool isDigit(char c) { return c >= '0' && c <= '9'; }

  void space(bool newlines) {
    for (;; at++) {
      char c = next();
      if (c == '#') {
        while (at < text.size() && text[at] != '\r' && text[at] != '\n') at++;
        c = next();
      }
      if (at >= text.size() || !(c == ' ' || c == '\t' || (newlines && (c == '\r' || c == '\n')))) return;
    }
  }

  std::string name() {
    size_t start = at;
    while (isWord(next())) at++;
    if (at == start) bad("a rule name is expected");
    return text.substr(start, at - start);
  }

  uint32_t idOf(const std::string &name) {
    auto [found, isNew] = ids.emplace(name, drafts.size());
    if (isNew) drafts.push_back({name, false, {}});
    return found->second;
  }

  // Defines an unnamed rule, for brackets or a repetition, and returns its id.
  uint32_t define(std::vector<Sequence> alternatives) {
    drafts.push_back({current, true, std::move(alternatives)});
    return drafts.size() - 1;
  }

  void grow(size_t elements) {
    if ((written += elements) > MOST_ELEMENTS)
      refuse("The grammar expands to more than " + std::to_string(MOST_ELEMENTS) + " parts, in the rule " + quoted(current) +
             "; use fewer or shorter repetitions and lists.");
  }

  void rule() {
    current = name();
    uint32_t id = idOf(current);
    space(false);
    if (text.compare(at, 3, "::=") != 0) bad("::= is expected after the rule name");
    at += 3;
    space(true);
    auto alternatives = choice(0);
    drafts[id].alternatives = std::move(alternatives);
    drafts[id].isDefined = true;
    if (next() == '\r') at++;
    if (next() == '\n') at++;
    else if (at < text.size() && text[at - 1] != '\r') bad("the end of the rule is expected");
    space(true);
  }

  std::vector<Sequence> choice(int depth) {
    std::vector<Sequence> alternatives;
    alternatives.push_back(sequence(depth));
    while (next() == '|') {
      at++;
      space(true);
      alternatives.push_back(sequence(depth));
    }
    return alternatives;
  }

  Sequence sequence(int depth) {
    Sequence whole;
    // The elements to which a following repetition sign applies, e.g. `*`; empty if there are none.
    Sequence last;
    auto push = [&] {
      grow(last.size());
      whole.insert(whole.end(), last.begin(), last.end());
      space(depth > 0);
    };
    grow(1);
    for (;;) {
      char c = next();
      if (c == '"') {
        at++;
        last.clear();
        while (next() != '"') {
          uint32_t letter = character();
          last.push_back(intern({{letter, letter}}));
        }
        at++;
        isLiteralEmpty = last.empty();
        push();
      } else if (c == '[') {
        last = {charClass()};
        push();
      } else if (c == '.') {
        at++;
        last = {intern(without({}))};
        push();
      } else if (c == '<' || c == '!') {
        last = {token()};
        push();
      } else if (isWord(c)) {
        last = {{Kind::call, idOf(name())}};
        push();
      } else if (c == '(') {
        if (depth >= DEEPEST) refuse("The grammar nests more than " + std::to_string(DEEPEST) + " levels of brackets; make it simpler.");
        at++;
        space(true);
        auto inside = choice(depth + 1);
        if (next() != ')') bad("a closing bracket is expected");
        at++;
        last = {{Kind::call, define(std::move(inside))}};
        push();
      } else if (c == '*' || c == '+' || c == '?' || c == '{') {
        auto [least, most] = bounds(depth);
        if (last.empty() && !isLiteralEmpty) bad("there is nothing to repeat");
        whole.resize(whole.size() - last.size());
        auto part = last.size() <= 1 ? last : Sequence{{Kind::call, define({last})}};
        last = repetition(part, least, most);
        whole.insert(whole.end(), last.begin(), last.end());
        // A second repetition sign, as in `x{2}*`, repeats all of these elements. So replace them by one call.
        if (last.size() > 1) {
          whole.resize(whole.size() - last.size());
          last = {{Kind::call, define({last})}};
          whole.push_back(last[0]);
        }
        isLiteralEmpty = last.empty();
        space(depth > 0);
      } else {
        return whole;
      }
    }
  }

  // Returns the elements for `part{least,most}`: the part `least` times, then a call of rules that allow the rest of the repetitions.
  Sequence repetition(const Sequence &part, uint64_t least, uint64_t most) {
    if (part.empty() || most == 0) return {};
    uint64_t more = most == UNBOUNDED ? 1 : most - least;
    if (least > MOST_ELEMENTS || more > MOST_ELEMENTS) grow(MOST_ELEMENTS + 1);
    grow(least + more * 4);
    Sequence whole(least, part[0]);
    if (most == UNBOUNDED) {
      uint32_t id = drafts.size();
      define({Sequence{part[0], {Kind::call, id}}, Sequence{}});
      whole.push_back({Kind::call, id});
      return whole;
    }
    uint32_t id = 0;
    for (uint64_t i = 0; i < more; i++) id = define({i == 0 ? Sequence{part[0]} : Sequence{part[0], {Kind::call, id}}, Sequence{}});
    if (more > 0) whole.push_back({Kind::call, id});
    return whole;
  }

  std::pair<uint64_t, uint64_t> bounds(int depth) {
    char c = text[at++];
    if (c != '{') return {c == '+' ? 1 : 0, c == '?' ? 1 : UNBOUNDED};
    auto number = [&] {
      size_t start = at;
      while (isDigit(next())) at++;
      if (at == start) bad("a number is expected");
      auto digits = text.substr(start, std::min(at - start, size_t(18)));
      space(depth > 0);
      return std::stoull(digits);
    };
    space(depth > 0);
    uint64_t least = number();
    uint64_t most = least;
    if (next() == ',') {
      at++;
      space(depth > 0);
      most = isDigit(next()) ? number() : UNBOUNDED;
    }
    if (next() != '}') bad("} is expected");
    at++;
    if (most < least) bad("the upper bound of a repetition is below its lower bound");
    return {least, most};
  }

  Element intern(CharClass ranges) {
    auto [found, isNew] = classIds.emplace(ranges, out.classes.size());
    if (isNew) out.classes.push_back(std::move(ranges));
    return {Kind::chars, found->second};
  }

  Element charClass() {
    at++;
    bool isOther = next() == '^';
    if (isOther) at++;
    CharClass ranges;
    while (next() != ']') {
      uint32_t from = character();
      uint32_t to = from;
      if (next() == '-' && at + 1 < text.size() && text[at + 1] != ']') {
        at++;
        to = character();
      }
      ranges.emplace_back(from, to);
      if (ranges.size() % 64 == 0) grow(64);
    }
    at++;
    if (ranges.empty() && !isOther) bad("a character class is empty");
    auto others = without(std::move(ranges));
    return intern(isOther ? std::move(others) : without(std::move(others)));
  }

  uint32_t hex(int size) {
    uint32_t value = 0;
    for (int i = 0; i < size; i++, at++) {
      char c = next();
      int digit = isDigit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
      if (digit < 0) bad(std::to_string(size) + " hexadecimal digits are expected");
      value = value * 16 + digit;
    }
    if (value > LAST) bad("there is no such character");
    return value;
  }

  uint32_t character() {
    if (at >= text.size()) bad("a string or character class is not closed");
    auto byte = static_cast<unsigned char>(text[at++]);
    if (byte == '\\') {
      char c = next();
      at++;
      switch (c) {
        case 'x': return hex(2);
        case 'u': return hex(4);
        case 'U': return hex(8);
        case 't': return '\t';
        case 'r': return '\r';
        case 'n': return '\n';
        case '\\': case '"': case '[': case ']': case '-': return c;
        default: at -= 2; bad("unknown escape");
      }
    }
    int more = byte < 0xc0 ? 0 : byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
    uint32_t value = more == 0 ? byte : byte & (0x3f >> more);
    for (; more > 0 && at < text.size(); more--) value = value << 6 | (static_cast<unsigned char>(text[at++]) & 0x3f);
    return value;
  }

  Element token() {
    auto kind = next() == '!' ? Kind::otherToken : Kind::token;
    if (next() == '!') at++;
    if (next() != '<') bad("< is expected");
    size_t end = text.find('>', at);
    if (end == std::string::npos || end - at > 1000) bad("the token is not closed by >");
    auto piece = text.substr(at, end + 1 - at);
    llama_token found[2];
    if (piece.size() > 4 && piece[1] == '[' && std::all_of(piece.begin() + 2, piece.end() - 2, isDigit)) {
      auto id = std::stoull(piece.substr(2, std::min(piece.size() - 4, size_t(10))));
      if (id >= static_cast<uint64_t>(llama_vocab_n_tokens(vocab))) bad("there is no such token");
      found[0] = static_cast<llama_token>(id);
    } else if (llama_tokenize(vocab, piece.data(), piece.size(), found, 2, false, true) != 1) {
      bad("this is not a single token of the model");
    }
    at = end + 1;
    return {kind, static_cast<uint32_t>(found[0])};
  }

  void flatten() {
    out.elements.push_back({Kind::end, 0});
    for (auto &draft : drafts) {
      auto &starts = out.rules.emplace_back();
      for (auto &alternative : draft.alternatives) {
        starts.push_back(out.elements.size());
        out.elements.insert(out.elements.end(), alternative.begin(), alternative.end());
        out.elements.push_back({Kind::end, 0});
      }
    }
  }

  // Returns, for each rule, whether it may match the empty text.
  std::vector<bool> nullables() const {
    std::vector<bool> nullable(out.rules.size());
    // An alternative that consists of calls only. `left` counts its calls of rules that are not yet known to match the empty text.
    struct Open {
      uint32_t rule, left;
    };
    std::vector<Open> open;
    std::vector<std::vector<uint32_t>> waiting(out.rules.size());
    std::vector<uint32_t> found;
    auto mark = [&](uint32_t rule) {
      if (nullable[rule]) return;
      nullable[rule] = true;
      found.push_back(rule);
    };
    for (uint32_t rule = 0; rule < out.rules.size(); rule++)
      for (uint32_t start : out.rules[rule]) {
        uint32_t end = start;
        while (out.elements[end].kind == Kind::call) end++;
        if (out.elements[end].kind != Kind::end) continue;
        if (end == start) {
          mark(rule);
          continue;
        }
        for (uint32_t each = start; each < end; each++) waiting[out.elements[each].value].push_back(open.size());
        open.push_back({rule, end - start});
      }
    while (!found.empty()) {
      uint32_t rule = found.back();
      found.pop_back();
      for (uint32_t each : waiting[rule])
        if (--open[each].left == 0) mark(open[each].rule);
    }
    return nullable;
  }

  // Refuses left recursion: rules that begin with a call of themselves, directly or through other rules. The matcher keeps what follows
  // each call, so such a rule would grow without end. Rules that begin with each other form Tarjan's components. The search does not
  // recurse, because rules may be thousands deep.
  void refuseLeftRecursion() const {
    auto nullable = nullables();
    struct Call {
      uint32_t rule;
      bool isLast;
    };
    auto calls = [&](uint32_t rule) {
      std::vector<Call> first;
      for (uint32_t at : out.rules[rule])
        for (; out.elements[at].kind == Kind::call; at++) {
          uint32_t called = out.elements[at].value;
          first.push_back({called, out.elements[at + 1].kind == Kind::end});
          if (!nullable[called]) break;
        }
      return first;
    };
    struct Frame {
      uint32_t rule;
      std::vector<Call> calls;
      size_t next;
    };
    constexpr uint32_t NONE = UINT32_MAX;
    std::vector<uint32_t> order(out.rules.size(), NONE), low(out.rules.size()), component(out.rules.size(), NONE);
    std::vector<uint32_t> pending;
    std::vector<Frame> frames;
    uint32_t count = 0;
    for (uint32_t from = 0; from < out.rules.size(); from++) {
      if (order[from] != NONE) continue;
      auto enter = [&](uint32_t rule) {
        order[rule] = low[rule] = count++;
        pending.push_back(rule);
        frames.push_back({rule, calls(rule), 0});
      };
      enter(from);
      while (!frames.empty()) {
        auto &frame = frames.back();
        if (frame.next < frame.calls.size()) {
          uint32_t called = frame.calls[frame.next++].rule;
          if (order[called] == NONE) enter(called);
          else if (component[called] == NONE) low[frame.rule] = std::min(low[frame.rule], order[called]);
          continue;
        }
        uint32_t rule = frame.rule;
        if (low[rule] == order[rule])
          for (uint32_t member = NONE; member != rule;) {
            member = pending.back();
            pending.pop_back();
            component[member] = rule;
          }
        frames.pop_back();
        if (!frames.empty()) low[frames.back().rule] = std::min(low[frames.back().rule], low[rule]);
      }
    }
    for (uint32_t rule = 0; rule < out.rules.size(); rule++)
      for (auto &call : calls(rule))
        if (!call.isLast && component[call.rule] == component[rule])
          refuse("The rule " + quoted(drafts[rule].name) + " of the grammar begins with itself (left recursion); write it so that it ends with itself.");
  }

  GrammarRules &out;
  const llama_vocab *vocab;
  const std::string &text;
  size_t at = 0;
  // The rule that is being read.
  std::string current;
  size_t written = 0;
  bool isLiteralEmpty = false;
  std::vector<Draft> drafts;
  std::map<std::string, uint32_t> ids;
  std::map<CharClass, uint32_t> classIds;
};

}  // namespace

GrammarRules::GrammarRules(const llama_vocab *vocab, const std::string &text) {
  if (text.empty()) refuse("The grammar is empty; it must be GBNF with a rule named root.");
  Parser(*this, vocab, text).read();
}

}  // namespace kvfold
