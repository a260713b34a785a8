#include "grammar.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

namespace kvfold {
namespace {

using Kind = GrammarRules::Kind;

constexpr int32_t DEAD = -1;
constexpr int32_t UNKNOWN = -2;
// The most positions in the rules that may be examined for one token, which takes a few hundredths of a second. A schema's grammar needs a
// few hundred.
constexpr size_t MOST_WORK = 400'000;
// The most threads and steps that all nodes and states together may hold (grammar.h). Beyond that, `forget` drops those that the current
// text does not need; they are computed again when they are needed.
constexpr size_t MOST_HELD = 2'000'000;

size_t hashed(size_t seed, size_t value) { return (seed ^ value) * 0x9e3779b97f4a7c15ull + (seed >> 29); }

bool contains(const CharClass &ranges, uint32_t character) {
  auto above = std::upper_bound(ranges.begin(), ranges.end(), character, [](uint32_t value, auto &range) { return value < range.first; });
  return above != ranges.begin() && std::prev(above)->second >= character;
}

}  // namespace

Grammar::Grammar(std::shared_ptr<const GrammarRules> rules, ModelHandle &model) : rules(std::move(rules)), model(&model) {
  nodes.emplace_back();
  Threads begun;
  for (uint32_t at : this->rules->rules[this->rules->root]) begun.push_back({at, 0});
  start.state = close(std::move(begun));
  if (start.state == DEAD) throw Failure("engine/bad-grammar", "The grammar allows no text at all, because every way through its rules repeats without end; give one way that ends.");
  begin();
}

void Grammar::begin() { place = start; }

void Grammar::spend(size_t more) {
  if ((work += more) > MOST_WORK)
    throw Failure("engine/bad-grammar",
                  "The grammar is too ambiguous: one token can continue in too many ways to check (" + std::to_string(MOST_WORK) +
                      " places in its rules). Give alternatives that begin differently, or fewer optional parts within each other.");
}

int32_t Grammar::nodeOf(Threads threads) {
  std::sort(threads.begin(), threads.end());
  threads.erase(std::unique(threads.begin(), threads.end()), threads.end());
  size_t hash = threads.size();
  for (auto &each : threads) hash = hashed(hashed(hash, each.at), each.node);
  auto [from, to] = nodeIndex.equal_range(hash);
  for (auto found = from; found != to; ++found)
    if (nodes[found->second] == threads) return found->second;
  nodeIndex.emplace(hash, nodes.size());
  held += threads.size() + 8;
  nodes.push_back(std::move(threads));
  return nodes.size() - 1;
}

int32_t Grammar::stateOf(Threads threads, bool ends) {
  if (threads.empty() && !ends) return DEAD;
  std::sort(threads.begin(), threads.end());
  threads.erase(std::unique(threads.begin(), threads.end()), threads.end());
  size_t hash = threads.size() * 2 + ends;
  for (auto &each : threads) hash = hashed(hashed(hash, each.at), each.node);
  auto [from, to] = stateIndex.equal_range(hash);
  for (auto found = from; found != to; ++found)
    if (states[found->second].ends == ends && states[found->second].threads == threads) return found->second;
  stateIndex.emplace(hash, states.size());
  held += threads.size() + 16;
  auto &state = states.emplace_back();
  state.ends = ends;
  state.hasTokens = std::any_of(threads.begin(), threads.end(), [&](auto &each) { return rules->elements[each.at].kind != Kind::chars; });
  state.threads = std::move(threads);
  return states.size() - 1;
}

int32_t Grammar::close(Threads todo) {
  // The calls of rules that this function meets. A call may get more callers until the loop ends, so it becomes a node only afterwards.
  // Until then a thread refers to it by ~index, a negative number.
  struct Call {
    Threads behind;
    // Whether the called rule may match the empty text.
    bool isPassed = false;
    int32_t node = UNKNOWN;
    size_t settled = 0;
  };
  std::vector<Call> calls;
  std::unordered_map<uint32_t, int32_t> callOf;
  std::unordered_set<uint64_t> seen;
  Threads found;
  bool ends = false;
  while (!todo.empty()) {
    auto [at, node] = todo.back();
    todo.pop_back();
    spend(1);
    auto element = rules->elements[at];
    if (element.kind == Kind::end) at = 0;
    if (!seen.insert(static_cast<uint64_t>(at) << 32 | static_cast<uint32_t>(node)).second) continue;
    if (element.kind == Kind::end) {
      if (node == 0) ends = true;
      if (node < 0) calls[~node].isPassed = true;
      auto &behind = node < 0 ? calls[~node].behind : nodes[node];
      spend(behind.size());
      todo.insert(todo.end(), behind.begin(), behind.end());
    } else if (element.kind == Kind::call) {
      // If the call ends its alternative, the called rule returns directly to the caller's own node (tail call).
      int32_t behind = node;
      if (rules->elements[at + 1].kind != Kind::end) {
        auto [known, isNew] = callOf.emplace(element.value, calls.size());
        if (isNew) calls.emplace_back();
        auto &call = calls[known->second];
        call.behind.push_back({at + 1, node});
        if (call.isPassed) todo.push_back({at + 1, node});
        if (!isNew) continue;
        behind = ~known->second;
      }
      spend(rules->rules[element.value].size());
      for (uint32_t alternative : rules->rules[element.value]) todo.push_back({alternative, behind});
    } else {
      found.push_back({at, node});
    }
  }
  // Turn the calls into nodes. Before a call, turn the calls that it returns to. No call waits for itself, because no rule is
  // left-recursive.
  std::vector<int32_t> pending;
  for (auto &each : found)
    if (each.node < 0) pending.push_back(~each.node);
  while (!pending.empty()) {
    auto &call = calls[pending.back()];
    int32_t missing = UNKNOWN;
    for (; call.node == UNKNOWN && call.settled < call.behind.size(); call.settled++) {
      auto &behind = call.behind[call.settled].node;
      if (behind >= 0) continue;
      if (calls[~behind].node == UNKNOWN) {
        missing = ~behind;
        break;
      }
      behind = calls[~behind].node;
    }
    spend(1);
    if (missing != UNKNOWN) {
      pending.push_back(missing);
      continue;
    }
    if (call.node == UNKNOWN) call.node = nodeOf(call.behind);
    pending.pop_back();
  }
  for (auto &each : found)
    if (each.node < 0) each.node = calls[~each.node].node;
  return stateOf(std::move(found), ends);
}

int32_t Grammar::next(int32_t from, uint32_t character) {
  if (character < 0x80 && !states[from].ascii.empty() && states[from].ascii[character] != UNKNOWN) return states[from].ascii[character];
  auto isBelow = [](uint32_t value, const Step &step) { return value < step.from; };
  {
    auto &steps = states[from].steps;
    auto above = std::upper_bound(steps.begin(), steps.end(), character, isBelow);
    if (above != steps.begin() && std::prev(above)->to >= character) return std::prev(above)->state;
  }
  spend(states[from].threads.size());
  // The range of characters around this one for which every thread decides in the same way.
  uint32_t least = 0, most = 0x10ffff;
  Threads begun;
  for (auto &[at, node] : states[from].threads) {
    auto element = rules->elements[at];
    if (element.kind != Kind::chars) continue;
    auto &ranges = rules->classes[element.value];
    auto above = std::upper_bound(ranges.begin(), ranges.end(), character, [](uint32_t value, auto &range) { return value < range.first; });
    if (above != ranges.end()) most = std::min(most, above->first - 1);
    if (above == ranges.begin()) continue;
    auto &below = *std::prev(above);
    if (below.second < character) {
      least = std::max(least, below.second + 1);
      continue;
    }
    least = std::max(least, below.first);
    most = std::min(most, below.second);
    begun.push_back({at + 1, node});
  }
  int32_t to = begun.empty() ? DEAD : close(std::move(begun));
  auto &state = states[from];
  state.steps.insert(std::upper_bound(state.steps.begin(), state.steps.end(), character, isBelow), {least, most, to});
  held += 2;
  if (least < 0x80) {
    if (state.ascii.empty()) {
      state.ascii.assign(0x80, UNKNOWN);
      held += 32;
    }
    for (uint32_t each = least; each <= std::min(most, 0x7fu); each++) state.ascii[each] = to;
  }
  return to;
}

const CharClass &Grammar::charactersOf(int32_t of) {
  auto &state = states[of];
  if (state.isJoined) return state.characters;
  CharClass ranges;
  for (auto &thread : state.threads) {
    auto element = rules->elements[thread.at];
    if (element.kind != Kind::chars) continue;
    auto &own = rules->classes[element.value];
    spend(own.size());
    ranges.insert(ranges.end(), own.begin(), own.end());
  }
  std::sort(ranges.begin(), ranges.end());
  for (auto &range : ranges)
    if (!state.characters.empty() && state.characters.back().second >= range.first) state.characters.back().second = std::max(state.characters.back().second, range.second);
    else state.characters.push_back(range);
  held += state.characters.size();
  state.isJoined = true;
  return state.characters;
}

bool Grammar::isPossible(const Place &at) {
  uint32_t low = at.value << (6 * at.missing), high = low | ((1u << (6 * at.missing)) - 1);
  // UTF-8 allows only the shortest encoding of a character, so an encoding of this many bytes has a smallest code point.
  low = std::max(low, at.size == 3 ? 0x800u : at.size == 4 ? 0x10000u : 0x80u);
  auto &ranges = charactersOf(at.state);
  auto reaching = std::lower_bound(ranges.begin(), ranges.end(), low, [](auto &range, uint32_t value) { return range.second < value; });
  return reaching != ranges.end() && reaching->first <= high;
}

bool Grammar::step(Place &at, unsigned char byte) {
  if (at.missing == 0) {
    if (byte < 0x80) return (at.state = next(at.state, byte)) != DEAD;
    if (byte < 0xc2 || byte > 0xf4) return false;
    at.size = byte < 0xe0 ? 2 : byte < 0xf0 ? 3 : 4;
    at.missing = at.size - 1;
    at.value = byte & (0x7f >> at.size);
    return isPossible(at);
  }
  if ((byte & 0xc0) != 0x80) return false;
  at.value = at.value << 6 | (byte & 0x3f);
  if (--at.missing > 0) return isPossible(at);
  if (at.value < (at.size == 3 ? 0x800u : at.size == 4 ? 0x10000u : 0x80u)) return false;
  return (at.state = next(at.state, at.value)) != DEAD;
}

bool Grammar::follow(Place &at, const std::string &text) {
  for (char byte : text)
    if (!step(at, static_cast<unsigned char>(byte))) return false;
  return true;
}

bool Grammar::matches(const Place &at, llama_token token) const {
  auto &state = states[at.state];
  return at.missing == 0 && state.hasTokens && std::any_of(state.threads.begin(), state.threads.end(), [&](auto &thread) {
    auto element = rules->elements[thread.at];
    if (element.kind == Kind::token) return element.value == static_cast<uint32_t>(token);
    return element.kind == Kind::otherToken && element.value != static_cast<uint32_t>(token);
  });
}

bool Grammar::allows(llama_token token) {
  work = 0;
  auto &pieces = model->pieces();
  if (pieces.ends[token]) return place.missing == 0 && states[place.state].ends;
  auto &piece = pieces.texts[token];
  if (piece.empty() || piece[0] == '\0') return false;
  if (matches(place, token)) return true;
  Place at = place;
  return follow(at, piece);
}

void Grammar::take(llama_token token) {
  work = 0;
  auto &pieces = model->pieces();
  if (pieces.ends[token]) return;
  Place at = place;
  bool isWritten = follow(at, pieces.texts[token]);
  if (matches(place, token)) {
    Threads begun;
    for (auto &thread : states[place.state].threads) {
      auto element = rules->elements[thread.at];
      if ((element.kind == Kind::token && element.value == static_cast<uint32_t>(token)) ||
          (element.kind == Kind::otherToken && element.value != static_cast<uint32_t>(token)))
        begun.push_back({thread.at + 1, thread.node});
    }
    Place named{close(std::move(begun))};
    if (isWritten && at.missing == 0 && named.state != DEAD) {
      // The rules allow the token both by its id and by its text. Keep the threads of both.
      Threads both = states[named.state].threads;
      both.insert(both.end(), states[at.state].threads.begin(), states[at.state].threads.end());
      named.state = stateOf(std::move(both), states[named.state].ends || states[at.state].ends);
    }
    if (named.state != DEAD) {
      at = named;
      isWritten = true;
    }
  }
  if (!isWritten) throw Failure("engine/bad-grammar", "The grammar does not allow token " + std::to_string(token) + " here.");
  place = at;
  if (held > MOST_HELD) forget();
}

void Grammar::mask(std::vector<llama_token_data> &candidates) {
  work = 0;
  auto &pieces = model->pieces();
  bool ends = place.missing == 0 && states[place.state].ends;
  std::vector<uint8_t> allowed(candidates.size());
  for (size_t token = 0; token < candidates.size(); token++) allowed[token] = pieces.ends[token] && ends;
  // Tokens come in the order of their texts. The bytes that a text shares with the one before need not be checked again.
  std::vector<Place> path(pieces.longest + 1, place);
  size_t known = 0;
  bool failed = false;
  const char *tail = pieces.tails.data();
  for (size_t i = 0; i < pieces.order.size(); tail += pieces.own[i], i++) {
    if (failed && pieces.shared[i] > known) continue;
    known = pieces.shared[i];
    failed = false;
    for (const char *byte = tail; !failed && byte < tail + pieces.own[i]; byte++) {
      path[known + 1] = path[known];
      if (step(path[known + 1], static_cast<unsigned char>(*byte))) known++;
      else failed = true;
    }
    allowed[pieces.order[i]] = !failed;
  }
  if (place.missing == 0 && states[place.state].hasTokens)
    for (llama_token token : pieces.order)
      if (!allowed[token]) allowed[token] = matches(place, token);
  for (size_t token = 0; token < candidates.size(); token++)
    if (!allowed[token]) candidates[token].logit = -INFINITY;
}

bool Grammar::beginsWith(const std::string &text, bool goOn) {
  work = 0;
  Place at = start;
  if (!follow(at, text)) return false;
  if (goOn) place = at;
  return true;
}

void Grammar::forget() {
  auto before = std::move(nodes);
  std::vector<State> kept;
  for (auto *each : {&start, &place}) kept.push_back(std::move(states[each->state]));
  if (start.state == place.state) kept[1] = kept[0];
  nodes.clear(), states.clear(), nodeIndex.clear(), stateIndex.clear();
  nodes.emplace_back();
  held = 0;
  // Mark all nodes that are needed. A node refers only to nodes made before it, so one pass backwards is enough.
  std::vector<uint8_t> isNeeded(before.size());
  for (auto &state : kept)
    for (auto &thread : state.threads) isNeeded[thread.node] = true;
  for (size_t node = before.size(); node-- > 1;)
    if (isNeeded[node])
      for (auto &thread : before[node]) isNeeded[thread.node] = true;
  std::vector<int32_t> moved(before.size());
  auto renamed = [&](Threads threads) {
    for (auto &thread : threads) thread.node = moved[thread.node];
    return threads;
  };
  for (size_t node = 1; node < before.size(); node++)
    if (isNeeded[node]) moved[node] = nodeOf(renamed(before[node]));
  start.state = stateOf(renamed(std::move(kept[0].threads)), kept[0].ends);
  place.state = stateOf(renamed(std::move(kept[1].threads)), kept[1].ends);
  if (held > MOST_HELD / 2)
    throw Failure("engine/bad-grammar", "The grammar is too ambiguous: too many of its rules are open at once. Give alternatives that begin differently.");
}

}  // namespace kvfold
