#include "gradwire/kernels/ops/clip.h"

#include <algorithm>
#include <cmath>

#include "gradwire/kernels/ops/cast.h"
#include "gradwire/kernels/ops/chunks.h"

namespace gradwire::cpu {
namespace {

constexpr size_t kClipChunk = 4096;
constexpr size_t kRunOfChunks = 32;

/// In eight lanes: the same on every instruction set.
double sum_of_squares(std::span<const float> x) {
  constexpr size_t kLanes = 8;
  double lanes[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= x.size(); i += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const double value = x[i + lane];
      lanes[lane] += value * value;
    }
  }
  for (; i < x.size(); ++i) {
    const double value = x[i];
    lanes[i % kLanes] += value * value;
  }
  double sum = 0;
  for (const double lane : lanes) {
    sum += lane;
  }
  return sum;
}

}  // namespace

float clip_factor(ConstGradient g, double limit, std::span<double> room, ThreadPool& pool) {
  for_each_chunk(pool, room.size(), [&](size_t chunk) {
    alignas(64) float values[kClipChunk];
    const size_t begin = chunk * kClipChunk;
    const std::span<float> x(values, std::min(kClipChunk, g.numel - begin));
    widen(g.subview(begin, x.size()), x);
    room[chunk] = sum_of_squares(x);
  });
  double sum = 0;
  for (size_t begin = 0; begin < room.size(); begin += kRunOfChunks) {
    double of_run = 0;
    for (const double chunk : room.subspan(begin, std::min(kRunOfChunks, room.size() - begin))) {
      of_run += chunk;
    }
    sum += of_run;
  }
  const double norm = std::sqrt(sum);
  // What is not finite stays so, and is flagged.
  return norm > limit && std::isfinite(norm) ? static_cast<float>(limit / norm) : 1.0f;
}

}  // namespace gradwire::cpu
