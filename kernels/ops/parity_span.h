#pragma once
// Which of two buffers is meant is known on the device alone: a captured graph that is replayed
// follows the commits between its replays.

#include <cstddef>
#include <cstdint>
#include <span>

#include "gradwire/kernels/core/dtype.h"

namespace gradwire::cuda {

/// One of two float arrays in device memory: `first` where `parity` is null or *parity is 0, else
/// `second`. Both have the same size; empty ones stand for nothing.
struct ParitySpan {
  std::span<float> first{};
  std::span<float> second{};
  const uint32_t* parity = nullptr;  ///< device word

  ParitySpan() = default;
  ParitySpan(std::span<float> only) : first(only), second(only) {}  // NOLINT: implicit on purpose
  ParitySpan(std::span<float> even, std::span<float> odd, const uint32_t* device_parity)
      : first(even), second(odd), parity(device_parity) {}

  size_t size() const { return first.size(); }
  bool empty() const { return first.empty(); }
  ParitySpan subspan(size_t begin, size_t count) const {
    return {first.subspan(begin, count), second.subspan(begin, count), parity};
  }
};

/// A ParitySpan as a kernel takes it. Null pointers stand for nothing.
struct ParityPointer {
  float* first = nullptr;
  float* second = nullptr;
  const uint32_t* parity = nullptr;

  ParityPointer() = default;
  explicit ParityPointer(const ParitySpan& span)
      : first(span.empty() ? nullptr : span.first.data()),
        second(span.empty() ? nullptr : span.second.data()),
        parity(span.parity) {}

  /// On the device alone: reads *parity.
  GRADWIRE_HOST_DEVICE float* get() const {
    return parity != nullptr && *parity != 0 ? second : first;
  }
  /// Likewise, for a kernel that asks get() again behind its stores: what that gives now.
  GRADWIRE_HOST_DEVICE ParityPointer settled() const {
    ParityPointer now;
    now.first = get();
    return now;
  }
};

}  // namespace gradwire::cuda
