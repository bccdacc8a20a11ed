// Compressors at 25 million float32 elements on one thread. `floor` is the time the bytes alone
// would take: bytes moved over the best bandwidth of a triad, a triad with streaming stores and an
// in-place add, measured in this process beside each benchmark. `of_floor` = floor / time: 1 means
// bound by memory alone. Times are the thread's own.

#include <benchmark/benchmark.h>

#include <time.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "bench/memory_rate.h"
#include "bench/parameter_shapes.h"
#include "gradwire/kernels/compress/compressor.h"

namespace {

using namespace gradwire;

constexpr size_t kNumel = 25'000'000;
constexpr int kRanks = 8;

/// Memory shared by all benchmarks: 25M normal elements and their residuals.
struct Data {
  Buffer g{kNumel * 4}, e{kNumel * 4}, e_next{kNumel * 4 + 64};
  Data() {
    std::mt19937_64 random(42);
    std::normal_distribution<float> normal(0.0f, 1e-3f);
    const std::span<float> gradient = g.as<float>();
    const size_t period = 1 << 20;
    for (size_t i = 0; i < period; ++i) {
      gradient[i] = normal(random);
    }
    for (size_t i = period; i < kNumel; ++i) {
      gradient[i] = gradient[i - period] * 1.0001f;
    }
    for (size_t i = 0; i < kNumel; ++i) {
      e.as<float>()[i] = 0.5f * gradient[(i + 12345) % kNumel];
    }
    std::memset(e_next.data(), 0, e_next.size_bytes());
  }
  ConstGradient gradient() const { return {g.data(), kNumel, DType::kFloat32}; }
};

Data& data() {
  static Data instance;
  return instance;
}

/// Seconds this thread has run: fair to both sides of a ratio on a machine that others use too.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <class F>
double seconds_of(F&& f) {
  double best = 1e9;
  for (int i = 0; i < 2; ++i) {
    const double begin = thread_seconds();
    f();
    best = std::min(best, thread_seconds() - begin);
  }
  return best;
}

/// Measured anew for every benchmark: the machine's speed is not the same all the time.
bench::MemoryTimes memory_times() {
  const float* g = data().g.as<float>().data();
  const float* e = data().e.as<float>().data();
  float* out = data().e_next.as<float>().data();
  return {.triad = seconds_of([&] { bench::triad(g, e, out, kNumel); }),
          .streaming_triad = seconds_of([&] { bench::streaming_triad(g, e, out, kNumel); }),
          .add = seconds_of([&] { bench::add_in_place(g, out, kNumel); })};
}

void report(benchmark::State& state, double bytes, double seconds) {
  const bench::MemoryTimes memory = memory_times();
  const double floor_s = bytes / memory.best_rate(kNumel);
  state.counters["ms"] = 1e3 * seconds / static_cast<double>(state.iterations());
  state.counters["floor_ms"] = 1e3 * floor_s;
  state.counters["of_floor"] = floor_s * static_cast<double>(state.iterations()) / seconds;
  state.counters["triad_ms"] = 1e3 * memory.triad;
  state.counters["streaming_triad_ms"] = 1e3 * memory.streaming_triad;
  state.counters["add_ms"] = 1e3 * memory.add;
}

/// Bytes from a line of memory to where outputs begin: 16 is what NumPy gives.
constexpr size_t kNumPyOffset = 16;

/// All floats from `offset` bytes on in the buffer that outputs go to.
std::span<float> output(size_t offset) {
  return {reinterpret_cast<float*>(data().e_next.bytes().data() + offset), kNumel};
}

CompressorShape shape() {
  return {.numel = kNumel, .segments = bench::layers_of(kNumel), .seed = 1};
}

/// Bytes of an element that nobody can avoid: g is read; with error feedback e is read and e_next
/// written; with a velocity u is read and its next value written. The payload comes on top.
double element_bytes(const CompressorSpec& spec) {
  return 4.0 + (spec.feedback.on ? 8.0 : 0.0) + (keeps_velocity(spec) ? 8.0 : 0.0);
}

/// Error feedback and compression, from one residual buffer into the other.
void compress(benchmark::State& state, const std::string& spec, size_t offset) {
  const auto compressor = make_compressor(parse_spec(spec), shape());
  const auto stream = make_inline_stream(1);
  Workspace workspace;
  Context context{*stream, workspace};
  const bool feedback = compressor->spec().feedback.on;
  Buffer memory(compressor->capacity_bytes() + offset);
  const Payload payload = memory.bytes().subspan(offset);
  const auto once = [&] {
    compressor->compress(data().gradient(), feedback ? data().e.as<float>() : ConstResidual(),
                         feedback ? output(offset) : Residual(), payload, context);
    stream->wait();
    compressor->commit();
  };
  once();
  double seconds = 0;
  for (auto _ : state) {
    const double begin = thread_seconds();
    once();
    seconds += thread_seconds() - begin;
  }
  report(state,
         element_bytes(compressor->spec()) * kNumel + static_cast<double>(payload_bytes(payload)),
         seconds);
}

/// The same with gradient and residual in one buffer; what was taken is given back between rounds.
void compress_accumulated(benchmark::State& state, const std::string& spec) {
  const auto compressor = make_compressor(parse_spec(spec), shape());
  const auto stream = make_inline_stream(1);
  Workspace workspace;
  Context context{*stream, workspace};
  Buffer payload(compressor->capacity_bytes());
  const std::span<float> x = output(0);
  std::ranges::copy(data().g.as<float>(), x.begin());
  const auto once = [&] {
    const double begin = thread_seconds();
    compressor->compress_accumulated(x, payload.bytes(), context);
    stream->wait();
    const double seconds = thread_seconds() - begin;
    compressor->restore(payload.bytes(), x, context);
    stream->wait();
    compressor->commit();
    return seconds;
  };
  once();
  double seconds = 0;
  for (auto _ : state) {
    seconds += once();
  }
  const bool selects = find_compressor(compressor->spec().name).selector();
  report(state,
         (selects ? 4.0 : 8.0) * kNumel + static_cast<double>(payload_bytes(payload.bytes())),
         seconds);
}

/// Eight ranks' payloads into one dense mean.
void decompress(benchmark::State& state, const std::string& spec, size_t offset) {
  const auto compressor = make_compressor(parse_spec(spec), shape());
  const auto stream = make_inline_stream(1);
  Workspace workspace;
  Context context{*stream, workspace};
  std::vector<Buffer> payloads;
  std::vector<ConstPayload> parts;
  double bytes = 4.0 * kNumel;
  for (int rank = 0; rank < kRanks; ++rank) {
    payloads.emplace_back(compressor->capacity_bytes());
    compressor->compress(data().gradient(), {}, {}, payloads.back().bytes(), context);
    parts.push_back(payloads.back().bytes());
    bytes += static_cast<double>(payload_bytes(parts.back()));
  }
  const Gradient mean = view_of(output(offset));
  double seconds = 0;
  for (auto _ : state) {
    const double begin = thread_seconds();
    compressor->decompress(parts, 1.0f / kRanks, mean, context);
    stream->wait();
    seconds += thread_seconds() - begin;
  }
  report(state, bytes, seconds);
}

std::vector<std::string> specs() {
  std::vector<std::string> all = {"fp16,ef", "bf16,ef"};
  for (const CompressorRow& row : compressor_registry()) {
    all.emplace_back(row.example);
    if (row.takes_rounding) {
      all.push_back(std::string(row.example) + ",stochastic");
    }
    if (row.selector()) {
      const std::string few = std::string(row.name) + (row.per_chunk() ? ":1%" : ":0.1%");
      if (few != row.example) {
        all.push_back(few);
      }
      all.push_back(std::string(row.example) + ",int4");
    }
  }
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  for (const std::string& spec : specs()) {
    benchmark::RegisterBenchmark(("compress/" + spec).c_str(), compress, spec, 0)
        ->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(("decompress_8_ranks/" + spec).c_str(), decompress, spec, 0)
        ->Unit(benchmark::kMillisecond);
  }
  for (const char* spec : {"bf16", "bf16,ef", "int8", "1bit", "topk:1%"}) {
    const std::string name = std::string("_numpy/") + spec;
    benchmark::RegisterBenchmark(("compress" + name).c_str(), compress, spec, kNumPyOffset)
        ->Unit(benchmark::kMillisecond);
    benchmark::RegisterBenchmark(("decompress_8_ranks" + name).c_str(), decompress, spec,
                                 kNumPyOffset)
        ->Unit(benchmark::kMillisecond);
  }
  for (const char* spec : {"topk:1%", "topk:0.1%", "threshold:1%", "int8", "int4", "1bit"}) {
    benchmark::RegisterBenchmark((std::string("compress_accumulated/") + spec).c_str(),
                                 compress_accumulated, spec)
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
