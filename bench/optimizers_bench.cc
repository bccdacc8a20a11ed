// One optimizer step over ResNet-50's parameters, against the memory's own speed.
//
// floor_bytes is what the formula must move per element when nothing stays in a cache: SGD reads w,
// v, g and writes w, v (20); AdamW reads w, m, v, g and writes w, m, v (28); LARS reads w, g for
// the norms first (28); LAMB reads w, m, v, g and writes m, v, then reads w, m, v and writes w
// (40). With state of 8 bits m and v are a byte each, and a scale for 256 of them. checked_bytes adds what it costs to change nothing when a gradient is not finite: SGD,
// AdamW and LAMB read 4 more, but where the caller knows that all are (known_finite). A ratio is
// the time those bytes take at the rate of the fastest of bench/memory_rate.h's loops, measured
// between the steps with the same threads, over the time of the step: 1 is the memory's speed.

#include <benchmark/benchmark.h>

#include <time.h>

#include <algorithm>
#include <random>

#include "bench/memory_rate.h"
#include "gradwire/optimizers/optimizer.h"

namespace gradwire {
namespace {

/// Numbers of elements of ResNet-50's 161 parameters, in forward order.
std::vector<size_t> resnet50_sizes() {
  std::vector<size_t> sizes;
  const auto convolution = [&](size_t in, size_t out, size_t kernel) {
    sizes.push_back(out * in * kernel * kernel);
    sizes.insert(sizes.end(), 2, out);  // the batch norm's scale and shift
  };
  convolution(3, 64, 7);
  size_t in = 64;
  const size_t depths[] = {3, 4, 6, 3};
  for (size_t stage = 0; stage < 4; ++stage) {
    const size_t width = size_t{64} << stage;
    for (size_t block = 0; block < depths[stage]; ++block) {
      convolution(in, width, 1);
      convolution(width, width, 3);
      convolution(width, 4 * width, 1);
      if (block == 0) {  // the shortcut's projection
        convolution(in, 4 * width, 1);
      }
      in = 4 * width;
    }
  }
  sizes.push_back(in * 1000);
  sizes.push_back(1000);
  return sizes;
}

constexpr size_t kAlignment = 16;  // floats: 64 bytes
constexpr size_t kBlock = 16384;

double now(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double median(std::vector<double> samples) {
  const auto middle = samples.begin() + static_cast<ptrdiff_t>(samples.size() / 2);
  std::nth_element(samples.begin(), middle, samples.end());
  return *middle;
}

/// Values and gradients of a network in two flat buffers, and two more to measure memory with.
struct Network {
  Network() {
    std::vector<size_t> offsets;
    for (size_t size : resnet50_sizes()) {
      offsets.push_back(padded);
      padded += (size + kAlignment - 1) / kAlignment * kAlignment;
      numel += size;
    }
    for (Buffer* buffer : {&value, &gradient, &spare}) {
      *buffer = Buffer(padded * sizeof(float));
    }
    std::mt19937 random(7);
    std::normal_distribution<float> normal(0.0f, 0.01f);
    for (size_t i = 0; i < padded; ++i) {
      value.as<float>()[i] = normal(random);
      gradient.as<float>()[i] = normal(random);
    }
    const std::vector<size_t> sizes = resnet50_sizes();
    for (size_t i = 0; i < sizes.size(); ++i) {
      parameters.push_back(
          {.name = "parameter" + std::to_string(i),
           .value = view_of(value.as<float>().subspan(offsets[i], sizes[i])),
           .gradient = view_of(gradient.as<float>().subspan(offsets[i], sizes[i]))});
    }
  }

  template <class Loop>
  void for_each_block(ThreadPool& pool, const Loop& loop) const {
    pool.parallel_for((padded + kBlock - 1) / kBlock,
                      [&](size_t i) { loop(i * kBlock, std::min(kBlock, padded - i * kBlock)); });
  }

  size_t padded = 0;
  size_t numel = 0;
  Buffer value, gradient, spare;
  std::vector<Parameter> parameters;
};

struct Traffic {
  double floor_bytes;
  double checked_bytes;
  bool known_finite = false;
};

void optimizer_step(benchmark::State& state, const char* spec, Traffic traffic) {
  Network network;
  const auto stream = make_inline_stream(static_cast<int>(state.range(0)));
  Workspace workspace;
  Context context{*stream, workspace};
  const auto optimizer = make_optimizer(parse_optimizer(spec), network.parameters);
  float* const spare = network.spare.as<float>().data();
  const float* const value = network.value.as<float>().data();
  const float* const gradient = network.gradient.as<float>().data();
  // One thread's own time is fair to both sides of a ratio on a machine that others use too.
  const clockid_t clock = state.range(0) == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
  const auto seconds = [&](const auto& action) {
    const double begin = now(clock);
    action();
    return now(clock) - begin;
  };
  const auto seconds_of_blocks = [&](const auto& loop) {
    return seconds([&] { network.for_each_block(stream->pool(), loop); });
  };
  std::vector<double> triads, streaming, adds, steps;
  for (auto _ : state) {
    triads.push_back(seconds_of_blocks([&](size_t begin, size_t count) {
      bench::triad(value + begin, gradient + begin, spare + begin, count);
    }));
    streaming.push_back(seconds_of_blocks([&](size_t begin, size_t count) {
      bench::streaming_triad(value + begin, gradient + begin, spare + begin, count);
    }));
    adds.push_back(seconds_of_blocks([&](size_t begin, size_t count) {
      bench::add_in_place(gradient + begin, spare + begin, count);
    }));
    steps.push_back(seconds([&] {
      optimizer->apply({.learning_rate = 1e-4, .known_finite = traffic.known_finite}, context);
      stream->wait();
    }));
    state.SetIterationTime(steps.back());
  }
  const bench::MemoryTimes memory{median(triads), median(streaming), median(adds)};
  const double best_rate = memory.best_rate(network.padded);
  const double elements_per_second = static_cast<double>(network.numel) / median(steps);
  state.counters["ms"] = 1e3 * median(steps);
  state.counters["triad_ms"] = 1e3 * memory.triad;
  state.counters["streaming_triad_ms"] = 1e3 * memory.streaming_triad;
  state.counters["add_ms"] = 1e3 * memory.add;
  state.counters["floor_bytes"] = traffic.floor_bytes;
  state.counters["ratio"] = traffic.floor_bytes * elements_per_second / best_rate;
  state.counters["checked_ratio"] = traffic.checked_bytes * elements_per_second / best_rate;
}

void settings(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgName("threads")->Arg(1)->Arg(2)->UseManualTime()->Unit(benchmark::kMillisecond);
}

BENCHMARK_CAPTURE(optimizer_step, sgd, "sgd:weight_decay=1e-4", {20, 24})->Apply(settings);
BENCHMARK_CAPTURE(optimizer_step, adamw, "adamw", {28, 32})->Apply(settings);
BENCHMARK_CAPTURE(optimizer_step, sgd_known_finite, "sgd:weight_decay=1e-4", {20, 20, true})
    ->Apply(settings);
BENCHMARK_CAPTURE(optimizer_step, adamw_known_finite, "adamw", {28, 28, true})->Apply(settings);
BENCHMARK_CAPTURE(optimizer_step, lars, "lars:weight_decay=1e-4", {28, 28})->Apply(settings);
BENCHMARK_CAPTURE(optimizer_step, lamb, "lamb:weight_decay=0.01", {40, 44})->Apply(settings);
BENCHMARK_CAPTURE(optimizer_step, sgd_8bit, "sgd:weight_decay=1e-4,state=8bit", {14, 18})
    ->Apply(settings);
BENCHMARK_CAPTURE(optimizer_step, adamw_8bit, "adamw:state=8bit", {16, 20})->Apply(settings);
BENCHMARK_CAPTURE(optimizer_step, lars_8bit, "lars:weight_decay=1e-4,state=8bit", {22, 22})
    ->Apply(settings);
BENCHMARK_CAPTURE(optimizer_step, lamb_8bit, "lamb:weight_decay=0.01,state=8bit", {22, 26})
    ->Apply(settings);

}  // namespace
}  // namespace gradwire

BENCHMARK_MAIN();
