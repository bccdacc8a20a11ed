#include "gradwire/kernels/ops/internal/select_sample.h"

#include <algorithm>
#include <functional>

#include "gradwire/kernels/ops/cast.h"
#include "gradwire/kernels/ops/elementwise.h"
#include "gradwire/kernels/ops/select.h"

namespace gradwire::cpu {
namespace {

constexpr size_t kLine = 16;                     // elements sampled together: a line of 64 bytes
constexpr size_t kSampleAll = 4 * kSelectChunk;  // up to here the sample is everything
constexpr size_t kAhead = 16;                    // lines asked for before they are read

/// Where the sample's lines begin: one in each stride. A hash of the line's number spreads them, so
/// that no period of the data is met.
size_t line_begin(size_t line, size_t stride) {
  const uint64_t hash = static_cast<uint32_t>(line * 2654435761u);
  return (line * stride + (hash * (stride - kLine) >> 32)) / kLine * kLine;
}

void read_lines(const Elements& x, std::span<uint32_t> sample) {
  const size_t lines = sample.size() / kLine;
  const size_t stride = x.size() / lines;
  for (size_t line = 0; line < lines; ++line) {
    const size_t ahead = line_begin(std::min(line + kAhead, lines - 1), stride);
    __builtin_prefetch(x.gradient(ahead));
    if (!x.e.empty()) {
      __builtin_prefetch(x.e.data() + ahead);
    }
    std::array<float, kLine> elements;
    x.read(line_begin(line, stride), elements);
    std::ranges::transform(elements, sample.data() + line * kLine, magnitude);
  }
}

void read_all(const Elements& x, std::span<uint32_t> sample) {
  std::array<float, kSelectChunk> elements;
  for (size_t begin = 0; begin < x.size(); begin += kSelectChunk) {
    const auto chunk = std::span(elements).first(std::min(kSelectChunk, x.size() - begin));
    x.read(begin, chunk);
    std::ranges::transform(chunk, sample.data() + begin, magnitude);
  }
}

/// Which sampled element to take: four standard deviations on the safe side of the expected one,
/// which is `likely`. Neighbours are alike in real gradients; how the large ones gather in lines
/// shows how much.
size_t safe_rank(const SampleSizes& sizes, std::span<const uint32_t> sample, uint32_t likely) {
  double squares = 0;
  for (size_t begin = 0; begin < sample.size(); begin += kLine) {
    uint32_t large = 0;
    for (size_t i = begin; i < begin + kLine; ++i) {
      large += sample[i] >= likely ? 1 : 0;
    }
    squares += static_cast<double>(large * large);
  }
  const double deviation = std::sqrt(std::max(sizes.expected, squares));
  const double rank = std::min(sizes.expected + 4 * deviation + 2, 1.5 * sizes.most_ranks());
  return std::min(sample.size(), static_cast<size_t>(rank));
}

}  // namespace

void Elements::read(size_t begin, std::span<float> out) const {
  const ConstGradient part(gradient(begin), out.size(), g.dtype);
  if (e.empty()) {
    widen(part, out);
  } else if (g.dtype == DType::kFloat32) {
    add(part.as<float>(), e.subspan(begin, out.size()), out);
  } else {
    widen(part, out);
    add(out, e.subspan(begin, out.size()), out);
  }
}

SampleSizes::SampleSizes(size_t n, size_t k) : capacity(n) {
  if (n == 0 || k >= n / 2) {
    return;
  }
  if (n <= kSampleAll) {
    sample = n;
    return;
  }
  const double density = static_cast<double>(k) / static_cast<double>(n);
  const size_t enough = density < 0.005 ? 65536 : 32768;
  sample = std::min(enough, n / 8) / kLine * kLine;
  expected = density * static_cast<double>(sample);
  const double share = static_cast<double>(n) / static_cast<double>(sample);
  capacity = std::min(n, static_cast<size_t>(share * 2 * most_ranks()) + 1);
}

Guess guess_thresholds(const Elements& x, size_t k, const SampleSizes& sizes,
                       std::span<uint32_t> sample, std::span<uint32_t> scratch) {
  if (sample.empty()) {
    return {kSmallestNonZero, kSmallestNonZero};
  }
  const auto reached_by = [&](size_t rank) {
    // At most infinity, so that whatever is not finite reaches it.
    return std::clamp(kth_largest(sample, rank, scratch), kSmallestNonZero, kFiniteBits + 1);
  };
  if (sample.size() == x.size()) {
    read_all(x, sample);
    const uint32_t exact = reached_by(k);
    return {exact, exact};
  }
  read_lines(x, sample);
  const uint32_t likely = reached_by(std::max<size_t>(1, static_cast<size_t>(sizes.expected)));
  return {reached_by(safe_rank(sizes, sample, likely)), likely};
}

uint32_t bin_of_rank(const Bins& bins, size_t& rank) {
  size_t bin = bins.size() - 1;
  for (; bin > 0 && bins[bin] < rank; --bin) {
    rank -= bins[bin];
  }
  return static_cast<uint32_t>(bin);
}

uint32_t kth_largest(std::span<const uint32_t> magnitudes, size_t k, std::span<uint32_t> scratch) {
  Bins bins{};
  const Digit top = digit(0, 0);
  for (const uint32_t bits : magnitudes) {
    ++bins[top.bin(bits)];
  }
  const uint32_t found = bin_of_rank(bins, k);
  size_t members = 0;
  for (const uint32_t bits : magnitudes) {
    if (top.bin(bits) == found) {
      scratch[members++] = bits;
    }
  }
  const auto kth = scratch.begin() + static_cast<ptrdiff_t>(k - 1);
  std::nth_element(scratch.begin(), kth, scratch.begin() + static_cast<ptrdiff_t>(members),
                   std::greater<>());
  return *kth;
}

}  // namespace gradwire::cpu
