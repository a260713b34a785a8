// The unified cache: tags, positions, shifts. Arguments were checked before (context.ts), because llama.cpp asserts on bad ones.
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
    llama_memory_seq_add(llama_get_memory(contextOf(info[0])->context), at(info, 1), at(info, 2), at(info, 3), at(info, 4));
    return info.Env().Undefined();
  });
}

// [min, max] of a sequence, [-1, -1] when it holds nothing.
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

}  // namespace

void exportMemory(Napi::Env env, Napi::Object exports) {
  exports.Set("tag", Napi::Function::New(env, tag));
  exports.Set("untag", Napi::Function::New(env, untag));
  exports.Set("shift", Napi::Function::New(env, shift));
  exports.Set("positions", Napi::Function::New(env, positions));
  exports.Set("clear", Napi::Function::New(env, clear));
}

}  // namespace kvfold
