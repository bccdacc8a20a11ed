// Each way's bytes per rank, in units of 2 (P - 1) / P, which every all-reduce and two_shot cost:
//   two_shot   topk's entries, of 12 bits and a float; each rank's, then the largest of their sums
//   gather     the same entries, P / 2 times as many bytes
//   blocks     blocktopk's blocks of 64 floats and 12 bits, as in two_shot
//   random     floats of elements that are drawn
//   norms      a float per block of W, the sum of all ranks' squared norms; then the blocks with
//   the
//              largest, agreed on, as floats
//   sketch     ARC-Top-K, Chen et al., arXiv:2510.26709: instead of norms r random projections per
//   row
//              of W, which add up with their signs; then the rows whose sums have the largest norms
//   count      a count sketch of five rows (Charikar et al., 2002; Ivkin et al., SketchedSGD,
//              arXiv:1903.04488); then floats of the elements that it estimates largest

#include "bench/shared_choice.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

namespace selection {
namespace {

using Floats = std::vector<float>;

constexpr double kEntryBytes = 5.5;  // of topk
constexpr double kFloatBytes = 4;
constexpr size_t kBlock = 64;  // of blocktopk

double square_sum(const Floats& x) {
  return std::transform_reduce(x.begin(), x.end(), 0.0, std::plus(),
                               [](float v) { return double{v} * v; });
}

/// The indices of the k largest scores.
std::vector<size_t> largest(const Floats& score, size_t k) {
  std::vector<size_t> order(score.size());
  std::iota(order.begin(), order.end(), size_t{0});
  k = std::min(k, order.size());
  std::nth_element(order.begin(), order.begin() + static_cast<ptrdiff_t>(k), order.end(),
                   [&](size_t a, size_t b) { return score[a] > score[b]; });
  order.resize(k);
  return order;
}

Floats magnitudes(const Floats& x) {
  Floats result(x.size());
  std::ranges::transform(x, result.begin(), [](float v) { return std::abs(v); });
  return result;
}

struct Case {
  const Gradients& all;
  Floats mean;
  double budget;  // bytes, in units of 2 (P - 1) / P
  double norm;    // |mean|^2

  size_t ranks() const { return all.of_rank.size(); }
  /// 1 - |mean - sent|^2 / |mean|^2
  double captured(const Floats& sent) const {
    double lost = 0;
    for (size_t i = 0; i < mean.size(); ++i) {
      const double difference = double{mean[i]} - sent[i];
      lost += difference * difference;
    }
    return 1 - lost / norm;
  }
  /// The same where the mean itself is sent in blocks of `width`.
  double captured_by(const std::vector<size_t>& blocks, size_t width) const {
    double kept = 0;
    for (const size_t block : blocks) {
      for (size_t i = block * width; i < std::min((block + 1) * width, mean.size()); ++i) {
        kept += double{mean[i]} * mean[i];
      }
    }
    return kept / norm;
  }
  size_t blocks_of(size_t width) const { return (mean.size() + width - 1) / width; }
};

double of_topk(const Case& c, double bytes, bool again) {
  const auto k = static_cast<size_t>(bytes / kEntryBytes);
  Floats sum(c.mean.size());
  for (const Floats& x : c.all.of_rank) {
    for (const size_t i : largest(magnitudes(x), k)) {
      sum[i] += x[i] / static_cast<float>(c.ranks());
    }
  }
  if (!again) {
    return c.captured(sum);
  }
  Floats sent(sum.size());
  for (const size_t i : largest(magnitudes(sum), k)) {
    sent[i] = sum[i];
  }
  return c.captured(sent);
}

double of_blocks(const Case& c) {
  const auto k = static_cast<size_t>(c.budget / (kFloatBytes * kBlock + 1.5));
  const auto squares_of = [&](const Floats& x) {
    Floats score(c.blocks_of(kBlock));
    for (size_t i = 0; i < x.size(); ++i) {
      score[i / kBlock] += x[i] * x[i];
    }
    return score;
  };
  const auto take = [&](const Floats& from, float scale, Floats& to) {
    for (const size_t block : largest(squares_of(from), k)) {
      for (size_t i = block * kBlock; i < std::min((block + 1) * kBlock, from.size()); ++i) {
        to[i] += from[i] * scale;
      }
    }
  };
  Floats sum(c.mean.size()), sent(c.mean.size());
  for (const Floats& x : c.all.of_rank) {
    take(x, 1 / static_cast<float>(c.ranks()), sum);
  }
  take(sum, 1, sent);
  return c.captured(sent);
}

struct Best {
  double captured = 0;
  size_t width = 0;
  double overhead = 0;  // share of the bytes that say what is chosen
  void take(double share, size_t of_width, double of_overhead) {
    if (share > captured) {
      *this = {share, of_width, of_overhead};
    }
  }
};

constexpr std::array<size_t, 7> kWidths = {16, 32, 64, 128, 256, 1024, 4096};

Best of_norms(const Case& c) {
  Best best;
  for (const size_t width : kWidths) {
    const double overhead = kFloatBytes * static_cast<double>(c.blocks_of(width));
    if (overhead >= c.budget) {
      continue;
    }
    Floats score(c.blocks_of(width));
    for (const Floats& x : c.all.of_rank) {
      for (size_t i = 0; i < x.size(); ++i) {
        score[i / width] += x[i] * x[i];
      }
    }
    const double left = (c.budget - overhead) / (kFloatBytes * static_cast<double>(width));
    best.take(c.captured_by(largest(score, static_cast<size_t>(left)), width), width,
              overhead / c.budget);
  }
  return best;
}

Best of_sketch(const Case& c) {
  Best best;
  for (const size_t width : kWidths) {
    for (const size_t projections : {1, 4}) {
      const double overhead = kFloatBytes * static_cast<double>(projections * c.blocks_of(width));
      if (overhead >= c.budget) {
        continue;
      }
      Floats score(c.blocks_of(width));
      for (size_t p = 0; p < projections; ++p) {
        std::mt19937_64 random(p);
        std::normal_distribution<float> normal;
        Floats direction(width), sum(score.size());
        std::ranges::generate(direction, [&] { return normal(random); });
        for (size_t i = 0; i < c.mean.size(); ++i) {  // of the mean: projections add up
          sum[i / width] += c.mean[i] * direction[i % width];
        }
        for (size_t b = 0; b < score.size(); ++b) {
          score[b] += sum[b] * sum[b];
        }
      }
      const double left = (c.budget - overhead) / (kFloatBytes * static_cast<double>(width));
      best.take(c.captured_by(largest(score, static_cast<size_t>(left)), width), width,
                overhead / c.budget);
    }
  }
  return best;
}

Best of_count_sketch(const Case& c) {
  constexpr size_t kRows = 5;
  Best best;
  for (const double share : {0.25, 0.5, 0.75}) {  // of the bytes
    const auto columns = static_cast<size_t>(share * c.budget / (kFloatBytes * kRows));
    if (columns == 0) {
      continue;
    }
    std::array<Floats, kRows> table;
    const auto hash = [&](size_t row, size_t i) {
      uint64_t h = (i + 1) * 0x9E3779B97F4A7C15ull + row * 0xD1B54A32D192ED03ull;
      h = (h ^ h >> 31) * 0xBF58476D1CE4E5B9ull;
      return h ^ h >> 29;
    };
    for (size_t row = 0; row < kRows; ++row) {
      table[row].resize(columns);
      for (size_t i = 0; i < c.mean.size(); ++i) {
        const uint64_t h = hash(row, i);
        table[row][(h >> 1) % columns] += (h & 1) != 0 ? c.mean[i] : -c.mean[i];
      }
    }
    Floats score(c.mean.size());
    for (size_t i = 0; i < score.size(); ++i) {
      std::array<float, kRows> estimate;
      for (size_t row = 0; row < kRows; ++row) {
        const uint64_t h = hash(row, i);
        const float there = table[row][(h >> 1) % columns];
        estimate[row] = (h & 1) != 0 ? there : -there;
      }
      std::nth_element(estimate.begin(), estimate.begin() + kRows / 2, estimate.end());
      score[i] = std::abs(estimate[kRows / 2]);
    }
    const double left = (1 - share) * c.budget / kFloatBytes;
    best.take(c.captured_by(largest(score, static_cast<size_t>(left)), 1), 1, share);
  }
  return best;
}

}  // namespace

void compare_shared(const Gradients& gradients, double density) {
  const size_t ranks = gradients.of_rank.size(), numel = gradients.numel();
  Case c{gradients, Floats(numel), density * kEntryBytes * static_cast<double>(numel), 0};
  for (const Floats& x : gradients.of_rank) {
    for (size_t i = 0; i < numel; ++i) {
      c.mean[i] += x[i] / static_cast<float>(ranks);
    }
  }
  c.norm = square_sum(c.mean);
  const auto k = static_cast<size_t>(density * static_cast<double>(numel));
  const double best = c.captured_by(largest(magnitudes(c.mean), k), 1);
  const Best norms = of_norms(c), sketch = of_sketch(c), count = of_count_sketch(c);
  std::printf(
      "%-12s %zu ranks, topk:%g%%: two_shot %5.1f%%  gather %5.1f%%  blocks %5.1f%%  random "
      "%5.1f%%  "
      "norms %5.1f%% (W %zu, %2.0f%% norms)  sketch %5.1f%% (W %zu, %2.0f%% sketch)  "
      "count %5.1f%% (%2.0f%% sketch)  the mean's own top-k %5.1f%%\n",
      gradients.name.c_str(), ranks, 100 * density, 100 * of_topk(c, c.budget, true),
      100 * of_topk(c, c.budget * 2 / static_cast<double>(ranks), false), 100 * of_blocks(c),
      100 * c.budget / kFloatBytes / static_cast<double>(numel), 100 * norms.captured, norms.width,
      100 * norms.overhead, 100 * sketch.captured, sketch.width, 100 * sketch.overhead,
      100 * count.captured, 100 * count.overhead, 100 * best);
}

}  // namespace selection
