#pragma once
// How a threshold is carried from one step to the next, the same on CPU and CUDA: the magnitude
// that the k largest reached in one step chooses in the next ones without a search, and is moved
// where it lets too much or too little pass. Li and Hoefler, Near-Optimal Sparse Allreduce
// (Ok-Topk), PPoPP 2022.

#include <cfloat>
#include <cstddef>
#include <cstdint>

#include "gradwire/kernels/core/dtype.h"

namespace gradwire {

/// After so many steps, or when a threshold let twice or half of k pass, the k largest are searched
/// exactly.
inline constexpr uint32_t kThresholdMaxAge = 32;
inline constexpr float kThresholdFactor = 1.025f;

/// What one step leaves to the next.
struct ThresholdState {
  float tau = 0.0f;  ///< not negative; 0: not known
  uint32_t age = 0;  ///< steps since the last exact search, that one included

  bool operator==(const ThresholdState&) const = default;
};

/// The most elements that a payload may hold where about k of n are wanted: min(n, k + ceil(k/4)).
GRADWIRE_HOST_DEVICE constexpr size_t threshold_capacity(size_t n, size_t k) {
  const size_t room = k + (k + 3) / 4;
  return room < n ? room : n;
}

/// Whether this step chooses the k largest; else it chooses every x with |x| >= tau and x != 0.
GRADWIRE_HOST_DEVICE constexpr bool searches_exactly(const ThresholdState& state) {
  return state.tau == 0.0f || state.age >= kThresholdMaxAge;
}

/// After an exact search that chose `chosen` of the k wanted, the smallest with that magnitude.
GRADWIRE_HOST_DEVICE constexpr ThresholdState after_exact_search(float smallest, size_t chosen,
                                                                 size_t k) {
  return {chosen == 0 || chosen < k ? 0.0f : smallest, 1};
}

/// After a step in which `count` elements reached tau, those that found no room included. tau stays
/// finite, and positive: the smallest positive float, divided, rounds to itself.
GRADWIRE_HOST_DEVICE constexpr ThresholdState after_reuse(const ThresholdState& state, size_t count,
                                                          size_t k) {
  const uint64_t c = count;
  const uint64_t wanted = k;
  const float larger = state.tau * kThresholdFactor;
  const float tau = 4 * c > 5 * wanted   ? (larger <= FLT_MAX ? larger : FLT_MAX)
                    : 5 * c < 4 * wanted ? state.tau / kThresholdFactor
                                         : state.tau;
  return {tau, c > 2 * wanted || 2 * c < wanted ? kThresholdMaxAge : state.age + 1};
}

/// Where taking begins when more elements reach tau than there is room for: at this chunk, then on
/// and around, so that no part of a group waits for ever. 0 of no chunks.
GRADWIRE_HOST_DEVICE constexpr size_t first_chunk_taken(uint32_t step, size_t chunks) {
  return chunks == 0 ? 0 : static_cast<size_t>(uint64_t{step} * 2654435761u % chunks);
}

}  // namespace gradwire
