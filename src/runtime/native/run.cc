// Runs: decode and sample token after token on one thread, without waiting for the event loop in between.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "kvfold.h"

namespace kvfold {
namespace {

// A run ends when this many finished steps wait for JavaScript, which bounds how far JavaScript can fall behind.
constexpr size_t FARTHEST_AHEAD = 8;

// A run. Its batch has one token per sequence: the next one to decode.
struct Run : Batch {
  std::vector<std::shared_ptr<SamplerHandle>> samplers;
  // For each sequence: how many tokens may still be drawn. The run ends when one reaches 0.
  std::vector<int32_t> limits;
  int32_t steps = 0;
  const char *status = "done";
  std::string failure;
  // For each sequence of the last step: why its draw failed, as "code\nsentence" (its token is then -1); else empty.
  std::vector<std::string> refused;

  // The drawn tokens, step by step, and the time of each step, until JavaScript takes them. The mutex guards both.
  std::mutex mutex;
  std::vector<int32_t> drawn;
  std::vector<double> milliseconds;
  // The time of the last step, whose drawn tokens are in `tokens`; 0 if the last decode failed. It is reported only after the run has
  // ended, because the caller may use the context again as soon as it receives that step.
  double last = 0;

  // Moves the steps that JavaScript has not received into `tokens` and `times`, except the run's last step.
  void take(std::vector<int32_t> &tokens, std::vector<double> &times) {
    std::lock_guard<std::mutex> lock(mutex);
    std::swap(tokens, drawn);
    std::swap(times, milliseconds);
  }

  // Draws a token for every sequence. Returns false if the run must end.
  bool draw(ContextHandle &handle) {
    bool more = true;
    for (size_t i = 0; i < tokens.size(); i++) {
      try {
        tokens[i] = drawFrom(*samplers[i], logitsAt(handle, i));
        if (endsAnswer(*samplers[i], tokens[i]) || --limits[i] <= 0) more = false;
      } catch (...) {
        tokens[i] = -1;
        refused.resize(tokens.size());
        refused[i] = currentFailure();
        more = false;
      }
      positions[i]++;
    }
    return more;
  }

  // Runs to the end and never throws. Calls `heard` when the first step after a `take` is there.
  template <typename Heard>
  void run(ContextHandle &handle, Heard heard) {
    std::lock_guard<std::mutex> lock(handle.running);
    if (handle.context == nullptr) {
      status = "aborted";
      return;
    }
    try {
      for (bool more = true; more; steps--) {
        auto begun = std::chrono::steady_clock::now();
        status = decode(handle);
        if (std::strcmp(status, "done") != 0) return;
        more = draw(handle) && !handle.abort && !handle.pause;
        std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - begun;
        bool first = false;
        {
          std::lock_guard<std::mutex> guard(mutex);
          if (milliseconds.size() + 1 >= FARTHEST_AHEAD || steps == 1) more = false;
          if (!more) {
            last = elapsed.count();
            return;
          }
          first = drawn.empty();
          drawn.insert(drawn.end(), tokens.begin(), tokens.end());
          milliseconds.push_back(elapsed.count());
        }
        if (first) heard();
      }
    } catch (...) {
      status = "failed";
      failure = currentFailure();
    }
  }
};

Napi::Object taken(Napi::Env env, Run &run, bool ended) {
  std::vector<int32_t> tokens;
  std::vector<double> times;
  run.take(tokens, times);
  if (ended && run.last > 0) {
    tokens.insert(tokens.end(), run.tokens.begin(), run.tokens.end());
    times.push_back(run.last);
  }
  auto drawn = Napi::Int32Array::New(env, tokens.size());
  std::copy(tokens.begin(), tokens.end(), drawn.Data());
  auto milliseconds = Napi::Float64Array::New(env, times.size());
  std::copy(times.begin(), times.end(), milliseconds.Data());
  auto out = Napi::Object::New(env);
  out.Set("drawn", drawn);
  out.Set("milliseconds", milliseconds);
  return out;
}

void stopAtExit(void *data) { (*static_cast<std::shared_ptr<ContextHandle> *>(data))->free(); }

// Starts a run; the arguments are (context, tokens, positions, sequences, samplers, limits, steps, heard).
Napi::Value generate(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto env = info.Env();
    auto context = contextOf(info[0]);
    auto run = std::make_shared<Run>();
    run->tokens = int32s(info[1]), run->positions = int32s(info[2]), run->sequences = int32s(info[3]);
    run->outputs.assign(run->tokens.size(), 1);
    auto samplers = info[4].As<Napi::Array>();
    for (uint32_t i = 0; i < samplers.Length(); i++) {
      run->samplers.push_back(samplerOf(samplers.Get(i)));
      if (run->samplers.back()->model != context->model)
        throw Failure("native/bad-argument", "The sampler and the context belong to different models.");
    }
    run->limits = int32s(info[5]);
    run->steps = info[6].As<Napi::Number>().Int32Value();
    auto listener = Napi::ThreadSafeFunction::New(env, info[7].As<Napi::Function>(), "kvfold run", 0, 1);
    // If the environment ends during the run, this hook stops the run. It runs before the listener's own hook, so the run calls no listener
    // that is gone.
    auto *held = new std::shared_ptr<ContextHandle>(context);
    napi_add_env_cleanup_hook(env, stopAtExit, held);
    context->abort = false;
    context->pause = false;
    return Task::run(
        env,
        [run, context, listener] {
          run->run(*context, [&] {
            listener.NonBlockingCall([run](Napi::Env env, Napi::Function heard) {
              // The end of the run may have taken these steps already. Then there is nothing to report.
              auto drawn = taken(env, *run, false);
              if (drawn.Get("milliseconds").As<Napi::Float64Array>().ElementLength() > 0) heard.Call({drawn});
            });
          });
        },
        [run, listener, held](Napi::Env env) mutable -> Napi::Value {
          napi_remove_env_cleanup_hook(env, stopAtExit, held);
          delete held;
          listener.Release();
          auto out = taken(env, *run, true);
          out.Set("status", run->status);
          out.Set("failure", run->failure);
          auto refused = Napi::Array::New(env, run->refused.size());
          for (size_t i = 0; i < run->refused.size(); i++) refused.Set(i, run->refused[i]);
          out.Set("refused", refused);
          return out;
        });
  });
}

Napi::Value pause(const Napi::CallbackInfo &info) {
  unboxed<ContextHandle>(info[0])->pause = true;
  return info.Env().Undefined();
}

}  // namespace

void exportRun(Napi::Env env, Napi::Object exports) {
  exports.Set("generate", Napi::Function::New(env, generate));
  exports.Set("pause", Napi::Function::New(env, pause));
}

}  // namespace kvfold
