// Orthonormal bases of the vectors that tall-skinny products give.

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "gradwire/kernels/ops/elementwise.h"
#include "gradwire/kernels/ops/internal/lowrank_loops.h"
#include "gradwire/kernels/ops/lowrank.h"

namespace gradwire::cpu {
namespace {

using internal::accumulate;
using internal::combine;
using internal::kLanes;
using internal::kMostRank;
using internal::sum_lanes;

constexpr size_t kStrip = 1024;  // elements of a vector at once

float dot(const float* a, const float* b, size_t numel) {
  alignas(64) float lanes[kLanes] = {};
  accumulate(a, b, numel, numel, 1, lanes);
  float sum;
  sum_lanes(lanes, 1, &sum);
  return sum;
}

/// v loses its components along the first `count` vectors of `basis`.
void project_out(const float* basis, uint32_t count, std::span<float> v) {
  alignas(64) float lanes[kMostRank * kLanes];
  float components[kMostRank];
  alignas(64) float product[kStrip];
  std::fill_n(lanes, count * kLanes, 0.0f);
  accumulate(v.data(), basis, v.size(), v.size(), count, lanes);
  sum_lanes(lanes, count, components);
  for (size_t begin = 0; begin < v.size(); begin += kStrip) {
    const std::span<float> part = v.subspan(begin, std::min(kStrip, v.size() - begin));
    combine(components, basis + begin, v.size(), count, product, part.size());
    subtract(part, {product, part.size()}, part);
  }
}

void orthonormalise_one(float* vectors, size_t length, uint32_t rank) {
  for (uint32_t k = 0; k < rank; ++k) {
    const std::span<float> v(vectors + k * length, length);
    for (uint32_t candidate = 0;; ++candidate) {
      if (candidate > kCandidates) {
        std::ranges::fill(v, 0.0f);
        break;
      }
      for (size_t i = 0; i < length && candidate > 0; ++i) {
        v[i] = candidate_element(static_cast<uint32_t>(i), k, candidate);
      }
      const uint32_t largest = max_magnitude_bits(v);
      if (largest == 0 || largest > kFiniteBits) {
        continue;
      }
      multiply(v, scale_to_one(std::bit_cast<float>(largest)), v);
      const float before = dot(v.data(), v.data(), length);
      for (int pass = 0; pass < 2 && k > 0; ++pass) {
        project_out(vectors, k, v);
      }
      const float left = dot(v.data(), v.data(), length);
      if (left > before * (candidate == 0 ? kDependentShare : kCandidateShare)) {
        multiply(v, 1.0f / std::sqrt(left), v);
        break;
      }
    }
  }
}

}  // namespace

void orthonormalise(std::span<const LowRankMatrix> matrices, uint32_t rank, FactorSide side,
                    float* factors, ThreadPool& pool) {
  const auto one = [&](size_t i) {
    orthonormalise_one(factors + matrices[i].at(side), matrices[i].length(side), rank);
  };
  pool.parallel_for(matrices.size(), std::cref(one));
}

}  // namespace gradwire::cpu
