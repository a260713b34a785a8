// Samplers: choose the next token from the logits of one token.
//
// Order, as in llama.cpp's default chain: logit bias, penalties, top-k, typical, top-p, min-p, temperature, draw; mirostat replaces the
// filters; temperature 0 takes the likeliest. A grammar over a whole vocabulary is costly, so a token is first drawn without it. Only if
// the grammar refuses that token, it masks the candidates before all other steps and the draw is repeated (as common_sampler_sample in
// llama.cpp does). When the reasoning budget is used up, nothing is drawn: the tokens that close the reasoning come next. Mirostat learns
// from every draw, so with it the grammar always comes first.
#include <algorithm>
#include <cmath>

#include "grammar.h"
#include "lazy-grammar.h"
#include "reasoning-budget.h"

namespace kvfold {
namespace {

double number(const Napi::Object &options, const char *name, double fallback) {
  auto value = options.Get(name);
  return value.IsNumber() ? value.As<Napi::Number>().DoubleValue() : fallback;
}

// Takes the lock that readers of the vocabulary share, so that the vocabulary is not freed meanwhile.
std::shared_ptr<Grammar> compiled(ModelHandle &model, const std::string &text) {
  std::shared_lock<std::shared_mutex> lock(model.reading);
  if (model.vocab == nullptr) throw Failure("native/disposed", "The model was disposed; load it again.");
  model.pieces();
  return std::make_shared<Grammar>(std::make_shared<GrammarRules>(model.vocab, text), model);
}

struct GrammarHandle {
  std::shared_ptr<ModelHandle> model;
  std::shared_ptr<Grammar> grammar;
};

// (model, text)
Napi::Value compile(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto handle = std::make_shared<GrammarHandle>();
    handle->model = modelOf(info[0]);
    return Task::run(
        info.Env(), [handle, text = info[1].As<Napi::String>().Utf8Value()] { handle->grammar = compiled(*handle->model, text); },
        [handle](Napi::Env env) -> Napi::Value {
          return Napi::External<std::shared_ptr<GrammarHandle>>::New(
              env, new std::shared_ptr<GrammarHandle>(handle), [](Napi::Env, std::shared_ptr<GrammarHandle> *box) { delete box; });
        });
  });
}

// Compiles a text at once. Copies a compiled grammar, because every sampler needs a state of its own.
void addGrammar(SamplerHandle &sampler, const Napi::Value &grammar) {
  if (grammar.IsString()) {
    sampler.grammar = std::make_unique<Grammar>(*compiled(*sampler.model, grammar.As<Napi::String>()));
  } else {
    auto handle = unboxed<GrammarHandle>(grammar);
    if (handle->model != sampler.model) throw Failure("native/bad-argument", "The grammar was compiled for another model.");
    sampler.grammar = std::make_unique<Grammar>(*handle->grammar);
  }
  sampler.awake = true;
}

void addChain(SamplerHandle &sampler, const Napi::Object &options) {
  int32_t vocabulary = llama_vocab_n_tokens(sampler.model->vocab);
  auto *chain = sampler.chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
  auto add = [&](llama_sampler *part) { llama_sampler_chain_add(chain, part); };
  auto get = [&](const char *name, double fallback) { return number(options, name, fallback); };

  if (options.Get("logitBias").IsArray()) {
    auto list = options.Get("logitBias").As<Napi::Array>();
    std::vector<llama_logit_bias> biases(list.Length());
    for (uint32_t i = 0; i < list.Length(); i++) {
      auto entry = list.Get(i).As<Napi::Object>();
      biases[i] = {entry.Get("token").As<Napi::Number>().Int32Value(), entry.Get("bias").As<Napi::Number>().FloatValue()};
    }
    if (!biases.empty()) add(llama_sampler_init_logit_bias(vocabulary, biases.size(), biases.data()));
  }
  double repeat = get("repeatPenalty", 1), frequency = get("frequencyPenalty", 0), presence = get("presencePenalty", 0);
  if (repeat != 1 || frequency != 0 || presence != 0)
    add(llama_sampler_init_penalties(vocabulary, get("penaltyLastN", 64), repeat, frequency, presence));

  double temperature = get("temperature", 0.8);
  auto seed = static_cast<uint32_t>(get("seed", LLAMA_DEFAULT_SEED));
  if (temperature <= 0) {
    add(llama_sampler_init_greedy());
  } else if (options.Get("mirostat").IsObject()) {
    auto mirostat = options.Get("mirostat").As<Napi::Object>();
    float tau = mirostat.Get("tau").As<Napi::Number>(), eta = mirostat.Get("eta").As<Napi::Number>();
    sampler.stateful = true;
    add(llama_sampler_init_temp(temperature));
    add(number(mirostat, "version", 2) == 1 ? llama_sampler_init_mirostat(vocabulary, seed, tau, eta, 100)
                                            : llama_sampler_init_mirostat_v2(seed, tau, eta));
  } else {
    if (get("topK", 0) > 0) add(llama_sampler_init_top_k(get("topK", 0)));
    if (get("typicalP", 1) < 1) add(llama_sampler_init_typical(get("typicalP", 1), 1));
    if (get("topP", 1) < 1) add(llama_sampler_init_top_p(get("topP", 1), 1));
    if (get("minP", 0) > 0) add(llama_sampler_init_min_p(get("minP", 0), 1));
    add(llama_sampler_init_temp(temperature));
    add(llama_sampler_init_dist(seed));
  }
}

Napi::Value create(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto options = info[1].As<Napi::Object>();
    auto sampler = std::make_shared<SamplerHandle>();
    sampler->model = modelOf(info[0]);
    sampler->candidates.resize(llama_vocab_n_tokens(sampler->model->vocab));
    if (!options.Get("grammar").IsUndefined()) addGrammar(*sampler, options.Get("grammar"));
    if (options.Get("lazy").IsObject()) {
      sampler->lazy = std::make_unique<LazyGrammar>(*sampler->model, *sampler->grammar, options.Get("lazy").As<Napi::Object>());
      sampler->awake = sampler->lazy->begin();
    }
    if (options.Get("budget").IsObject()) sampler->budget = std::make_unique<ReasoningBudget>(options.Get("budget").As<Napi::Object>());
    addChain(*sampler, options);
    return boxed(info.Env(), sampler);
  });
}

bool allowed(const SamplerHandle &sampler, llama_token token) {
  if (sampler.awake) return sampler.grammar->allows(token);
  return sampler.lazy == nullptr || sampler.lazy->permits(token);
}

llama_token draw(SamplerHandle &sampler, const float *logits, bool constrained, const std::vector<llama_token> &without = {}) {
  for (size_t id = 0; id < sampler.candidates.size(); id++) sampler.candidates[id] = {static_cast<llama_token>(id), logits[id], 0.0f};
  for (auto token : without) sampler.candidates[token].logit = -INFINITY;
  if (constrained) sampler.grammar->mask(sampler.candidates);
  llama_token_data_array array{sampler.candidates.data(), sampler.candidates.size(), -1, false};
  llama_sampler_apply(sampler.chain, &array);
  if (array.selected < 0 || static_cast<size_t>(array.selected) >= array.size) throw Failure("native/failed", "The samplers chose no token.");
  return array.data[array.selected].id;
}

void accept(SamplerHandle &sampler, llama_token token) {
  if (!allowed(sampler, token))
    throw Failure("engine/bad-grammar", "The grammar does not allow token " + std::to_string(token) + " here.");
  if (sampler.awake) sampler.grammar->take(token);
  else if (sampler.lazy != nullptr) sampler.awake = sampler.lazy->take(token);
  if (sampler.budget != nullptr) sampler.budget->take(token, pieceOf(sampler.model->vocab, token));
  llama_sampler_accept(sampler.chain, token);
}

Napi::Value sampleToken(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto sampler = samplerOf(info[0]);
    auto context = contextOf(info[1]);
    if (context->model != sampler->model) throw Failure("native/bad-argument", "The sampler and the context belong to different models.");
    return Napi::Number::New(info.Env(), drawFrom(*sampler, logitsAt(*context, info[2].As<Napi::Number>().Int32Value())));
  });
}

Napi::Value acceptToken(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto sampler = samplerOf(info[0]);
    std::lock_guard<std::mutex> lock(sampler->mutex);
    accept(*sampler, info[1].As<Napi::Number>().Int32Value());
    return info.Env().Undefined();
  });
}

Napi::Value reset(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto sampler = samplerOf(info[0]);
    std::lock_guard<std::mutex> lock(sampler->mutex);
    if (sampler->grammar != nullptr) sampler->grammar->begin();
    if (sampler->lazy != nullptr) sampler->awake = sampler->lazy->begin();
    if (sampler->budget != nullptr) sampler->budget->begin();
    llama_sampler_reset(sampler->chain);
    return info.Env().Undefined();
  });
}

Napi::Value release(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    unboxed<SamplerHandle>(info[0])->free();
    return info.Env().Undefined();
  });
}

}  // namespace

llama_token drawFrom(SamplerHandle &sampler, const float *logits) {
  std::lock_guard<std::mutex> lock(sampler.mutex);
  if (sampler.chain == nullptr) throw Failure("native/disposed", "The sampler was disposed; create another.");
  if (sampler.budget != nullptr) {
    llama_token due = sampler.budget->due();
    if (due != LLAMA_TOKEN_NULL && allowed(sampler, due)) {
      accept(sampler, due);
      return due;
    }
    if (due != LLAMA_TOKEN_NULL) sampler.budget->giveUp();
  }
  bool constrain = sampler.awake;
  llama_token token = draw(sampler, logits, constrain && sampler.stateful);
  if (constrain && !sampler.stateful && !allowed(sampler, token)) token = draw(sampler, logits, true);
  // The token begins a call but does not continue as one: draw again without it.
  for (std::vector<llama_token> without; !constrain && !allowed(sampler, token) && without.size() < sampler.candidates.size();) {
    without.push_back(token);
    token = draw(sampler, logits, false, without);
  }
  if (!allowed(sampler, token))
    throw Failure("engine/bad-grammar", "The grammar allows no token here; it contradicts itself, the vocabulary or the logit bias.");
  accept(sampler, token);
  return token;
}

void exportSampler(Napi::Env env, Napi::Object exports) {
  exports.Set("grammarCompile", Napi::Function::New(env, compile));
  exports.Set("samplerCreate", Napi::Function::New(env, create));
  exports.Set("samplerSample", Napi::Function::New(env, sampleToken));
  exports.Set("samplerAccept", Napi::Function::New(env, acceptToken));
  exports.Set("samplerReset", Napi::Function::New(env, reset));
  exports.Set("samplerFree", Napi::Function::New(env, release));
}

}  // namespace kvfold
