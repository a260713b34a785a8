// The attention tap of a context: captures softmax rows of a decode while llama.cpp computes it.
#pragma once
#include <ggml-backend.h>
#include <ggml.h>

#include <map>

#include "kvfold.h"

namespace kvfold {

// Neighbouring cells that hold neighbouring tokens of one atom (capture.ts). `cell` and `place` are the first cell and the first place.
struct Run {
  int32_t cell, place, length, atom;
};

// What to capture in a decode, and the results of the last decode. Arrays are [layer, head, query, ...]; the last axis varies fastest. A
// place is an index in `positions`.
struct Capture {
  // These fields do not change while the capture lives.
  std::vector<int32_t> layers, heads;
  int32_t atoms = 0, top = 0;
  bool whole = false;

  // Set for each decode: batch indices of the queries, ascending; the position of every place; the atom of every place, -1 for none.
  llama_seq_id seq = 0;
  std::vector<int32_t> queries, positions, atomOf;
  // For each position: its place, -1 for none.
  std::vector<int32_t> placeOf;

  std::vector<float> mass, total, entropy, sink, topWeights, rows;
  std::vector<int32_t> topPlaces;
  // How many pairs of a layer and a query were read so far; layers x queries when complete.
  size_t read = 0;
  // Why the capture failed, as "code\nsentence"; empty if it did not. The decode itself goes on.
  std::string failure;

  // For each mask of the graph: the position of every cell, as the last decode with a single query found it. With it, the next decode need
  // not read all cells from llama.cpp's state.
  struct Known {
    llama_seq_id seq = -1;
    int32_t last = -1;
    std::vector<int32_t> positionOf;
  };
  std::vector<Known> known;

  // Makes room for the results of a decode.
  void arm();
  // Reduces one row (the weights of one head for one query) to sums. `weights` is indexed by cell.
  void reduce(size_t layer, size_t head, size_t query, const std::vector<Run> &runs, const float *weights);
};

struct Tap {
  // For each layer: the number of its query heads, 0 if it computes no softmax.
  std::vector<int32_t> headsOf;
  // Whether some layers of the model use a sliding window.
  bool windowed = false;
  // Bytes of a cell in a saved state besides its position and sequences. Holds the expected number until the probe finds the real one.
  size_t extra = 0;

  // Learns which layers have a softmax, and their heads, by decoding one token. The cache must be empty, and is empty afterwards.
  void probe(llama_context *context, const Log &log);
  static bool evaluate(ggml_tensor *node, bool ask, void *tap);

 private:
  friend class Armed;
  enum { idle, probing, capturing } state = idle;
  llama_context *context = nullptr;
  const std::vector<int32_t> *batchPositions = nullptr;
  std::vector<std::shared_ptr<Capture>> captures;
  // For each layer: how many tokens of the batch its softmax nodes have covered so far. Ubatches take the batch's tokens in order.
  std::vector<int64_t> asked;

  // The data of the ubatch that begins at batch index `ubatch`: its masks in order of appearance, its cells, and the runs of the last rows.
  int64_t ubatch = -1;
  std::vector<const void *> masks;
  struct Cells {
    std::vector<uint8_t> state;
    // For each sequence: the positions that it holds, in the order of the cells.
    std::map<llama_seq_id, std::vector<int32_t>> of;
  };
  Cells base, window;
  struct Seen {
    const Capture *capture;
    const void *mask;
    int64_t row;
    std::vector<Run> runs;
  };
  std::vector<Seen> seen;
  std::vector<uint8_t> stateBuffer;
  std::vector<float> maskBuffer, rowBuffer;
  std::vector<int32_t> visible, at;

  bool learnCells();
  bool wanted(const ggml_tensor *node);
  void read(const ggml_tensor *node);
  const std::vector<Run> &runsOf(Capture &capture, const ggml_tensor *mask, int64_t row, int32_t position);
  void place(Capture &capture, size_t kind, int32_t position, int64_t cells);
  const std::vector<int32_t> &heldBy(llama_seq_id seq, bool inWindow);
  void readCells(Cells &cells, bool inWindow);
};

// Makes the tap capture while this object lives. At its end, every capture that is incomplete gets a failure.
class Armed {
 public:
  Armed(Tap *tap, llama_context *context, const std::vector<int32_t> &positions, const std::vector<std::shared_ptr<Capture>> &captures);
  ~Armed();

 private:
  Tap *tap;
};

// Returns the capture behind a handle, filled with the request in `watched`.
std::shared_ptr<Capture> armedCapture(const Napi::Object &watched);

Napi::Int32Array int32Array(Napi::Env env, const std::vector<int32_t> &values);

}  // namespace kvfold
