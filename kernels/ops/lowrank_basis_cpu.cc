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

/// Rows of x, vectors q, and where their lanes are.
struct LaneSums {
  const float* x;
  size_t x_stride;
  const float* q;
  size_t stride, numel;
  float* lanes;
  size_t lanes_stride;  // from row to row
};

/// lanes[r][l] += x[j] * q[r][j] for j % 32 == l, in order: one row.
template <int kVectors>
GRADWIRE_INLINE void add_to_lanes(const LaneSums& s) {
  Vector sums[kVectors][2];
  for (int r = 0; r < kVectors; ++r) {
    load(s.lanes + r * kLanes, sums[r][0]);
    load(s.lanes + r * kLanes + kWidth, sums[r][1]);
  }
  size_t j = 0;
  for (; j + kLanes <= s.numel; j += kLanes) {
    Vector x0, x1;
    load(s.x + j, x0);
    load(s.x + j + kWidth, x1);
    for (int r = 0; r < kVectors; ++r) {
      Vector q0, q1;
      load(s.q + r * s.stride + j, q0);
      load(s.q + r * s.stride + j + kWidth, q1);
      sums[r][0] += x0 * q0;
      sums[r][1] += x1 * q1;
    }
  }
  for (int r = 0; r < kVectors; ++r) {
    float* const to = s.lanes + r * kLanes;
    store(sums[r][0], to);
    store(sums[r][1], to + kWidth);
    for (size_t l = j; l < s.numel; ++l) {
      to[l - j] += s.x[l] * s.q[r * s.stride + l];
    }
  }
}

/// The same for four rows and two vectors, of lanes 0 to 15 or 16 to 31, which lie on lines of
/// their own. One name for each sum: of an array the compiler loads what sums share again for each.
GRADWIRE_INLINE void add_to_half_lanes(const LaneSums& s, size_t half) {
  const float* const x = s.x + half;
  const float* const q = s.q + half;
  float* const to = s.lanes + half;
  Vector a0, a1, b0, b1, c0, c1, d0, d1;
  load(to, a0);
  load(to + kLanes, a1);
  load(to + s.lanes_stride, b0);
  load(to + s.lanes_stride + kLanes, b1);
  load(to + 2 * s.lanes_stride, c0);
  load(to + 2 * s.lanes_stride + kLanes, c1);
  load(to + 3 * s.lanes_stride, d0);
  load(to + 3 * s.lanes_stride + kLanes, d1);
  for (size_t j = 0; j + kLanes <= s.numel; j += kLanes) {
    Vector q0, q1, v;
    load(q + j, q0);
    load(q + s.stride + j, q1);
    load(x + j, v);
    a0 += v * q0;
    a1 += v * q1;
    load(x + s.x_stride + j, v);
    b0 += v * q0;
    b1 += v * q1;
    load(x + 2 * s.x_stride + j, v);
    c0 += v * q0;
    c1 += v * q1;
    load(x + 3 * s.x_stride + j, v);
    d0 += v * q0;
    d1 += v * q1;
  }
  store(a0, to);
  store(a1, to + kLanes);
  store(b0, to + s.lanes_stride);
  store(b1, to + s.lanes_stride + kLanes);
  store(c0, to + 2 * s.lanes_stride);
  store(c1, to + 2 * s.lanes_stride + kLanes);
  store(d0, to + 3 * s.lanes_stride);
  store(d1, to + 3 * s.lanes_stride + kLanes);
}

GRADWIRE_INLINE void add_four_rows(const LaneSums& s) {
  add_to_half_lanes(s, 0);
  add_to_half_lanes(s, kWidth);
  for (size_t l = s.numel / kLanes * kLanes; l < s.numel; ++l) {
    for (size_t i = 0; i < 4; ++i) {
      for (size_t r = 0; r < 2; ++r) {
        s.lanes[i * s.lanes_stride + r * kLanes + l % kLanes] +=
            s.x[i * s.x_stride + l] * s.q[r * s.stride + l];
      }
    }
  }
}

GRADWIRE_CLONES void accumulate(const float* x, const float* q, size_t stride, size_t numel,
                                uint32_t vectors, float* lanes) {
  uint32_t r = 0;
  for (; r + 4 <= vectors; r += 4) {
    add_to_lanes<4>({x, 0, q + r * stride, stride, numel, lanes + r * kLanes, 0});
  }
  for (; r < vectors; ++r) {
    add_to_lanes<1>({x, 0, q + r * stride, stride, numel, lanes + r * kLanes, 0});
  }
}

GRADWIRE_CLONES void accumulate_rows(const float* x, size_t x_stride, uint32_t rows, const float* q,
                                     size_t stride, size_t numel, uint32_t vectors, float* lanes) {
  const size_t lanes_stride = vectors * kLanes;
  uint32_t r = 0;
  if (rows == 4) {
    for (; r + 2 <= vectors; r += 2) {
      add_four_rows({x, x_stride, q + r * stride, stride, numel, lanes + r * kLanes, lanes_stride});
    }
  }
  for (uint32_t i = 0; i < rows && r < vectors; ++i) {
    accumulate(x + i * x_stride, q + r * stride, stride, numel, vectors - r,
               lanes + i * lanes_stride + r * kLanes);
  }
}

GRADWIRE_CLONES void sum_lanes(const float* lanes, uint32_t count, float* sums) {
  using Half = float __attribute__((vector_size(32)));
  using Quarter = float __attribute__((vector_size(16)));
  for (uint32_t i = 0; i < count; ++i) {
    Vector low, high;
    load(lanes + i * kLanes, low);
    load(lanes + i * kLanes + kWidth, high);
    low += high;
    Half halves[2];
    __builtin_memcpy(halves, &low, sizeof low);
    halves[0] += halves[1];
    Quarter quarters[2];
    __builtin_memcpy(quarters, halves, sizeof quarters);
    const Quarter q = quarters[0] + quarters[1];
    sums[i] = (q[0] + q[2]) + (q[1] + q[3]);
  }
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

namespace {

template <int kRows>
GRADWIRE_INLINE void combine_some(const float* l, const float* q, size_t stride, uint32_t vectors,
                                  float* out, size_t out_stride, size_t numel) {
  size_t j = 0;
  for (; j + kWidth <= numel; j += kWidth) {
    Vector sums[kRows], v;
    load(q + j, v);
    for (int i = 0; i < kRows; ++i) {
      sums[i] = l[i * vectors] * v;
    }
    for (uint32_t r = 1; r < vectors; ++r) {
      load(q + r * stride + j, v);
      for (int i = 0; i < kRows; ++i) {
        sums[i] += l[i * vectors + r] * v;
      }
    }
    for (int i = 0; i < kRows; ++i) {
      store(sums[i], out + i * out_stride + j);
    }
  }
  for (; j < numel; ++j) {
    for (int i = 0; i < kRows; ++i) {
      float sum = l[i * vectors] * q[j];
      for (uint32_t r = 1; r < vectors; ++r) {
        sum += l[i * vectors + r] * q[r * stride + j];
      }
      out[i * out_stride + j] = sum;
    }
  }
}

}  // namespace

GRADWIRE_CLONES void combine_rows(const float* l, uint32_t rows, const float* q, size_t stride,
                                  uint32_t vectors, float* out, size_t out_stride, size_t numel) {
  uint32_t i = 0;
  for (; i + 4 <= rows; i += 4) {
    combine_some<4>(l + i * vectors, q, stride, vectors, out + i * out_stride, out_stride, numel);
  }
  for (; i < rows; ++i) {
    combine_some<1>(l + i * vectors, q, stride, vectors, out + i * out_stride, out_stride, numel);
  }
}

}  // namespace internal

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
