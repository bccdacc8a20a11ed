// gradwire-selection-rivals DATA [SECONDS]: ways to choose elements that the library does not have,
// against those it has. DATA is a folder of four IDX files (gradwire bench's digits), SECONDS how
// long each time is taken. First thresholds that are fitted instead of searched (SIDCo, Abdelmoniem
// et al., MLSys 2021, arXiv:2101.10761): how many elements they let pass and what they take, on the
// CPU. Then choices that all ranks share (shared_choice.h).

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/selection_data.h"
#include "bench/shared_choice.h"
#include "gradwire/kernels/core/clones.h"
#include "gradwire/kernels/ops/select.h"

namespace {

namespace cpu = gradwire::cpu;
using selection::Gradients;

enum class Fit { kExponential, kPareto, kGamma };
constexpr std::array<const char*, 3> kFitNames = {"exponential", "Pareto", "gamma, Pareto"};
constexpr double kStageShare = 0.25;  // of all stages but the last, as in the paper
constexpr int kMostStages = 6;
constexpr size_t kLanes = 16;

struct Moments {
  double sum = 0, squares = 0, logarithms = 0;
  size_t count = 0;
};

struct Lanes {
  float sums[kLanes], squares[kLanes];
  int32_t counts[kLanes];
};

/// Of |x| - above where that is positive. A vectorised pass over everything: shorter lists would
/// have to be written first, which takes longer.
GRADWIRE_CLONES Moments moments_above(const float* x, size_t numel, float above) {
  constexpr size_t kRun = 4096;  // sums in float32 within a run
  Moments all;
  for (size_t begin = 0; begin < numel; begin += kRun) {
    Lanes lanes = {};
    const size_t run = std::min(kRun, numel - begin) / kLanes * kLanes;  // a few are left out
    for (size_t i = begin; i < begin + run; i += kLanes) {
#pragma GCC unroll 1  // else no loop is left to be made a vector
      for (size_t l = 0; l < kLanes; ++l) {
        const float excess = std::abs(x[i + l]) - above;
        const float taken = std::max(excess, 0.0f);
        lanes.sums[l] += taken;
        lanes.squares[l] += taken * taken;
        lanes.counts[l] += excess > 0.0f ? 1 : 0;
      }
    }
    for (size_t l = 0; l < kLanes; ++l) {
      all.sum += lanes.sums[l];
      all.squares += lanes.squares[l];
      all.count += static_cast<size_t>(lanes.counts[l]);
    }
  }
  return all;
}

void add_logarithms(const std::vector<float>& x, Moments& moments) {
  for (const float value : x) {
    moments.logarithms += value != 0 ? std::log(std::abs(value)) : 0;
  }
}

/// The threshold that a share `share` of the fitted tail exceeds, from `above` on.
double quantile(Fit fit, const Moments& m, double share) {
  const auto count = static_cast<double>(std::max<size_t>(m.count, 1));
  const double mean = m.sum / count;
  if (fit == Fit::kExponential) {
    return -mean * std::log(share);
  }
  if (fit == Fit::kGamma) {  // shape by Minka's formula; the tail by its leading term
    const double s = std::log(mean) - m.logarithms / count;
    const double shape = (3 - s + std::sqrt((s - 3) * (s - 3) + 24 * s)) / (12 * s);
    return -mean / shape * (std::log(share) + std::lgamma(shape));
  }
  const double variance = std::max(m.squares / count - mean * mean, 1e-300);
  const double ratio = mean * mean / variance;
  const double shape = 0.5 * (1 - ratio), scale = 0.5 * mean * (ratio + 1);
  return std::abs(shape) < 1e-9 ? -scale * std::log(share)
                                : scale / shape * (std::exp(-shape * std::log(share)) - 1);
}

double fitted_threshold(const std::vector<float>& x, Fit fit, double density, int stages) {
  double threshold = 0, left = density;
  for (int stage = 0; stage < stages; ++stage) {
    const double share = stage + 1 < stages ? kStageShare : left;
    left /= kStageShare;
    Moments moments = moments_above(x.data(), x.size(), static_cast<float>(threshold));
    const bool first = stage == 0;
    if (fit == Fit::kGamma && first) {
      add_logarithms(x, moments);
    }
    threshold += std::max(0.0, quantile(fit == Fit::kGamma && !first ? Fit::kPareto : fit, moments,
                                        std::min(share, 1.0)));
  }
  return threshold;
}

struct Chosen {
  size_t count = 0;
  double captured = 0;  // share of |x|^2
};

Chosen chosen_above(const std::vector<float>& x, double threshold) {
  Chosen chosen;
  double all = 0;
  for (const float value : x) {
    all += double{value} * value;
    if (std::abs(value) >= threshold) {
      ++chosen.count;
      chosen.captured += double{value} * value;
    }
  }
  chosen.captured /= all;
  return chosen;
}

/// The k-th largest magnitude.
double exact_threshold(const std::vector<float>& x, size_t k) {
  std::vector<float> sorted(x.size());
  std::ranges::transform(x, sorted.begin(), [](float v) { return std::abs(v); });
  std::ranges::nth_element(sorted, sorted.begin() + static_cast<ptrdiff_t>(k - 1), std::greater());
  return sorted[k - 1];
}

/// The fastest of many rounds: others share the machine.
template <class Round>
double milliseconds(double seconds, const Round& round) {
  using Clock = std::chrono::steady_clock;
  double best = 1e30;
  const auto begin = Clock::now();
  do {
    const auto start = Clock::now();
    round();
    best = std::min(best, std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  } while (std::chrono::duration<double>(Clock::now() - begin).count() < seconds);
  return best;
}

void compare_thresholds(const Gradients& gradients, double density, double seconds) {
  const std::vector<float>& g = gradients.of_rank.front();
  const size_t numel = g.size();
  const auto k = static_cast<size_t>(std::ceil(density * static_cast<double>(numel)));
  const std::vector<float> e(numel);
  std::vector<float> e_next(numel);
  gradwire::ThreadPool pool(1);
  gradwire::Workspace workspace;
  // Choosing includes g + e and the residual, as in a step.
  const cpu::SelectInput input{gradwire::view_of(std::span<const float>(g)), e, e_next, k};
  const auto select_above = [&](double threshold) {
    gradwire::Workspace::Frame frame(workspace);
    cpu::select_reaching(input, {static_cast<float>(threshold), std::min(numel, 4 * k), 0}, frame,
                         pool);
  };
  const double tau = exact_threshold(g, k);
  std::printf("%s, %zu elements, k = %g%%\n", gradients.name.c_str(), numel, 100 * density);
  const auto print = [&](const std::string& name, double threshold, double took) {
    const Chosen chosen = chosen_above(g, threshold);
    const double as_many =
        chosen_above(g, exact_threshold(g, std::clamp<size_t>(chosen.count, 1, numel))).captured;
    std::printf("  %-26s k'/k %6.2f  captured %5.1f%% (topk of as many %5.1f%%)  %7.3f ms\n",
                name.c_str(), static_cast<double>(chosen.count) / static_cast<double>(k),
                100 * chosen.captured, 100 * as_many, took);
  };
  print("topk, exact", tau, milliseconds(seconds, [&] {
          gradwire::Workspace::Frame frame(workspace);
          cpu::select_largest(input, frame, pool);
        }));
  print("threshold, carried", tau, milliseconds(seconds, [&] { select_above(tau); }));
  for (const Fit fit : {Fit::kExponential, Fit::kPareto, Fit::kGamma}) {
    // The number of stages that an adaptive one would end at.
    int best = 1;
    double off = 1e30;
    for (int stages = 1; stages <= kMostStages; ++stages) {
      const Chosen chosen = chosen_above(g, fitted_threshold(g, fit, density, stages));
      const double ratio =
          static_cast<double>(std::max<size_t>(chosen.count, 1)) / static_cast<double>(k);
      if (std::abs(std::log(ratio)) < off) {
        off = std::abs(std::log(ratio));
        best = stages;
      }
    }
    const double took =
        milliseconds(seconds, [&] { select_above(fitted_threshold(g, fit, density, best)); });
    print(
        std::string(kFitNames[static_cast<size_t>(fit)]) + ", " + std::to_string(best) + " stages",
        fitted_threshold(g, fit, density, best), took);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 2 ? std::atof(argv[2]) : 0.3;
  if (argc < 2 || argc > 3 || seconds <= 0) {
    std::fprintf(stderr, "selection_rivals: expected a data folder, and seconds above 0\n");
    return 2;
  }
  try {
    for (const size_t ranks : {4, 16}) {
      for (const Gradients& gradients :
           {selection::of_training(argv[1], ranks, 40), selection::heavy_tailed(1 << 20, ranks),
            selection::embedding(1 << 14, ranks)}) {
        for (const double density : {0.001, 0.01}) {
          if (ranks == 4) {
            compare_thresholds(gradients, density, seconds);
          }
          selection::compare_shared(gradients, density);
        }
      }
    }
  } catch (const gradwire::InvalidArgument& error) {
    std::fprintf(stderr, "selection_rivals: %s\n", error.what());
    return 2;
  }
  return 0;
}
