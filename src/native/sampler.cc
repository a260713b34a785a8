// Samplers: from the logits of one token to the next token.
//
// Order, as in llama.cpp's default chain: logit bias, penalties, top-k, typical, top-p, min-p, temperature, draw; mirostat replaces the
// filters; temperature 0 takes the likeliest. A grammar is applied first when the likeliest token breaks it: it is costly over a whole
// vocabulary, so the drawn token alone is tried before (the same result: a token that the grammar allows and that was drawn from the
// unconstrained distribution is only kept where nothing was masked).
#include <cmath>

#include "kvfold.h"

namespace kvfold {
namespace {

Napi::Value create(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto *model = handle<ModelHandle>(info[0]);
    auto options = info[1].As<Napi::Object>();
    auto number = [&](const char *name, double fallback) {
      auto value = options.Get(name);
      return value.IsNumber() ? value.As<Napi::Number>().DoubleValue() : fallback;
    };
    int32_t vocabulary = llama_vocab_n_tokens(model->vocab);
    auto *sampler = new SamplerHandle();
    sampler->vocab = model->vocab;
    sampler->candidates.resize(vocabulary);
    auto release = [&] {
      for (auto *part : {sampler->grammar, sampler->chain})
        if (part != nullptr) llama_sampler_free(part);
      delete sampler;
    };
    try {
      if (options.Get("grammar").IsString()) {
        std::string grammar = options.Get("grammar").As<Napi::String>();
        takeLog();
        sampler->grammar = llama_sampler_init_grammar(model->vocab, grammar.c_str(), "root");
        if (sampler->grammar == nullptr) {
          auto log = takeLog();
          throw Failure("engine/bad-grammar", "The grammar does not parse" + (log.empty() ? std::string(": it needs a rule named root and GBNF syntax.") : ": " + log));
        }
      }
      auto *chain = sampler->chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
      if (options.Get("logitBias").IsArray()) {
        auto list = options.Get("logitBias").As<Napi::Array>();
        std::vector<llama_logit_bias> biases(list.Length());
        for (uint32_t i = 0; i < list.Length(); i++) {
          auto entry = list.Get(i).As<Napi::Object>();
          biases[i] = {entry.Get("token").As<Napi::Number>().Int32Value(), entry.Get("bias").As<Napi::Number>().FloatValue()};
        }
        llama_sampler_chain_add(chain, llama_sampler_init_logit_bias(vocabulary, biases.size(), biases.data()));
      }
      double repeat = number("repeatPenalty", 1), frequency = number("frequencyPenalty", 0), presence = number("presencePenalty", 0);
      if (repeat != 1 || frequency != 0 || presence != 0)
        llama_sampler_chain_add(chain, llama_sampler_init_penalties(vocabulary, number("penaltyLastN", 64), repeat, frequency, presence));
      double temperature = number("temperature", 0.8);
      uint32_t seed = static_cast<uint32_t>(number("seed", LLAMA_DEFAULT_SEED));
      if (temperature <= 0) {
        llama_sampler_chain_add(chain, llama_sampler_init_greedy());
      } else if (options.Get("mirostat").IsObject()) {
        auto mirostat = options.Get("mirostat").As<Napi::Object>();
        float tau = mirostat.Get("tau").As<Napi::Number>(), eta = mirostat.Get("eta").As<Napi::Number>();
        llama_sampler_chain_add(chain, llama_sampler_init_temp(temperature));
        llama_sampler_chain_add(chain, mirostat.Get("version").As<Napi::Number>().Int32Value() == 1
                                           ? llama_sampler_init_mirostat(vocabulary, seed, tau, eta, 100)
                                           : llama_sampler_init_mirostat_v2(seed, tau, eta));
      } else {
        if (number("topK", 0) > 0) llama_sampler_chain_add(chain, llama_sampler_init_top_k(number("topK", 0)));
        if (number("typicalP", 1) < 1) llama_sampler_chain_add(chain, llama_sampler_init_typical(number("typicalP", 1), 1));
        if (number("topP", 1) < 1) llama_sampler_chain_add(chain, llama_sampler_init_top_p(number("topP", 1), 1));
        if (number("minP", 0) > 0) llama_sampler_chain_add(chain, llama_sampler_init_min_p(number("minP", 0), 1));
        llama_sampler_chain_add(chain, llama_sampler_init_temp(temperature));
        llama_sampler_chain_add(chain, llama_sampler_init_dist(seed));
      }
    } catch (...) {
      release();
      throw;
    }
    return Napi::External<SamplerHandle>::New(info.Env(), sampler);
  });
}

llama_token draw(SamplerHandle *sampler, const float *logits, bool constrained) {
  for (size_t id = 0; id < sampler->candidates.size(); id++) sampler->candidates[id] = {static_cast<llama_token>(id), logits[id], 0.0f};
  llama_token_data_array array{sampler->candidates.data(), sampler->candidates.size(), -1, false};
  if (constrained) llama_sampler_apply(sampler->grammar, &array);
  llama_sampler_apply(sampler->chain, &array);
  if (array.selected < 0 || static_cast<size_t>(array.selected) >= array.size) throw Failure("native/failed", "The samplers chose no token.");
  if (constrained && !std::isfinite(array.data[array.selected].logit))
    throw Failure("engine/bad-grammar", "The grammar allows no token here; it may be in conflict with the logit bias.");
  return array.data[array.selected].id;
}

Napi::Value sample(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto *sampler = handle<SamplerHandle>(info[0]);
    auto *context = handle<ContextHandle>(info[1]);
    int32_t index = info[2].As<Napi::Number>();
    if (index < 0 || static_cast<size_t>(index) >= context->outputs.size() || !context->outputs[index])
      throw Failure("native/bad-argument", "Logits of batch index " + std::to_string(index) + " were not asked for in the last decode.");
    const float *logits = llama_get_logits_ith(context->context, index);
    llama_token token = draw(sampler, logits, sampler->grammar != nullptr);
    if (sampler->grammar != nullptr) llama_sampler_accept(sampler->grammar, token);
    llama_sampler_accept(sampler->chain, token);
    return Napi::Number::New(info.Env(), token);
  });
}

Napi::Value accept(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto *sampler = handle<SamplerHandle>(info[0]);
    llama_token token = info[1].As<Napi::Number>();
    if (sampler->grammar != nullptr) llama_sampler_accept(sampler->grammar, token);
    llama_sampler_accept(sampler->chain, token);
    return info.Env().Undefined();
  });
}

Napi::Value reset(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto *sampler = handle<SamplerHandle>(info[0]);
    if (sampler->grammar != nullptr) llama_sampler_reset(sampler->grammar);
    llama_sampler_reset(sampler->chain);
    return info.Env().Undefined();
  });
}

Napi::Value release(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto *sampler = handle<SamplerHandle>(info[0]);
    if (sampler->grammar != nullptr) llama_sampler_free(sampler->grammar);
    llama_sampler_free(sampler->chain);
    delete sampler;
    return info.Env().Undefined();
  });
}

}  // namespace

void exportSampler(Napi::Env env, Napi::Object exports) {
  exports.Set("samplerCreate", Napi::Function::New(env, create));
  exports.Set("samplerSample", Napi::Function::New(env, sample));
  exports.Set("samplerAccept", Napi::Function::New(env, accept));
  exports.Set("samplerReset", Napi::Function::New(env, reset));
  exports.Set("samplerFree", Napi::Function::New(env, release));
}

}  // namespace kvfold
