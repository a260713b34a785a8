// The attention tap: finds out which cell of a softmax row belongs to which token, and reads the rows out of the graph.
#include "tap.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace kvfold {
namespace {

// Bytes of llama_kv_cell_ext, which some models' cells have in a saved state.
constexpr size_t CELL_EXTRA = 12;

// Returns the layer whose attention this softmax node computes (llama-graph.cpp, build_attn_mha); -1 for any other node.
int32_t layerOf(const ggml_tensor *node) {
  static const char prefix[] = "kq_soft_max-";
  if (node->op != GGML_OP_SOFT_MAX || std::strncmp(node->name, prefix, sizeof prefix - 1) != 0) return -1;
  char *end = nullptr;
  long layer = std::strtol(node->name + sizeof prefix - 1, &end, 10);
  return *end == '\0' && layer >= 0 && layer < 4096 ? static_cast<int32_t>(layer) : -1;
}

// Returns `count` floats of a tensor from byte `offset` on: in place if the host can read them, else copied into `buffer`.
const float *floats(const ggml_tensor *tensor, size_t offset, size_t count, std::vector<float> &buffer) {
  if (ggml_backend_buffer_is_host(tensor->buffer)) return reinterpret_cast<const float *>(static_cast<const char *>(tensor->data) + offset);
  buffer.resize(count);
  ggml_backend_tensor_get(tensor, buffer.data(), offset, count * sizeof(float));
  return buffer.data();
}

[[noreturn]] void strange(const std::string &what) {
  throw Failure("attention/unavailable", "This model's attention cannot be captured: " + what + ".");
}

}  // namespace

void Tap::probe(llama_context *of, const Log &log) {
  auto *vocab = llama_model_get_vocab(llama_get_model(of));
  llama_token token = llama_vocab_bos(vocab) == LLAMA_TOKEN_NULL ? 0 : llama_vocab_bos(vocab);
  headsOf.assign(llama_model_n_layer(llama_get_model(of)), 0);
  state = probing;
  int32_t result = llama_decode(of, llama_batch_get_one(&token, 1));
  llama_synchronize(of);
  state = idle;
  context = of;
  bool known = result != 0 || learnCells();
  llama_memory_clear(llama_get_memory(of), false);
  if (!known) strange("its cells are written in a way that kvfold does not know");
  if (result != 0) throw Failure("native/failed", "llama.cpp could not decode a token to find out where attention is" + log.why());
}

// Learns whether cells of this model have extra numbers in a saved state (llama_kv_cell_ext), from the state of the probe's one cell.
bool Tap::learnCells() {
  Silence silence;
  std::vector<uint32_t> state(13, 0);
  llama_state_seq_get_data_ext(context, reinterpret_cast<uint8_t *>(state.data()), state.size() * sizeof(uint32_t), -1, LLAMA_STATE_SEQ_FLAGS_NONE);
  if (state[2] != 1 || state[3] != 1 || state[4] != 0 || state[5] != 1) return false;
  // In the state follow the cell's sequence, whether values are transposed, and the number of layers. `fits` tests whether they begin at
  // index `at`.
  auto fits = [&](size_t at) { return state[at] == 0 && state[at + 1] <= 1 && state[at + 2] > 0 && state[at + 2] <= headsOf.size(); };
  bool plain = fits(6), wide = fits(6 + CELL_EXTRA / sizeof(uint32_t));
  if (plain != wide) extra = wide ? CELL_EXTRA : 0;
  return plain || wide;
}

bool Tap::evaluate(ggml_tensor *node, bool ask, void *data) {
  auto *tap = static_cast<Tap *>(data);
  if (tap->state == idle) return !ask;
  // No exception may pass through llama.cpp's graph, and a graph that stops halfway would spoil the cache. So keep the failure in the
  // captures.
  try {
    if (ask) return tap->wanted(node);
    tap->read(node);
  } catch (...) {
    for (auto &capture : tap->captures) capture->failure = currentFailure();
    tap->state = idle;
  }
  return !ask;
}

bool Tap::wanted(const ggml_tensor *node) {
  int32_t layer = layerOf(node);
  if (layer < 0) return false;
  if (state == probing) {
    if (static_cast<size_t>(layer) < headsOf.size()) headsOf[layer] = node->ne[2];
    return false;
  }
  if (static_cast<size_t>(layer) >= asked.size()) return false;
  int64_t from = asked[layer], to = asked[layer] += node->ne[1];
  for (auto &capture : captures) {
    if (!std::binary_search(capture->layers.begin(), capture->layers.end(), layer)) continue;
    auto first = std::lower_bound(capture->queries.begin(), capture->queries.end(), from);
    if (first != capture->queries.end() && *first < to) return true;
  }
  return false;
}

void Tap::read(const ggml_tensor *node) {
  int32_t layer = layerOf(node);
  int64_t rows = node->ne[1], from = asked[layer] - rows;
  const ggml_tensor *mask = node->src[1];
  if (mask == nullptr || mask->type != GGML_TYPE_F32 || node->type != GGML_TYPE_F32 || node->ne[3] != 1 || mask->ne[0] != node->ne[0])
    strange("layer " + std::to_string(layer) + " computes its softmax in a way that kvfold does not know");
  if (from != ubatch) {
    ubatch = from;
    masks.clear();
    seen.clear();
    base = Cells();
    window = Cells();
  }
  for (auto &capture : captures) {
    auto found = std::lower_bound(capture->layers.begin(), capture->layers.end(), layer);
    if (found == capture->layers.end() || *found != layer) continue;
    size_t slot = found - capture->layers.begin();
    auto &queries = capture->queries;
    for (auto query = std::lower_bound(queries.begin(), queries.end(), from); query != queries.end() && *query < from + rows; query++) {
      int64_t row = *query - from;
      auto &runs = runsOf(*capture, mask, row, (*batchPositions)[*query]);
      for (size_t head = 0; head < capture->heads.size(); head++) {
        if (capture->heads[head] >= node->ne[2]) strange("layer " + std::to_string(layer) + " has fewer heads than expected");
        auto *weights = floats(node, row * node->nb[1] + capture->heads[head] * node->nb[2], node->ne[0], rowBuffer);
        capture->reduce(slot, head, query - queries.begin(), runs, weights);
      }
      capture->read++;
    }
  }
}

const std::vector<Run> &Tap::runsOf(Capture &capture, const ggml_tensor *mask, int64_t row, int32_t position) {
  for (auto &each : seen)
    if (each.capture == &capture && each.mask == mask && each.row == row) return each.runs;
  size_t kind = std::find(masks.begin(), masks.end(), mask) - masks.begin();
  if (kind == masks.size()) masks.push_back(mask);
  auto *values = floats(mask, row * mask->nb[1], mask->ne[0], maskBuffer);
  visible.clear();
  for (int64_t cell = 0; cell < mask->ne[0]; cell++)
    if (values[cell] > -INFINITY) visible.push_back(static_cast<int32_t>(cell));
  place(capture, kind, position, mask->ne[0]);

  if (seen.size() >= 4) seen.erase(seen.begin());
  seen.push_back({&capture, mask, row, {}});
  auto &runs = seen.back().runs;
  for (size_t i = 0; i < visible.size(); i++) {
    int32_t shown = static_cast<size_t>(at[i]) < capture.placeOf.size() ? capture.placeOf[at[i]] : -1;
    if (shown < 0) strange("a token sees position " + std::to_string(at[i]) + ", where nothing is shown");
    int32_t atom = static_cast<size_t>(shown) < capture.atomOf.size() ? capture.atomOf[shown] : -1;
    if (!runs.empty()) {
      auto &last = runs.back();
      if (last.cell + last.length == visible[i] && last.place + last.length == shown && last.atom == atom) {
        last.length++;
        continue;
      }
    }
    runs.push_back({visible[i], shown, 1, atom});
  }
  return runs;
}

/**
 * Fills `at` with the position of every visible cell. The mask says which cells a token sees, and llama.cpp's saved state has their
 * positions. A token sees cells of its own sequence at positions up to its own: all of them, or under a sliding window the last ones. Mask
 * and state list cells in the same order, so the n-th visible cell has the n-th of these positions.
 */
void Tap::place(Capture &capture, size_t kind, int32_t position, int64_t cells) {
  at.resize(visible.size());
  bool lone = capture.queries.size() == 1;
  if (lone && capture.known.size() <= kind) capture.known.resize(kind + 1);
  if (lone && capture.known[kind].seq == capture.seq && capture.known[kind].last == position - 1) {
    // The query sees one token more than the last query did. That token is in the only cell that was not visible before.
    auto &known = capture.known[kind];
    known.positionOf.resize(std::max<size_t>(known.positionOf.size(), cells), -1);
    size_t fresh = visible.size(), strangers = 0;
    for (size_t i = 0; i < visible.size(); i++) {
      at[i] = known.positionOf[visible[i]];
      if (at[i] < 0) fresh = i, strangers++;
    }
    if (strangers == 1) {
      at[fresh] = known.positionOf[visible[fresh]] = known.last = position;
      return;
    }
  }
  size_t count = visible.size();
  std::vector<int32_t> eligible, found;
  auto take = [&](bool inWindow) {
    eligible.clear();
    for (int32_t held : heldBy(capture.seq, inWindow))
      if (held <= position) eligible.push_back(held);
    if (count == 0 || eligible.size() < count || (!inWindow && eligible.size() != count)) return false;
    if (eligible.size() > count) {
      std::vector<int32_t> sorted = eligible;
      std::nth_element(sorted.begin(), sorted.end() - count, sorted.end());
      int32_t least = *(sorted.end() - count);
      eligible.erase(std::remove_if(eligible.begin(), eligible.end(), [&](int32_t held) { return held < least; }), eligible.end());
    }
    return eligible.size() == count && *std::max_element(eligible.begin(), eligible.end()) == position;
  };
  bool all = take(false);
  if (all) found = eligible;
  // Layers with a sliding window have a cache of their own. While the window is not full, both caches show equally many cells. Only if both
  // give the same order is it certain which position a cell has.
  if (windowed && take(true)) {
    if (all && found != eligible) strange("its two caches show a token equally many cells, in different orders; load it with fullSlidingWindow");
    all = true;
    found = eligible;
  }
  if (!all) strange("a token at position " + std::to_string(position) + " sees " + std::to_string(count) + " cells, but its sequence holds other cells");
  std::copy(found.begin(), found.end(), at.begin());
  if (!lone) return;
  auto &known = capture.known[kind];
  known.seq = capture.seq;
  known.last = position;
  known.positionOf.assign(cells, -1);
  for (size_t i = 0; i < count; i++) known.positionOf[visible[i]] = at[i];
}

const std::vector<int32_t> &Tap::heldBy(llama_seq_id seq, bool inWindow) {
  auto &cells = inWindow ? window : base;
  auto found = cells.of.find(seq);
  if (found != cells.of.end()) return found->second;
  auto &held = cells.of[seq];
  if (cells.state.empty()) readCells(cells, inWindow);
  size_t offset = 12;
  auto next = [&]() {
    uint32_t value;
    std::memcpy(&value, cells.state.data() + offset, sizeof value);
    offset += sizeof value;
    return static_cast<int32_t>(value);
  };
  for (int32_t left = next(); left > 0; left--) {
    int32_t position = next();
    int32_t sequences = next();
    offset += extra;
    bool tagged = false;
    for (; sequences > 0; sequences--) tagged |= next() == seq;
    if (tagged) held.push_back(position);
  }
  return held;
}

/**
 * Reads the head of the state of all sequences, as llama.cpp v0.5.0 writes it (llama_kv_cache::state_write), in numbers of 32 bits: magic,
 * sequence, number of streams, number of cells. Then follow, for each cell, its position, the number of its sequences, `extra`, and the
 * sequences. The buffer ends before the keys and values, so they are not copied. With `inWindow` it reads the cache of the sliding-window
 * layers.
 */
void Tap::readCells(Cells &cells, bool inWindow) {
  Silence silence;
  size_t most = 16 + static_cast<size_t>(llama_n_ctx(context)) * (8 + extra + 4 * static_cast<size_t>(llama_n_seq_max(context)));
  for (size_t size = std::max<size_t>(stateBuffer.size(), 4096);; size *= 2) {
    stateBuffer.assign(std::min(size, most), 0);
    auto flags = inWindow ? LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY : LLAMA_STATE_SEQ_FLAGS_NONE;
    llama_state_seq_get_data_ext(context, stateBuffer.data(), stateBuffer.size(), -1, flags);
    size_t offset = 8;
    bool ended = false;
    auto next = [&]() -> uint32_t {
      uint32_t value = 0;
      ended |= offset + sizeof value > stateBuffer.size();
      if (!ended) std::memcpy(&value, stateBuffer.data() + offset, sizeof value);
      offset += sizeof value;
      return value;
    };
    if (next() != 1) strange("its cache has more than one stream");
    for (uint32_t left = next(); left > 0 && !ended; left--) {
      next();
      uint32_t sequences = next();
      if (sequences > llama_n_seq_max(context)) strange("its cells are written in a way that kvfold does not know");
      offset += extra + sequences * sizeof(uint32_t);
      ended |= offset > stateBuffer.size();
    }
    if (!ended) {
      cells.state.assign(stateBuffer.begin(), stateBuffer.begin() + offset);
      return;
    }
    if (size >= most) strange("its cells are written in a way that kvfold does not know");
  }
}

Armed::Armed(Tap *tap, llama_context *context, const std::vector<int32_t> &positions, const std::vector<std::shared_ptr<Capture>> &captures)
    : tap(captures.empty() ? nullptr : tap) {
  if (this->tap == nullptr) return;
  for (auto &capture : captures) capture->arm();
  tap->context = context;
  tap->batchPositions = &positions;
  tap->captures = captures;
  tap->asked.assign(tap->headsOf.size(), 0);
  tap->ubatch = -1;
  tap->state = Tap::capturing;
}

Armed::~Armed() {
  if (tap == nullptr) return;
  for (auto &capture : tap->captures)
    if (capture->failure.empty() && capture->read != capture->layers.size() * capture->queries.size())
      capture->failure = "attention/unavailable\nThe decode ended before every row of attention was computed.";
  tap->state = Tap::idle;
  tap->captures.clear();
  tap->base = tap->window = Tap::Cells();
}

}  // namespace kvfold
