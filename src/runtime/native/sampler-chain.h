// The chain of samplers behind a SamplerHandle. Each part filters or changes the candidates for the next token.
#pragma once

#include "kvfold.h"

namespace kvfold {

// A DRY sampler, prepared for one vocabulary. Preparing takes long, because all tokens are searched for its breakers.
struct DryHandle {
  std::shared_ptr<ModelHandle> model;
  llama_sampler *sampler = nullptr;
  // Makes the sampler. It reads every token's text, so call it on another thread. Throws native/disposed if the model was freed.
  void prepare(float multiplier, float base, int32_t allowedLength, int32_t lastN, const std::vector<std::string> &breakers);
  ~DryHandle();
};

// Fills the sampler's chain. The options are SamplerOptions (sampler.ts), with a handle as `dry`.
void addChain(SamplerHandle &sampler, const Napi::Object &options);

}  // namespace kvfold
