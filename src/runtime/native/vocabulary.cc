// Vocabularies: turns text into tokens and back, and describes the tokens.
#include <pthread.h>

#include <algorithm>

#include "kvfold.h"

namespace kvfold {
namespace {

// Some pre-tokenizers run std::regex, which recurses once per character. So a text of LONG_TEXT bytes or more is tokenized on a thread with
// a larger stack. The system allocates only the pages of it that are touched.
constexpr size_t LONG_TEXT = 16 * 1024;
constexpr size_t STACK_PER_BYTE = 1024;
constexpr size_t LARGEST_STACK = size_t(1) << 36;

void onLargeStack(size_t bytes, const std::function<void()> &body) {
  struct Call {
    const std::function<void()> &body;
    std::exception_ptr failure;
  } call{body, nullptr};
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_t thread;
  int failed = 1;
  // If the system refuses a stack of this size, try half of it. A smaller stack may still suffice.
  for (size_t size = std::min(LARGEST_STACK, bytes * STACK_PER_BYTE + (size_t(8) << 20)); failed != 0 && size >= (size_t(8) << 20); size /= 2) {
    if (pthread_attr_setstacksize(&attributes, size) != 0) continue;
    failed = pthread_create(
        &thread, &attributes,
        [](void *data) -> void * {
          auto *call = static_cast<Call *>(data);
          try {
            call->body();
          } catch (...) {
            call->failure = std::current_exception();
          }
          return nullptr;
        },
        &call);
  }
  pthread_attr_destroy(&attributes);
  if (failed != 0) throw Failure("memory/insufficient", "The system could not start a thread to tokenize a long text; close other programs.");
  pthread_join(thread, nullptr);
  if (call.failure) std::rethrow_exception(call.failure);
}

std::vector<llama_token> tokensOf(const llama_vocab *vocab, const std::string &input, bool addSpecial, bool parseSpecial) {
  if (input.size() > INT32_MAX / 2) throw Failure("native/bad-argument", "The text is too long to tokenize in one call.");
  std::vector<llama_token> tokens(input.size() + 8);
  auto run = [&] {
    auto call = [&] { return llama_tokenize(vocab, input.data(), input.size(), tokens.data(), tokens.size(), addSpecial, parseSpecial); };
    int32_t count = call();
    if (count == INT32_MIN) throw Failure("native/bad-argument", "The text is too long to tokenize in one call.");
    if (count < 0) {
      tokens.resize(-count);
      count = call();
    }
    tokens.resize(count);
  };
  if (input.size() < LONG_TEXT) run();
  else onLargeStack(input.size(), run);
  return tokens;
}

Napi::Int32Array int32Array(Napi::Env env, const std::vector<llama_token> &tokens) {
  auto out = Napi::Int32Array::New(env, tokens.size());
  std::copy(tokens.begin(), tokens.end(), out.Data());
  return out;
}

Napi::Value tokenize(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto model = modelOf(info[0]);
    std::string input = info[1].As<Napi::String>();
    bool addSpecial = info[2].As<Napi::Boolean>(), parseSpecial = info[3].As<Napi::Boolean>();
    return int32Array(info.Env(), tokensOf(model->vocab, input, addSpecial, parseSpecial));
  });
}

// Tokenizes many texts on another thread. Returns the tokens of all texts, one text after another, and the number of tokens of each.
Napi::Value tokenizeAll(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    struct Call {
      std::vector<std::string> texts;
      std::vector<llama_token> tokens, counts;
    };
    auto model = modelOf(info[0]);
    auto call = std::make_shared<Call>();
    auto texts = info[1].As<Napi::Array>();
    call->texts.reserve(texts.Length());
    for (uint32_t i = 0; i < texts.Length(); i++) call->texts.push_back(texts.Get(i).As<Napi::String>());
    bool addSpecial = info[2].As<Napi::Boolean>(), parseSpecial = info[3].As<Napi::Boolean>();
    return Task::run(
        info.Env(),
        [model, call, addSpecial, parseSpecial] {
          // Keeps the vocabulary alive: ModelHandle::free waits for this lock.
          std::shared_lock<std::shared_mutex> lock(model->reading);
          if (model->vocab == nullptr) throw Failure("native/disposed", "The model was disposed; load it again.");
          for (auto &text : call->texts) {
            auto tokens = tokensOf(model->vocab, text, addSpecial, parseSpecial);
            call->tokens.insert(call->tokens.end(), tokens.begin(), tokens.end());
            call->counts.push_back(tokens.size());
            text = {};
          }
        },
        [call](Napi::Env env) {
          auto out = Napi::Object::New(env);
          out.Set("tokens", int32Array(env, call->tokens));
          out.Set("counts", int32Array(env, call->counts));
          return out;
        });
  });
}

Napi::Value piece(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto model = modelOf(info[0]);
    llama_token token = info[1].As<Napi::Number>();
    bool special = info[2].As<Napi::Boolean>();
    std::string out(64, '\0');
    int32_t size = llama_token_to_piece(model->vocab, token, out.data(), out.size(), 0, special);
    if (size < 0) {
      out.resize(-size);
      size = llama_token_to_piece(model->vocab, token, out.data(), out.size(), 0, special);
    }
    auto bytes = Napi::Uint8Array::New(info.Env(), size);
    std::copy_n(reinterpret_cast<uint8_t *>(out.data()), size, bytes.Data());
    return bytes;
  });
}

// Returns the special tokens, and one byte of flags per token. Bit 0: it ends generation. Bit 1: it is a control or unknown token.
Napi::Value describe(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto env = info.Env();
    auto *vocab = modelOf(info[0])->vocab;
    auto out = Napi::Object::New(env);
    auto token = [&](const char *name, llama_token id) {
      out.Set(name, id == LLAMA_TOKEN_NULL ? env.Null() : Napi::Value(Napi::Number::New(env, id)));
    };
    token("bos", llama_vocab_bos(vocab));
    token("eos", llama_vocab_eos(vocab));
    token("eot", llama_vocab_eot(vocab));
    token("sep", llama_vocab_sep(vocab));
    token("newline", llama_vocab_nl(vocab));
    token("fillPrefix", llama_vocab_fim_pre(vocab));
    token("fillSuffix", llama_vocab_fim_suf(vocab));
    token("fillMiddle", llama_vocab_fim_mid(vocab));
    token("fillRepository", llama_vocab_fim_rep(vocab));
    token("fillFile", llama_vocab_fim_sep(vocab));
    out.Set("addBos", llama_vocab_get_add_bos(vocab));
    out.Set("addEos", llama_vocab_get_add_eos(vocab));
    out.Set("addSep", llama_vocab_get_add_sep(vocab));
    bool typed = llama_vocab_type(vocab) != LLAMA_VOCAB_TYPE_NONE;
    int32_t count = llama_vocab_n_tokens(vocab);
    auto flags = Napi::Uint8Array::New(env, count);
    size_t longest = 1;
    for (llama_token id = 0; id < count; id++) {
      bool control = typed && (llama_vocab_get_attr(vocab, id) & (LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN)) != 0;
      if (typed) longest = std::max(longest, pieceOf(vocab, id).size());
      flags[id] = (llama_vocab_is_eog(vocab, id) ? 1 : 0) | (control ? 2 : 0);
    }
    out.Set("flags", flags);
    out.Set("longestToken", Napi::Number::New(env, longest));
    return out;
  });
}

}  // namespace

void exportVocabulary(Napi::Env env, Napi::Object exports) {
  exports.Set("tokenize", Napi::Function::New(env, tokenize));
  exports.Set("tokenizeAll", Napi::Function::New(env, tokenizeAll));
  exports.Set("piece", Napi::Function::New(env, piece));
  exports.Set("vocabularyDescribe", Napi::Function::New(env, describe));
}

}  // namespace kvfold
