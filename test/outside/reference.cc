// A fresh prefill by llama.cpp's C API alone. Started with: folder of the backends, model, cells, flash attention (0, 1), type of keys, type
// of values (numbers of ggml_type). Then reads requests and writes replies, all numbers of 32 bits in the machine's order:
//   1, n, from, n tokens: log-probabilities of all tokens behind place `from` and behind each later place, three times: prefilled whole; in
//     small chunks beside another sequence, one token a decode behind `from`; and at once, whole, in a cache that held others before.
//   2, n, n tokens: their text, control tokens included.
//   3, n, n tokens, from, m, m decodes: log-probabilities as in 1, once, prefilled in these decodes, each of four numbers: rows of another
//     sequence before, rows of these tokens, rows of another sequence behind, which stay; 512 at most; and the decode's rank by the place of its cells.
//   4, n, n tokens of the text before the edits, m, m rows of what is shown, `size`: log-probabilities behind the last row. A row is three
//     numbers: the token, the place in that text whose cell is kept or -1 for a token to decode, and whether a decode ends there.
// A reply is a count of bytes and the bytes. The first reply, unasked for, is the number of tokens in the vocabulary.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "llama.h"

namespace {

constexpr int CHUNK = 61;
constexpr int BESIDE = 29;
constexpr int NONE = 1 << 30;

[[noreturn]] void fail(const std::string &what) {
  std::fprintf(stderr, "reference: %s\n", what.c_str());
  std::exit(1);
}

bool readAll(void *to, size_t size) { return std::fread(to, 1, size, stdin) == size; }

void reply(const void *bytes, size_t size) {
  const uint32_t count = size;
  if (std::fwrite(&count, sizeof count, 1, stdout) != 1 || std::fwrite(bytes, 1, size, stdout) != size || std::fflush(stdout) != 0)
    fail("nobody reads the replies");
}

struct Reference {
  llama_model *model;
  const llama_vocab *vocab;
  int size;
  // Rows of sequence 1 that were decoded around others, since the last request.
  int others = 0;

  llama_context *context(const llama_context_params &common, int cells, int chunk, int sequences) const {
    auto params = common;
    params.n_ctx = cells;
    params.n_batch = params.n_ubatch = chunk;
    params.n_seq_max = sequences;
    params.kv_unified = true;
    auto *made = llama_init_from_model(model, params);
    if (made == nullptr) fail("no context");
    return made;
  }

  // Logits of the tokens from position `from` on are kept. `before`, `behind`: rows of sequence 1 around them.
  void decode(llama_context *context, const int32_t *tokens, int own, int position, int seq, int from, int before = 0,
              int behind = 0) {
    const int count = before + own + behind;
    std::vector<llama_token> rows(count, 7);
    std::vector<llama_pos> positions(count);
    std::vector<int32_t> counts(count, 1);
    std::vector<llama_seq_id> ids(count, 1);
    std::vector<llama_seq_id *> lists(count);
    std::vector<int8_t> wanted(count);
    for (int i = 0; i < count; i++) {
      const int place = i - before;
      const bool isOwn = place >= 0 && place < own;
      positions[i] = isOwn ? position + place : others++;
      lists[i] = &ids[i];
      if (!isOwn) continue;
      rows[i] = tokens[place], ids[i] = seq, wanted[i] = position + place >= from;
    }
    llama_batch batch{};
    batch.n_tokens = count;
    batch.token = rows.data();
    batch.pos = positions.data();
    batch.n_seq_id = counts.data();
    batch.seq_id = lists.data();
    batch.logits = wanted.data();
    if (int status = llama_decode(context, batch); status != 0) fail("llama_decode said " + std::to_string(status));
  }

  void take(llama_context *context, int first, int count, std::vector<float> &out) const {
    for (int row = first; row < count; row++) {
      const float *logits = llama_get_logits_ith(context, row);
      if (logits == nullptr) fail("no logits");
      double max = logits[0], sum = 0;
      for (int i = 1; i < size; i++) max = std::fmax(max, logits[i]);
      for (int i = 0; i < size; i++) sum += std::exp(logits[i] - max);
      for (int i = 0; i < size; i++) out.push_back(logits[i] - max - std::log(sum));
    }
  }

  // Log-probabilities behind `from` and each later place. `one`: tokens behind `from` are decoded one by one.
  void prefill(llama_context *context, const std::vector<int32_t> &tokens, int from, int chunk, bool beside, bool one,
               std::vector<float> &out) {
    const int count = tokens.size();
    for (int at = 0, turn = 0; at < count; turn++) {
      if (beside && at < from) {
        const std::vector<int32_t> other(BESIDE, 1 + turn % 200);
        decode(context, other.data(), BESIDE, turn * BESIDE, 1, NONE);
      }
      // The last token of a prompt comes with those before it, as it does in a prefill.
      const int end = !one ? std::min(at + chunk, count) : at <= from ? std::min(at + chunk, from + 1) : at + 1;
      decode(context, tokens.data() + at, end - at, at, 0, from);
      if (end > from) take(context, std::max(0, from - at), end - at, out);
      at = end;
    }
  }

  // Each decode has four numbers: rows of others before, own ones, of others behind, and the rank of its cells in the cache.
  void prefillAs(llama_context *context, const std::vector<int32_t> &tokens, int from, const std::vector<int32_t> &decodes,
                 std::vector<float> &out) {
    const int count = decodes.size() / 4;
    auto rows = [&](int decode) { return decodes[4 * decode] + decodes[4 * decode + 1] + decodes[4 * decode + 2]; };
    std::vector<int> byRank(count), first(count + 1);
    for (int i = 0; i < count; i++) byRank.at(decodes[4 * i + 3]) = i;
    for (int rank = 0; rank < count; rank++) first[rank + 1] = first[rank] + rows(byRank[rank]);
    // Sequence 2 has all the cells, and gives a decode's cells free before it runs: llama.cpp takes free cells.
    const int width = llama_n_batch(context);
    const bool inOrder = std::is_sorted(byRank.begin(), byRank.end());
    for (int cell = 0; cell < first[count] && !inOrder; cell += width) {
      const std::vector<int32_t> filling(std::min(width, first[count] - cell), 7);
      decode(context, filling.data(), filling.size(), cell, 2, NONE);
    }
    int at = 0;
    others = 0;
    for (int i = 0; i < count; i++) {
      const int before = decodes[4 * i], own = decodes[4 * i + 1], behind = decodes[4 * i + 2], rank = decodes[4 * i + 3];
      if (own < 0 || at + own > (int)tokens.size()) fail("the decodes are not those of the tokens");
      if (!inOrder) llama_memory_seq_rm(llama_get_memory(context), 2, first[rank], first[rank + 1]);
      decode(context, tokens.data() + at, own, at, 0, from, before, behind);
      if (at + own > from) take(context, before + std::max(0, from - at), before + own, out);
      at += own;
    }
  }

  // Reads the text in sequence 0 and puts the shown rows together in sequence 2, from left to right. llama.cpp decodes only behind a
  // sequence's last position, so a decoded row comes right after the row before it.
  void splice(llama_context *context, const std::vector<int32_t> &base, const std::vector<int32_t> &rows, std::vector<float> &out) {
    auto *memory = llama_get_memory(context);
    const int read = base.size();
    for (int at = 0; at < read; at += 512) decode(context, base.data() + at, std::min(512, read - at), at, 0, NONE);
    std::vector<int32_t> waiting;
    const int count = rows.size() / 3;
    auto flush = [&](bool last) {
      if (waiting.empty()) return;
      const int position = llama_memory_seq_pos_max(memory, 2) + 1, own = waiting.size();
      decode(context, waiting.data(), own, position, 2, last ? position + own - 1 : NONE);
      if (last) take(context, own - 1, own, out);
      waiting.clear();
    };
    for (int i = 0; i < count; i++) {
      const int token = rows[3 * i], place = rows[3 * i + 1];
      if (place < 0) {
        if (token < 0 || token >= size) fail("no such token: " + std::to_string(token));
        waiting.push_back(token);
        if (i + 1 == count || rows[3 * i + 2] != 0) flush(i + 1 == count);
        continue;
      }
      if (i + 1 == count) fail("the last row must be decoded");
      if (place >= read || base[place] != token) fail("a kept row is not the text's");
      flush(false);
      llama_memory_seq_cp(memory, 0, 2, place, place + 1);
    }
  }
};

}  // namespace

int main(int count, char **args) {
  if (count != 7) fail("needs: backends, model, cells, flash attention, key type, value type");
  llama_log_set([](ggml_log_level level, const char *text, void *) { if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr); }, nullptr);
  ggml_backend_load_all_from_path(args[1]);
  llama_backend_init();
  auto modelParams = llama_model_default_params();
  modelParams.n_gpu_layers = 0;
  Reference reference{};
  reference.model = llama_model_load_from_file(args[2], modelParams);
  if (reference.model == nullptr) fail("no model");
  reference.vocab = llama_model_get_vocab(reference.model);
  reference.size = llama_vocab_n_tokens(reference.vocab);
  const int cells = std::atoi(args[3]);
  auto params = llama_context_default_params();
  params.n_threads = params.n_threads_batch = 1;
  params.flash_attn_type = std::atoi(args[4]) != 0 ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.type_k = static_cast<ggml_type>(std::atoi(args[5]));
  params.type_v = static_cast<ggml_type>(std::atoi(args[6]));
  params.no_perf = true;
  auto *whole = reference.context(params, 2 * cells, 512, 3);
  auto *chunked = reference.context(params, 2 * cells, CHUNK, 2);
  reply(&reference.size, sizeof reference.size);

  for (int32_t head[2]; readAll(head, sizeof head);) {
    int32_t from = 0;
    if (head[0] == 1 && !readAll(&from, sizeof from)) fail("a request ends early");
    std::vector<int32_t> tokens(head[1]);
    if (!readAll(tokens.data(), tokens.size() * sizeof(int32_t))) fail("a request ends early");
    for (auto token : tokens)
      if (token < 0 || token >= reference.size) fail("no such token: " + std::to_string(token));
    if (head[0] == 1) {
      std::vector<float> out;
      llama_memory_clear(llama_get_memory(whole), true);
      reference.prefill(whole, tokens, from, 512, false, false, out);
      llama_memory_clear(llama_get_memory(chunked), true);
      reference.prefill(chunked, tokens, from, CHUNK, true, true, out);
      // Behind the cells of another sequence that is gone.
      llama_memory_clear(llama_get_memory(chunked), true);
      const std::vector<int32_t> other(CHUNK, 7);
      reference.decode(chunked, other.data(), CHUNK, 0, 1, NONE);
      reference.prefill(chunked, tokens, from, 37, false, true, out);
      reply(out.data(), out.size() * sizeof(float));
    } else if (head[0] == 3) {
      int32_t more[2];
      if (!readAll(more, sizeof more)) fail("a request ends early");
      std::vector<int32_t> decodes(4 * more[1]);
      if (!readAll(decodes.data(), decodes.size() * sizeof(int32_t))) fail("a request ends early");
      std::vector<float> out;
      llama_memory_clear(llama_get_memory(whole), true);
      reference.prefillAs(whole, tokens, more[0], decodes, out);
      reply(out.data(), out.size() * sizeof(float));
    } else if (head[0] == 4) {
      int32_t many = 0;
      if (!readAll(&many, sizeof many)) fail("a request ends early");
      std::vector<int32_t> rows(3 * many);
      if (!readAll(rows.data(), rows.size() * sizeof(int32_t))) fail("a request ends early");
      std::vector<float> out;
      llama_memory_clear(llama_get_memory(whole), true);
      reference.splice(whole, tokens, rows, out);
      reply(out.data(), out.size() * sizeof(float));
    } else if (head[0] == 2) {
      std::string text;
      for (auto token : tokens) {
        char piece[512];
        const int size = llama_token_to_piece(reference.vocab, token, piece, sizeof piece, 0, true);
        if (size > 0) text.append(piece, size);
      }
      reply(text.data(), text.size());
    } else fail("no such request");
  }
}
