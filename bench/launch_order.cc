// What it takes when buckets leave in the plan's order, or as ranks agree on what is ready: ranks
// are threads, joined by paced links, whose backward sleeps. 16 buckets of 256 KiB, no compression.
//
//   gradwire-launch-order [RANKS [MBIT_PER_S [STEPS]]]    [4 ranks, 1000 Mbit/s, 20 steps]
//
// Gradients appear one by one, each when the line has had time for 4 Mbit (4 ms at 1000 Mbit/s; an
// exchange of 4 ranks sends 3.1), and on all ranks in the plan's order ("planned"); or that of the
// bucket that the plan has first appears last on one rank, another one in every step ("late head");
// or in an order of the step's, the same on all ranks ("by step"); or of each rank's ("by rank").

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/comm/reducer.h"

namespace {

using namespace gradwire;  // a program, not a header
using Clock = std::chrono::steady_clock;

constexpr int kBuckets = 16;
constexpr size_t kNumel = size_t{1} << 16;  // of a bucket
constexpr double kGapBits = 4e6;            // the line's time from one gradient to the next

enum class Case { kPlanned, kLateHead, kByStep, kByRank };
constexpr struct {
  Case value;
  const char* name;
} kCases[] = {{Case::kPlanned, "planned"},
              {Case::kLateHead, "late head"},
              {Case::kByStep, "by step"},
              {Case::kByRank, "by rank"}};

struct Setting {
  int ranks = 4;
  double mbit_per_s = 1000;
  int steps = 20;
};

Clock::duration gap_of(const Setting& setting) {
  const std::chrono::duration<double> gap(kGapBits / (setting.mbit_per_s * 1e6));
  return std::chrono::duration_cast<Clock::duration>(gap);
}

Plan plan_of_buckets() {
  PlanOptions options;
  std::vector<ParamInfo> parameters;
  for (int p = 0; p < kBuckets; ++p) {
    parameters.push_back({concat("p", p), {kNumel}});
    options.buckets.push_back({static_cast<ParamId>(p)});
  }
  return make_plan(parameters, options);
}

/// In which parameters, each a bucket, become ready.
std::vector<ParamId> order_of(Case what, int rank, int step, int ranks) {
  std::vector<ParamId> order(kBuckets);
  std::iota(order.begin(), order.end(), ParamId{0});
  if (what == Case::kLateHead && step % ranks == rank) {
    std::rotate(order.begin(), order.begin() + 1, order.end());
  } else if (what == Case::kByStep || what == Case::kByRank) {
    const int own = what == Case::kByRank ? rank + 1 : 0;
    std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<unsigned>(100 * step + own)));
  }
  return order;
}

/// Of rank 0, per step.
struct Measured {
  std::vector<double> step_ms, exposed_ms, rounds, round_bytes;
};

Measured run(const Setting& setting, Case what, LaunchOrder launch_order) {
  TransportOptions link;
  link.pacing.bits_per_second = setting.mbit_per_s * 1e6;
  const auto group = make_in_process_group(setting.ranks, link);
  Measured measured;
  const auto body = [&](int rank) {
    Reducer reducer(plan_of_buckets(), *group[static_cast<size_t>(rank)],
                    {.launch_order = launch_order});
    for (int step = 0; step <= setting.steps; ++step) {
      const auto begin = Clock::now();
      auto appears = begin;
      for (const ParamId p : order_of(what, rank, step, setting.ranks)) {
        std::this_thread::sleep_until(appears += gap_of(setting));
        std::ranges::fill(reducer.gradient(p).as<float>(), static_cast<float>(rank + step));
        reducer.grad_ready(p);
      }
      reducer.wait();
      const std::chrono::duration<double, std::milli> took = Clock::now() - begin;
      if (rank == 0 && step > 0) {  // the first one begins with the links' bursts full
        const StepTrace& trace = reducer.trace().last();
        measured.step_ms.push_back(took.count());
        measured.exposed_ms.push_back(static_cast<double>(trace.exposed_us()) / 1000);
        measured.rounds.push_back(trace.agreement.rounds);
        measured.round_bytes.push_back(static_cast<double>(trace.agreement.bytes_sent));
      }
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 1; rank < setting.ranks; ++rank) {
    threads.emplace_back(body, rank);
  }
  body(0);
  for (std::thread& thread : threads) {
    thread.join();
  }
  return measured;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

double number(const char* text, double least) {
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  check(*text != '\0' && *end == '\0' && value >= least, "'", text, "' is no number of at least ",
        least);
  return value;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Setting setting;
    check(argc <= 4, "expected RANKS MBIT_PER_S STEPS at the most");
    setting.ranks = argc > 1 ? static_cast<int>(number(argv[1], 1)) : setting.ranks;
    setting.mbit_per_s = argc > 2 ? number(argv[2], 1) : setting.mbit_per_s;
    setting.steps = argc > 3 ? static_cast<int>(number(argv[3], 1)) : setting.steps;
    std::printf(
        "%d ranks at %g Mbit/s, %d buckets of %zu KiB, one every %g ms; medians of %d "
        "steps\n",
        setting.ranks, setting.mbit_per_s, kBuckets, kNumel * sizeof(float) / 1024,
        kGapBits / 1000 / setting.mbit_per_s, setting.steps);
    std::printf("%-10s %-7s %9s %11s %7s %12s\n", "gradients", "order", "step ms", "waited ms",
                "rounds", "round bytes");
    for (const auto& [what, name] : kCases) {
      for (const LaunchOrder order : {LaunchOrder::kPlan, LaunchOrder::kAgreed}) {
        const Measured found = run(setting, what, order);
        std::printf("%-10s %-7s %9.1f %11.1f %7.0f %12.0f\n", name,
                    order == LaunchOrder::kPlan ? "plan" : "agreed", median(found.step_ms),
                    median(found.exposed_ms), median(found.rounds), median(found.round_bytes));
        std::fflush(stdout);
      }
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gradwire-launch-order: %s\n", error.what());
    return 2;
  }
}
