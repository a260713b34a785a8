// Builds the chain of a sampler. Without the option `order` it has llama.cpp's order: logit bias, penalties, DRY, top-n-sigma, top-k,
// typical, top-p, min-p, XTC, temperature, draw. Mirostat replaces the filters. With temperature 0 the last part is greedy: it takes the
// likeliest token that is left.
#include "sampler-chain.h"

#include <algorithm>
#include <cmath>

namespace kvfold {
namespace {

double number(const Napi::Object &options, const char *name, double fallback) {
  auto value = options.Get(name);
  return value.IsNumber() ? value.As<Napi::Number>().DoubleValue() : fallback;
}

std::vector<std::string> textsIn(const Napi::Value &value) {
  std::vector<std::string> texts;
  if (!value.IsArray()) return texts;
  auto list = value.As<Napi::Array>();
  for (uint32_t i = 0; i < list.Length(); i++) texts.push_back(list.Get(i).As<Napi::String>().Utf8Value());
  return texts;
}

Napi::Object within(const Napi::Object &options, const char *name) {
  auto value = options.Get(name);
  return value.IsObject() ? value.As<Napi::Object>() : Napi::Object::New(options.Env());
}

class ChainBuilder {
 public:
  ChainBuilder(SamplerHandle &sampler, const Napi::Object &options)
      : sampler(sampler),
        options(options),
        vocabulary(llama_vocab_n_tokens(sampler.model->vocab)),
        seed(static_cast<uint32_t>(get("seed", LLAMA_DEFAULT_SEED))),
        keep(static_cast<size_t>(get("minKeep", 0))),
        temperature(get("temperature", 0.8)),
        range(number(within(options, "dynatemp"), "range", 0)) {}

  void build() {
    sampler.chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
    suppress();
    addBias();
    auto order = textsIn(options.Get("order"));
    if (!options.Get("order").IsArray()) {
      order = {"penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"};
      if (options.Get("adaptive").IsObject()) order.push_back("adaptive_p");
    }
    auto has = [&](const char *name) { return std::find(order.begin(), order.end(), name) != order.end(); };
    bool adapts = has("adaptive_p");
    bool greedy = temperature <= 0 && range <= 0 && has("temperature");
    if (!greedy && options.Get("mirostat").IsObject()) {
      addPenalties();
      addDry();
      addMirostat();
      return;
    }
    // A greedy draw needs no filters, unless one of them can remove the likeliest token. Only typical sampling, XTC and infill do that. And
    // adaptive_p draws by itself, so the temperature must have left it one token.
    bool filters = !greedy || adapts || has("infill") || typical() < 1 || removesTop();
    for (auto &name : order) addPart(name, filters);
    if (adapts) {
      auto adaptive = within(options, "adaptive");
      sampler.stateful = true;
      add(llama_sampler_init_adaptive_p(number(adaptive, "target", -1), number(adaptive, "decay", 0.9), seed));
    } else if (greedy) {
      add(llama_sampler_init_greedy());
    } else {
      add(llama_sampler_init_dist(seed));
    }
  }

 private:
  double get(const char *name, double fallback) const { return number(options, name, fallback); }
  double typical() const { return get("typicalP", 1); }
  bool removesTop() const {
    auto xtc = within(options, "xtc");
    return number(xtc, "probability", 0) > 0 && number(xtc, "threshold", 0.1) <= 0.5;
  }
  void add(llama_sampler *part) { llama_sampler_chain_add(sampler.chain, part); }
  // Adds a sampler that also counts the tokens before the answer.
  void addSeeing(llama_sampler *part) {
    add(part);
    sampler.seeing.push_back(part);
  }

  void addPart(const std::string &name, bool filters) {
    if (name == "penalties") addPenalties();
    else if (name == "dry") addDry();
    else if (!filters) return;
    else if (name == "top_n_sigma" && get("topNSigma", 0) > 0) add(llama_sampler_init_top_n_sigma(get("topNSigma", 0)));
    else if (name == "top_k" && get("topK", 0) > 0) add(llama_sampler_init_top_k(get("topK", 0)));
    else if (name == "typ_p" && typical() < 1) add(llama_sampler_init_typical(typical(), keep));
    else if (name == "top_p" && get("topP", 1) < 1) add(llama_sampler_init_top_p(get("topP", 1), keep));
    else if (name == "min_p" && get("minP", 0) > 0) add(llama_sampler_init_min_p(get("minP", 0), keep));
    else if (name == "xtc" && removesTop()) addXtc();
    else if (name == "temperature") addTemperature();
    else if (name == "infill") add(llama_sampler_init_infill(sampler.model->vocab));
  }

  // Forbids the tokens that the model's file says must never be drawn (`tokenizer.ggml.suppress_tokens`), as llama-server does.
  void suppress() {
    int32_t count = 0;
    auto *tokens = llama_vocab_get_suppress_tokens(sampler.model->vocab, &count);
    sampler.banned.insert(sampler.banned.end(), tokens, tokens + count);
  }

  void addBias() {
    if (!options.Get("logitBias").IsArray()) return;
    auto list = options.Get("logitBias").As<Napi::Array>();
    std::vector<llama_logit_bias> biases(list.Length());
    for (uint32_t i = 0; i < list.Length(); i++) {
      auto entry = list.Get(i).As<Napi::Object>();
      biases[i] = {entry.Get("token").As<Napi::Number>().Int32Value(), entry.Get("bias").As<Napi::Number>().FloatValue()};
      if (biases[i].bias == -INFINITY) sampler.banned.push_back(biases[i].token);
    }
    if (!biases.empty()) add(llama_sampler_init_logit_bias(vocabulary, biases.size(), biases.data()));
  }

  // The repetition penalty also counts the prompt, as in llama-server and vLLM. Frequency and presence penalties count only the answer, as
  // in OpenAI's API.
  void addPenalties() {
    double repeat = get("repeatPenalty", 1), frequency = get("frequencyPenalty", 0), presence = get("presencePenalty", 0);
    double last = get("penaltyLastN", 64);
    if (repeat != 1) addSeeing(llama_sampler_init_penalties(vocabulary, last, repeat, 0, 0));
    if (frequency != 0 || presence != 0) add(llama_sampler_init_penalties(vocabulary, last, 1, frequency, presence));
  }

  void addDry() {
    if (options.Get("dry").IsUndefined()) return;
    auto dry = unboxed<DryHandle>(options.Get("dry"));
    if (dry->model != sampler.model) throw Failure("native/bad-argument", "The DRY sampler was prepared for another model.");
    addSeeing(llama_sampler_clone(dry->sampler));
  }

  void addXtc() {
    auto xtc = within(options, "xtc");
    add(llama_sampler_init_xtc(number(xtc, "probability", 0), number(xtc, "threshold", 0.1), keep, seed));
  }

  void addTemperature() {
    if (range > 0) add(llama_sampler_init_temp_ext(temperature, range, number(within(options, "dynatemp"), "exponent", 1)));
    else add(llama_sampler_init_temp(temperature));
  }

  void addMirostat() {
    auto mirostat = options.Get("mirostat").As<Napi::Object>();
    float tau = mirostat.Get("tau").As<Napi::Number>(), eta = mirostat.Get("eta").As<Napi::Number>();
    sampler.stateful = true;
    add(llama_sampler_init_temp(temperature));
    add(number(mirostat, "version", 2) == 1 ? llama_sampler_init_mirostat(vocabulary, seed, tau, eta, 100)
                                            : llama_sampler_init_mirostat_v2(seed, tau, eta));
  }

  SamplerHandle &sampler;
  const Napi::Object &options;
  int32_t vocabulary;
  uint32_t seed;
  // The fewest candidates that a filter leaves.
  size_t keep;
  double temperature, range;
};

}  // namespace

void DryHandle::prepare(float multiplier, float base, int32_t allowedLength, int32_t lastN, const std::vector<std::string> &breakers) {
  std::shared_lock<std::shared_mutex> lock(model->reading);
  if (model->vocab == nullptr) throw Failure("native/disposed", "The model was disposed; load it again.");
  std::vector<const char *> texts;
  for (auto &breaker : breakers) texts.push_back(breaker.c_str());
  sampler = llama_sampler_init_dry(model->vocab, multiplier, base, allowedLength, lastN, texts.data(), texts.size());
}

DryHandle::~DryHandle() {
  if (sampler != nullptr) llama_sampler_free(sampler);
}

void addChain(SamplerHandle &sampler, const Napi::Object &options) { ChainBuilder(sampler, options).build(); }

}  // namespace kvfold
