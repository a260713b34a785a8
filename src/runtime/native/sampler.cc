// Samplers: choose the next token from logits.
//
// A sampler is a chain of parts (sampler-chain.cc). To mask a whole vocabulary by a grammar is costly, so a token is first drawn without
// the grammar. If the grammar refuses it, the grammar masks the candidates and the draw is repeated (as common_sampler_sample in llama.cpp
// does). Mirostat and adaptive-p learn from every draw, so with them the grammar masks first.
//
// When the reasoning budget is used up, nothing is drawn: the tokens that close the reasoning come next.
#include <algorithm>
#include <cmath>

#include "answer-limits.h"
#include "grammar.h"
#include "lazy-grammar.h"
#include "reasoning-budget.h"
#include "sampler-chain.h"

namespace kvfold {
namespace {

// Compiles a grammar's text. Holds the readers' lock, so that the vocabulary is not freed meanwhile.
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

struct WordsHandle {
  std::shared_ptr<ModelHandle> model;
  std::shared_ptr<const BadWords> words;
};

// Makes a JavaScript handle like `boxed`, but without adding the object to `Live`: its memory need not be freed before the environment
// ends.
template <typename T>
Napi::Value external(Napi::Env env, const std::shared_ptr<T> &handle) {
  return Napi::External<std::shared_ptr<T>>::New(env, new std::shared_ptr<T>(handle), [](Napi::Env, std::shared_ptr<T> *box) { delete box; });
}

std::vector<std::string> texts(const Napi::Value &value) {
  std::vector<std::string> all;
  auto list = value.As<Napi::Array>();
  for (uint32_t i = 0; i < list.Length(); i++) all.push_back(list.Get(i).As<Napi::String>().Utf8Value());
  return all;
}

// Compiles a grammar on another thread; the arguments are (model, text).
Napi::Value compile(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto handle = std::make_shared<GrammarHandle>();
    handle->model = modelOf(info[0]);
    return Task::run(
        info.Env(), [handle, text = info[1].As<Napi::String>().Utf8Value()] { handle->grammar = compiled(*handle->model, text); },
        [handle](Napi::Env env) { return external(env, handle); });
  });
}

// Gives the sampler its grammar. A string is compiled at once. A compiled grammar is copied, because each sampler needs its own state.
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

// Feeds the tokens before the answer to the samplers that count them (penalties, DRY).
void see(SamplerHandle &sampler) {
  for (auto *part : sampler.seeing)
    for (llama_token token : sampler.seen) llama_sampler_accept(part, token);
}

// Prepares a DRY sampler on another thread; the arguments are (model, multiplier, base, allowedLength, lastN, breakers).
Napi::Value prepareDry(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto dry = std::make_shared<DryHandle>();
    dry->model = modelOf(info[0]);
    float multiplier = info[1].As<Napi::Number>(), base = info[2].As<Napi::Number>();
    int32_t allowedLength = info[3].As<Napi::Number>(), lastN = info[4].As<Napi::Number>();
    return Task::run(
        info.Env(),
        [dry, multiplier, base, allowedLength, lastN, breakers = texts(info[5])] {
          dry->prepare(multiplier, base, allowedLength, lastN, breakers);
        },
        [dry](Napi::Env env) { return external(env, dry); });
  });
}

// Finds forbidden words in the vocabulary, on another thread; the arguments are (model, words).
Napi::Value prepareWords(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto handle = std::make_shared<WordsHandle>();
    handle->model = modelOf(info[0]);
    return Task::run(
        info.Env(), [handle, words = texts(info[1])] { handle->words = std::make_shared<BadWords>(*handle->model, words); },
        [handle](Napi::Env env) { return external(env, handle); });
  });
}

void addLimits(SamplerHandle &sampler, const Napi::Object &limits) {
  std::shared_ptr<const BadWords> words;
  if (!limits.Get("badWords").IsUndefined()) {
    auto handle = unboxed<WordsHandle>(limits.Get("badWords"));
    if (handle->model != sampler.model) throw Failure("native/bad-argument", "The forbidden words were prepared for another model.");
    words = handle->words;
  }
  sampler.limits = std::make_unique<AnswerLimits>(*sampler.model, limits, words);
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
    if (options.Get("limits").IsObject()) addLimits(*sampler, options.Get("limits").As<Napi::Object>());
    if (options.Get("seen").IsTypedArray()) sampler->seen = int32s(options.Get("seen"));
    addChain(*sampler, options);
    see(*sampler);
    return boxed(info.Env(), sampler);
  });
}

constexpr auto NO_TOKEN = "The grammar allows no token here; it contradicts itself, the vocabulary or the logit bias.";

bool allowed(const SamplerHandle &sampler, llama_token token) {
  if (sampler.awake) return sampler.grammar->allows(token);
  return sampler.lazy == nullptr || sampler.lazy->permits(token);
}

llama_token draw(SamplerHandle &sampler, const float *logits, bool constrained, const std::vector<llama_token> &without = {}) {
  for (size_t id = 0; id < sampler.candidates.size(); id++) sampler.candidates[id] = {static_cast<llama_token>(id), logits[id], 0.0f};
  for (auto token : without) sampler.candidates[token].logit = -INFINITY;
  for (auto token : sampler.banned) sampler.candidates[token].logit = -INFINITY;
  if (constrained) sampler.grammar->mask(sampler.candidates);
  if (sampler.limits != nullptr) sampler.limits->mask(sampler.candidates);
  // Remove banned tokens: typical_p and mirostat 1 would multiply their probability 0 by its logarithm and get NaN.
  auto end = sampler.candidates.end();
  if (constrained || !without.empty() || !sampler.banned.empty() || sampler.limits != nullptr)
    end = std::remove_if(sampler.candidates.begin(), end, [](auto &each) { return each.logit == -INFINITY; });
  size_t left = end - sampler.candidates.begin();
  if (left == 0) throw Failure("engine/bad-grammar", NO_TOKEN);
  llama_token_data_array array{sampler.candidates.data(), left, -1, false};
  llama_sampler_apply(sampler.chain, &array);
  if (array.selected < 0 || static_cast<size_t>(array.selected) >= array.size) throw Failure("native/failed", "The samplers chose no token.");
  return array.data[array.selected].id;
}

void accept(SamplerHandle &sampler, llama_token token) {
  if (!allowed(sampler, token))
    throw Failure("engine/bad-grammar", "The grammar does not allow token " + std::to_string(token) + " here.");
  if (sampler.awake) sampler.grammar->take(token);
  else if (sampler.lazy != nullptr) sampler.awake = sampler.lazy->take(token);
  bool isCall = sampler.lazy != nullptr && sampler.awake;
  if (sampler.budget != nullptr) sampler.budget->take(token, pieceOf(sampler.model->vocab, token), !isCall);
  if (sampler.limits != nullptr) sampler.limits->take(token);
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
    if (sampler->limits != nullptr) sampler->limits->begin();
    llama_sampler_reset(sampler->chain);
    see(*sampler);
    return info.Env().Undefined();
  });
}

Napi::Value endReasoning(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto sampler = samplerOf(info[0]);
    std::lock_guard<std::mutex> lock(sampler->mutex);
    if (sampler->budget != nullptr) sampler->budget->end();
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
  // The lazy grammar does not apply yet, but this token would begin a call that the grammar does not allow. Draw again without it.
  for (std::vector<llama_token> without; !constrain && !allowed(sampler, token) && without.size() < sampler.candidates.size();) {
    without.push_back(token);
    token = draw(sampler, logits, false, without);
  }
  if (!allowed(sampler, token))
    throw Failure("engine/bad-grammar", NO_TOKEN);
  accept(sampler, token);
  return token;
}

bool endsAnswer(SamplerHandle &sampler, llama_token token) {
  std::lock_guard<std::mutex> lock(sampler.mutex);
  return llama_vocab_is_eog(sampler.model->vocab, token) || (sampler.limits != nullptr && sampler.limits->stopsAt(token));
}

void exportSampler(Napi::Env env, Napi::Object exports) {
  exports.Set("grammarCompile", Napi::Function::New(env, compile));
  exports.Set("dryPrepare", Napi::Function::New(env, prepareDry));
  exports.Set("wordsPrepare", Napi::Function::New(env, prepareWords));
  exports.Set("samplerCreate", Napi::Function::New(env, create));
  exports.Set("samplerSample", Napi::Function::New(env, sampleToken));
  exports.Set("samplerAccept", Napi::Function::New(env, acceptToken));
  exports.Set("samplerEndReasoning", Napi::Function::New(env, endReasoning));
  exports.Set("samplerReset", Napi::Function::New(env, reset));
  exports.Set("samplerFree", Napi::Function::New(env, release));
}

}  // namespace kvfold
