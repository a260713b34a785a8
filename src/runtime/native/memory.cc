// Operations on llama.cpp's KV cache: which sequences see a cell (its tags), positions, shifts, and whole sequences as bytes. context.ts
// checks the arguments first, because llama.cpp ends the process on bad ones.
#include <cstring>

#include "kvfold.h"

namespace kvfold {
namespace {

int32_t at(const Napi::CallbackInfo &info, size_t index) { return info[index].As<Napi::Number>().Int32Value(); }

Napi::Value tag(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    llama_memory_seq_cp(llama_get_memory(contextOf(info[0])->context), at(info, 1), at(info, 2), at(info, 3), at(info, 4));
    return info.Env().Undefined();
  });
}

Napi::Value untag(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    if (!llama_memory_seq_rm(llama_get_memory(contextOf(info[0])->context), at(info, 1), at(info, 2), at(info, 3)))
      throw Failure("model/unsupported", "This model's cache cannot drop a part of a sequence.");
    return info.Env().Undefined();
  });
}

Napi::Value shift(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto context = contextOf(info[0]);
    context->turning = true;
    llama_memory_seq_add(llama_get_memory(context->context), at(info, 1), at(info, 2), at(info, 3), at(info, 4));
    return info.Env().Undefined();
  });
}

// Returns the smallest and the largest position of a sequence, [-1, -1] if the sequence is empty.
Napi::Value positions(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto memory = llama_get_memory(contextOf(info[0])->context);
    auto out = Napi::Array::New(info.Env(), 2);
    out.Set(0u, llama_memory_seq_pos_min(memory, at(info, 1)));
    out.Set(1u, llama_memory_seq_pos_max(memory, at(info, 1)));
    return out;
  });
}

Napi::Value clear(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto context = contextOf(info[0]);
    llama_memory_clear(llama_get_memory(context->context), false);
    context->outputs.clear();
    return info.Env().Undefined();
  });
}

// Returns, cell after cell, its position, the number of its sequences, and their ids. It parses the head of the state that llama.cpp v0.5.0
// writes, in numbers of 32 bits. The head begins with the length and the letters of the architecture's name
// (llama_context::state_write_data), and the number of streams. For each stream follow the number of occupied cells and, for each cell,
// position, number of sequences, sequences (llama_kv_cache::state_write, state_write_meta). If positions have several dimensions (M-RoPE),
// three numbers precede the sequences (llama_kv_cell_ext). Keys and values come after the head and are not read.
Napi::Value readback(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto handle = contextOf(info[0]);
    auto *context = handle->context;
    std::vector<uint8_t> state(llama_state_get_size(context));
    size_t size = llama_state_get_data(context, state.data(), state.size());
    size_t at = 0;
    auto next = [&]() {
      uint32_t value;
      if (at + sizeof value > size) throw Failure("native/failed", "The state of the context ends early.");
      std::memcpy(&value, state.data() + at, sizeof value);
      at += sizeof value;
      return value;
    };
    at += next();
    if (next() != 1) throw Failure("native/failed", "The state of the context does not have exactly one stream, as a unified cache has.");
    auto rope = llama_model_rope_type(llama_get_model(context));
    size_t extra = rope == LLAMA_ROPE_TYPE_MROPE || rope == LLAMA_ROPE_TYPE_IMROPE ? 3 * sizeof(uint32_t) : 0;
    std::vector<int32_t> out;
    for (uint32_t cell = 0, count = next(); cell < count; cell++) {
      out.push_back(next());
      uint32_t sequences = next();
      if (sequences > llama_n_seq_max(context)) throw Failure("native/failed", "A cell of this state has too many sequences.");
      out.push_back(sequences);
      at += extra;
      for (uint32_t i = 0; i < sequences; i++) out.push_back(next());
    }
    auto array = Napi::Int32Array::New(info.Env(), out.size());
    std::copy(out.begin(), out.end(), array.Data());
    return array;
  });
}

// A saved sequence in a host block. The block begins with `room` unused bytes for the caller's header; `size` includes them.
struct State {
  HostBlock block;
  size_t size = 0;
};

State stateOf(llama_context *context, llama_seq_id seq, size_t room) {
  size_t size = llama_state_seq_get_size(context, seq);
  if (size == 0) throw Failure("native/failed", "llama.cpp could not measure sequence " + std::to_string(seq) + ".");
  State state{takeBlock(room + size), room + size};
  Log log;
  if (llama_state_seq_get_data(context, state.block.data + room, size, seq) == size) return state;
  giveBlock(state.block);
  throw Failure("native/failed", "llama.cpp could not copy sequence " + std::to_string(seq) + log.why());
}

// Loads a state into an empty sequence. Returns false if llama.cpp refuses it, e.g. for lack of room; the sequence then stays empty.
bool loaded(llama_context *context, llama_seq_id seq, const uint8_t *data, size_t size) {
  Log log;
  size_t read = 0;
  try {
    read = llama_state_seq_set_data(context, data, size, seq);
  } catch (const std::bad_alloc &) {
    // Some cells may have been loaded already.
    llama_memory_seq_rm(llama_get_memory(context), seq, -1, -1);
    throw;
  } catch (const std::exception &) {
    read = 0;
  }
  if (read == 0) llama_memory_seq_rm(llama_get_memory(context), seq, -1, -1);
  return read > 0;
}

Napi::Value save(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto state = stateOf(contextOf(info[0])->context, at(info, 1), info[2].As<Napi::Number>().Int64Value());
    return bytesOf(info.Env(), state.block, state.size);
  });
}

Napi::Value load(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto state = info[2].As<Napi::Uint8Array>();
    size_t room = info[3].As<Napi::Number>().Int64Value();
    return Napi::Boolean::New(info.Env(),
                              loaded(contextOf(info[0])->context, at(info, 1), state.Data() + room, state.ElementLength() - room));
  });
}

// Does the same as `save`, but off the event loop.
Napi::Value copyOut(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto handle = contextOf(info[0]);
    llama_seq_id seq = at(info, 1);
    size_t room = info[2].As<Napi::Number>().Int64Value();
    auto state = std::make_shared<State>();
    return Task::run(
        info.Env(),
        [=] {
          std::lock_guard<std::mutex> lock(handle->running);
          if (handle->context == nullptr) throw Failure("native/disposed", "The context was disposed; create another.");
          *state = stateOf(handle->context, seq, room);
        },
        [=](Napi::Env env) { return bytesOf(env, state->block, state->size); });
  });
}

// Does the same as `load`, but off the event loop.
Napi::Value copyIn(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto handle = contextOf(info[0]);
    llama_seq_id seq = at(info, 1);
    auto state = info[2].As<Napi::Uint8Array>();
    size_t room = info[3].As<Napi::Number>().Int64Value();
    const uint8_t *data = state.Data() + room;
    size_t size = state.ElementLength() - room;
    // Keeps the state's bytes alive until the copy ends.
    auto kept = std::make_shared<Napi::ObjectReference>(Napi::Persistent(state.As<Napi::Object>()));
    auto is = std::make_shared<bool>(false);
    return Task::run(
        info.Env(),
        [=] {
          std::lock_guard<std::mutex> lock(handle->running);
          if (handle->context == nullptr) throw Failure("native/disposed", "The context was disposed; create another.");
          *is = loaded(handle->context, seq, data, size);
        },
        [kept, is](Napi::Env env) -> Napi::Value { return Napi::Boolean::New(env, *is); });
  });
}

}  // namespace

void exportMemory(Napi::Env env, Napi::Object exports) {
  exports.Set("tag", Napi::Function::New(env, tag));
  exports.Set("untag", Napi::Function::New(env, untag));
  exports.Set("shift", Napi::Function::New(env, shift));
  exports.Set("positions", Napi::Function::New(env, positions));
  exports.Set("clear", Napi::Function::New(env, clear));
  exports.Set("readback", Napi::Function::New(env, readback));
  exports.Set("saveSequence", Napi::Function::New(env, save));
  exports.Set("loadSequence", Napi::Function::New(env, load));
  exports.Set("copyOut", Napi::Function::New(env, copyOut));
  exports.Set("copyIn", Napi::Function::New(env, copyIn));
}

}  // namespace kvfold
