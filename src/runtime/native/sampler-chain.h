// The parts of a sampler's chain: what each of them does to the candidates, in which order.
#pragma once

#include "kvfold.h"

namespace kvfold {

// A DRY sampler, prepared for one vocabulary: finding where its breakers occur in the vocabulary takes long.
struct DryHandle {
  std::shared_ptr<ModelHandle> model;
  llama_sampler *sampler = nullptr;
  // Throws native/disposed. Looks at every token's text, so it belongs on another thread.
  void prepare(float multiplier, float base, int32_t allowedLength, int32_t lastN, const std::vector<std::string> &breakers);
  ~DryHandle();
};

// Fills the sampler's chain. The options are those of SamplerOptions; `dry` is a handle.
void addChain(SamplerHandle &sampler, const Napi::Object &options);

}  // namespace kvfold
