// Captures of attention: reduces each row (the weights of one softmax) to sums, and returns the results to JavaScript.
#include <algorithm>
#include <cstring>

#include "tap.h"

namespace kvfold {
namespace {

// Vectors of four numbers. gcc and clang support them on every processor.
typedef float Floats __attribute__((vector_size(16)));
typedef int32_t Ints __attribute__((vector_size(16)));

// Returns the natural logarithm of four positive normal numbers, with a relative error of 1e-7, by the artanh series around 1.
inline Floats logarithm(Floats value) {
  Ints bits = (Ints)value;
  Ints exponent = ((bits >> 23) & 255) - 127;
  Ints mantissaBits = (bits & 0x7fffff) | 0x3f800000;
  Floats mantissa = (Floats)mantissaBits;
  // Halve mantissas above the square root of 2, so that all lie in [0.71, 1.41], around 1.
  Ints high = mantissa > 1.41421356f;
  mantissa = (Floats)(mantissaBits - (high & 0x800000));
  exponent -= high;
  Floats ratio = (mantissa - 1.0f) / (mantissa + 1.0f), square = ratio * ratio;
  Floats series = 1.0f + square * (1.0f / 3 + square * (1.0f / 5 + square * (1.0f / 7 + square * (1.0f / 9))));
  return __builtin_convertvector(exponent, Floats) * 0.693147181f + 2.0f * ratio * series;
}

struct Sums {
  double weight = 0, surprise = 0;
};

// Returns the sum of the weights, and the sum of weight x -log(weight). Floats are summed over 512 weights at most and then added to
// doubles, so that long rows lose no precision.
Sums sumsOf(const float *weights, int32_t count) {
  constexpr int32_t stretch = 512;
  Sums sums;
  for (int32_t begin = 0; begin < count; begin += stretch) {
    int32_t end = std::min(count, begin + stretch);
    Floats weight{}, surprise{};
    for (int32_t i = begin; i < end; i += 4) {
      Floats value{};
      if (i + 4 <= end) std::memcpy(&value, weights + i, sizeof value);
      else std::memcpy(&value, weights + i, (end - i) * sizeof(float));
      weight += value;
      // Weights up to 1e-30 count as 0: the logarithm takes only normal numbers.
      Ints counts = value > 1e-30f;
      Floats safe = (Floats)((counts & (Ints)value) | (~counts & 0x3f800000));
      surprise -= safe * logarithm(safe);
    }
    for (int lane = 0; lane < 4; lane++) sums.weight += weight[lane], sums.surprise += surprise[lane];
  }
  return sums;
}

std::vector<int32_t> integers(const Napi::Object &object, const char *name) {
  auto array = object.Get(name).As<Napi::Int32Array>();
  return std::vector<int32_t>(array.Data(), array.Data() + array.ElementLength());
}

Napi::Float32Array float32Array(Napi::Env env, const std::vector<float> &values) {
  auto out = Napi::Float32Array::New(env, values.size());
  std::copy(values.begin(), values.end(), out.Data());
  return out;
}

Napi::Value create(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto options = info[0].As<Napi::Object>();
    auto capture = std::make_shared<Capture>();
    capture->layers = integers(options, "layers");
    capture->heads = integers(options, "heads");
    capture->atoms = options.Get("atoms").As<Napi::Number>();
    capture->top = options.Get("top").As<Napi::Number>();
    capture->whole = options.Get("rows").As<Napi::Boolean>();
    using Box = std::shared_ptr<Capture>;
    return Napi::External<Box>::New(info.Env(), new Box(capture), [](Napi::Env, Box *box) { delete box; });
  });
}

// Moves the results of the last decode out of the capture. Throws the capture's failure, if it has one.
Napi::Value take(const Napi::CallbackInfo &info) {
  return guarded(info, [&]() -> Napi::Value {
    auto env = info.Env();
    auto capture = unboxed<Capture>(info[0]);
    if (!capture->failure.empty()) {
      auto end = capture->failure.find('\n');
      throw Failure(capture->failure.substr(0, end), capture->failure.substr(end + 1));
    }
    auto out = Napi::Object::New(env);
    out.Set("mass", float32Array(env, capture->mass));
    out.Set("total", float32Array(env, capture->total));
    out.Set("entropy", float32Array(env, capture->entropy));
    out.Set("sink", float32Array(env, capture->sink));
    out.Set("topPlaces", int32Array(env, capture->topPlaces));
    out.Set("topWeights", float32Array(env, capture->topWeights));
    out.Set("rows", float32Array(env, capture->rows));
    for (auto *values : {&capture->mass, &capture->total, &capture->entropy, &capture->sink, &capture->topWeights, &capture->rows})
      std::vector<float>().swap(*values);
    std::vector<int32_t>().swap(capture->topPlaces);
    return out;
  });
}

}  // namespace

void Capture::arm() {
  failure.clear();
  read = 0;
  placeOf.assign(positions.empty() ? 0 : positions.back() + 1, -1);
  for (size_t place = 0; place < positions.size(); place++) placeOf[positions[place]] = static_cast<int32_t>(place);
  size_t count = layers.size() * heads.size() * queries.size();
  mass.assign(count * atoms, 0);
  for (auto *values : {&total, &entropy, &sink}) values->assign(count, 0);
  topPlaces.assign(count * top, -1);
  topWeights.assign(count * top, 0);
  rows.assign(whole ? count * positions.size() : 0, 0);
}

void Capture::reduce(size_t layer, size_t head, size_t query, const std::vector<Run> &runs, const float *weights) {
  size_t slot = (layer * heads.size() + head) * queries.size() + query;
  // One atom may have many runs, so sums stay in double precision until the row is done.
  thread_local std::vector<double> sums;
  sums.assign(atoms, 0);
  Sums all;
  for (auto &run : runs) {
    auto part = sumsOf(weights + run.cell, run.length);
    all.weight += part.weight;
    all.surprise += part.surprise;
    if (run.atom >= 0) sums[run.atom] += part.weight;
    if (run.place == 0) sink[slot] = weights[run.cell];
    if (whole) std::memcpy(&rows[slot * positions.size() + run.place], weights + run.cell, run.length * sizeof(float));
  }
  std::copy(sums.begin(), sums.end(), mass.begin() + slot * atoms);
  total[slot] = all.weight;
  entropy[slot] = all.surprise;
  if (top == 0) return;

  // A heap of the `top` highest weights so far, the lowest of them at its front. Of equal weights, the one at the earlier place wins.
  using Entry = std::pair<float, int32_t>;
  auto better = [](const Entry &a, const Entry &b) { return a.first > b.first || (a.first == b.first && a.second < b.second); };
  thread_local std::vector<Entry> best;
  best.clear();
  for (auto &run : runs)
    for (int32_t i = 0; i < run.length; i++) {
      Entry entry(weights[run.cell + i], run.place + i);
      if (best.size() == static_cast<size_t>(top)) {
        if (!better(entry, best.front())) continue;
        std::pop_heap(best.begin(), best.end(), better);
        best.pop_back();
      }
      best.push_back(entry);
      std::push_heap(best.begin(), best.end(), better);
    }
  std::sort(best.begin(), best.end(), better);
  for (size_t rank = 0; rank < best.size(); rank++) {
    topWeights[slot * top + rank] = best[rank].first;
    topPlaces[slot * top + rank] = best[rank].second;
  }
}

std::shared_ptr<Capture> armedCapture(const Napi::Object &watched) {
  auto capture = unboxed<Capture>(watched.Get("capture"));
  capture->seq = watched.Get("sequence").As<Napi::Number>();
  capture->queries = integers(watched, "queries");
  capture->positions = integers(watched, "positions");
  capture->atomOf = integers(watched, "atoms");
  return capture;
}

Napi::Int32Array int32Array(Napi::Env env, const std::vector<int32_t> &values) {
  auto out = Napi::Int32Array::New(env, values.size());
  std::copy(values.begin(), values.end(), out.Data());
  return out;
}

void exportCapture(Napi::Env env, Napi::Object exports) {
  exports.Set("captureCreate", Napi::Function::New(env, create));
  exports.Set("captureTake", Napi::Function::New(env, take));
}

}  // namespace kvfold
