// The attention tap of a context: which softmax rows of a decode are wanted, and what becomes of them while llama.cpp computes.
#pragma once
#include <ggml-backend.h>
#include <ggml.h>

#include <map>

#include "kvfold.h"

namespace kvfold {

// Neighbouring cells that show neighbouring places of one atom.
struct Run {
  int32_t cell, place, length, atom;
};

// What one step wants of its rows, and what it got of the last decode. Rows are [layer, head, query, ...], the last axis varies fastest.
struct Capture {
  // For life.
  std::vector<int32_t> layers, heads;
  int32_t atoms = 0, top = 0;
  bool whole = false;

  // For one decode: batch indices of the queries, ascending; the position of every place; the atom of every place, -1 for none.
  llama_seq_id seq = 0;
  std::vector<int32_t> queries, positions, atomOf;
  // Position -> place, -1 for none.
  std::vector<int32_t> placeOf;

  std::vector<float> mass, total, entropy, sink, topWeights, rows;
  std::vector<int32_t> topPlaces;
  // Rows read so far; layers x queries when it is complete.
  size_t read = 0;
  // "code\nsentence" when something went wrong; the decode itself is not to suffer for it.
  std::string failure;

  // Positions by cell, as the last lone query of a sequence saw them, for each mask of the graph: saves asking for the cells again.
  struct Known {
    llama_seq_id seq = -1;
    int32_t last = -1;
    std::vector<int32_t> positionOf;
  };
  std::vector<Known> known;

  // Makes room for the results of a decode.
  void arm();
  // The row of one head: `weights` by cell.
  void reduce(size_t layer, size_t head, size_t query, const std::vector<Run> &runs, const float *weights);
};

struct Tap {
  // By layer: query heads, 0 where no softmax is computed.
  std::vector<int32_t> headsOf;
  // Some layers see a window only.
  bool windowed = false;
  // Bytes of a cell in a state beside its position and sequences: as expected, then as found.
  size_t extra = 0;

  // Finds out what the graph has, by decoding a token; the cache is empty before and after.
  void probe(llama_context *context, const Log &log);
  static bool evaluate(ggml_tensor *node, bool ask, void *tap);

 private:
  friend class Armed;
  enum { idle, probing, capturing } state = idle;
  llama_context *context = nullptr;
  const std::vector<int32_t> *batchPositions = nullptr;
  std::vector<std::shared_ptr<Capture>> captures;
  // By layer: rows of the batch whose softmax was asked about. Ubatches take the batch's tokens in order.
  std::vector<int64_t> asked;

  // Of the ubatch that begins at batch index `ubatch`: its masks in order of appearance, the cells, and the runs of the last rows.
  int64_t ubatch = -1;
  std::vector<const void *> masks;
  struct Cells {
    std::vector<uint8_t> state;
    // Positions that a sequence holds, in the order of cells.
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

// Has the tap capture while the object lives; afterwards every capture that is not complete has a failure.
class Armed {
 public:
  Armed(Tap *tap, llama_context *context, const std::vector<int32_t> &positions, const std::vector<std::shared_ptr<Capture>> &captures);
  ~Armed();

 private:
  Tap *tap;
};

// The capture behind a handle, armed as the object says.
std::shared_ptr<Capture> armedCapture(const Napi::Object &watched);

Napi::Int32Array int32Array(Napi::Env env, const std::vector<int32_t> &values);

}  // namespace kvfold
