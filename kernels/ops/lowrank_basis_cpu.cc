// The sums of tall-skinny products, and orthonormal bases made of them.

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>

#include "gradwire/kernels/ops/elementwise.h"
#include "gradwire/kernels/ops/internal/lowrank_loops.h"
#include "gradwire/kernels/ops/lowrank.h"

namespace gradwire::cpu {
namespace internal {

/// lanes[r][l] += x[j] * q[r][j] for j % 32 == l, in order.
template <int kVectors>
GRADWIRE_INLINE void add_to_lanes(const float* x, const float* q, size_t stride, size_t numel,
                                  float* lanes) {
  Vector sums[kVectors][2];
  for (int r = 0; r < kVectors; ++r) {
    load(lanes + r * kLanes, sums[r][0]);
    load(lanes + r * kLanes + kWidth, sums[r][1]);
  }
  size_t j = 0;
  for (; j + kLanes <= numel; j += kLanes) {
    Vector x0, x1;
    load(x + j, x0);
    load(x + j + kWidth, x1);
    for (int r = 0; r < kVectors; ++r) {
      Vector q0, q1;
      load(q + r * stride + j, q0);
      load(q + r * stride + j + kWidth, q1);
      sums[r][0] += x0 * q0;
      sums[r][1] += x1 * q1;
    }
  }
  for (int r = 0; r < kVectors; ++r) {
    store(sums[r][0], lanes + r * kLanes);
    store(sums[r][1], lanes + r * kLanes + kWidth);
    for (size_t l = j; l < numel; ++l) {
      lanes[r * kLanes + l - j] += x[l] * q[r * stride + l];
    }
  }
}

GRADWIRE_CLONES void accumulate(const float* x, const float* q, size_t stride, size_t numel,
                                uint32_t vectors, float* lanes) {
  uint32_t r = 0;
  for (; r + 4 <= vectors; r += 4) {
    add_to_lanes<4>(x, q + r * stride, stride, numel, lanes + r * kLanes);
  }
  for (; r < vectors; ++r) {
    add_to_lanes<1>(x, q + r * stride, stride, numel, lanes + r * kLanes);
  }
}

float sum_of_lanes(const float* lanes) {
  float sums[kLanes];
  std::copy_n(lanes, kLanes, sums);
  for (size_t width = kLanes / 2; width > 0; width /= 2) {
    for (size_t l = 0; l < width; ++l) {
      sums[l] += sums[l + width];
    }
  }
  return sums[0];
}

GRADWIRE_CLONES void combine(const float* l, const float* q, size_t stride, uint32_t vectors,
                             float* out, size_t numel) {
  size_t j = 0;
  for (; j + 2 * kWidth <= numel; j += 2 * kWidth) {
    Vector q0, q1;
    load(q + j, q0);
    load(q + j + kWidth, q1);
    Vector sum0 = l[0] * q0, sum1 = l[0] * q1;
    for (uint32_t r = 1; r < vectors; ++r) {
      load(q + r * stride + j, q0);
      load(q + r * stride + j + kWidth, q1);
      sum0 += l[r] * q0;
      sum1 += l[r] * q1;
    }
    store(sum0, out + j);
    store(sum1, out + j + kWidth);
  }
  for (; j < numel; ++j) {
    float sum = l[0] * q[j];
    for (uint32_t r = 1; r < vectors; ++r) {
      sum += l[r] * q[r * stride + j];
    }
    out[j] = sum;
  }
}

}  // namespace internal

namespace {

using internal::accumulate;
using internal::combine;
using internal::kLanes;
using internal::kMostRank;
using internal::sum_of_lanes;

constexpr size_t kStrip = 1024;  // elements of a vector at once

float dot(const float* a, const float* b, size_t numel) {
  alignas(64) float lanes[kLanes] = {};
  accumulate(a, b, numel, numel, 1, lanes);
  return sum_of_lanes(lanes);
}

/// v loses its components along the first `count` vectors of `basis`.
void project_out(const float* basis, uint32_t count, std::span<float> v) {
  alignas(64) float lanes[kMostRank * kLanes];
  float components[kMostRank];
  alignas(64) float product[kStrip];
  std::fill_n(lanes, count * kLanes, 0.0f);
  accumulate(v.data(), basis, v.size(), v.size(), count, lanes);
  for (uint32_t j = 0; j < count; ++j) {
    components[j] = sum_of_lanes(lanes + j * kLanes);
  }
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
