#pragma once
// What the tests of kernels share: memory with guards, sizes, patterns of values. The device, its
// stream and its memory are in device.h.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "tests/simt/device.h"
#include "tests/support/generators.h"

namespace gradwire::testing {

/// `count` elements of device memory that begin `offset` bytes after a 16-byte boundary, with guards
/// on both sides. values() and guards_hold() come after stream.wait().
template <class T>
class Guarded {
 public:
  explicit Guarded(size_t count, size_t offset = 0)
      : count_(count), offset_(kGuard + offset), bytes_(2 * kGuard + offset + count * sizeof(T)) {
    std::ranges::fill(bytes_, kFill);
  }
  Guarded(const std::vector<T>& values, size_t offset = 0) : Guarded(values.size(), offset) {
    if (!values.empty()) {
      std::memcpy(bytes_.host() + offset_, values.data(), values.size() * sizeof(T));
    }
  }
  void fill(T value) {
    std::byte* const begin = bytes_.host() + offset_;
    for (size_t i = 0; i < count_; ++i) {
      std::memcpy(begin + i * sizeof(T), &value, sizeof(T));
    }
  }
  std::byte* bytes() { return bytes_.data() + offset_; }
  T* data() { return reinterpret_cast<T*>(bytes()); }
  std::span<T> span() { return {data(), count_}; }
  std::vector<T> values() const {
    expect_waited();
    std::vector<T> out(count_);
    if (count_ > 0) {
      std::memcpy(out.data(), bytes_.host() + offset_, count_ * sizeof(T));
    }
    return out;
  }
  bool guards_hold() const {
    expect_waited();
    const auto untouched = [](std::byte byte) { return byte == kFill; };
    const auto end = bytes_.begin() + static_cast<ptrdiff_t>(offset_ + count_ * sizeof(T));
    return std::all_of(bytes_.begin(), bytes_.begin() + static_cast<ptrdiff_t>(offset_),
                       untouched) &&
           std::all_of(end, bytes_.end(), untouched);
  }

 private:
  static constexpr size_t kGuard = 64;
  static constexpr std::byte kFill{0xA5};
  size_t count_;
  size_t offset_;
  DeviceArray<std::byte> bytes_;
};

/// Sizes at the edges of vectors, warps, blocks and chunks.
inline const std::vector<size_t> kSizes = {0,   1,    7,    8,    31,   32,   33,  255,
                                           256, 257,  2049, 4095, 4096, 4097, 9001};

struct Pattern {
  std::string name;
  std::vector<float> values;
};

/// `numel` floats of every kind that breaks kernels; finite ones first.
inline std::vector<Pattern> finite_patterns(size_t numel, uint64_t seed) {
  std::vector<Pattern> all = {{"normal", normal(numel, seed)},
                              {"heavy-tailed", heavy_tailed(numel, seed + 1)},
                              {"zeros", std::vector<float>(numel)},
                              {"constant", std::vector<float>(numel, -0.75f)},
                              {"ties", normal(numel, seed + 2)},
                              {"denormal", normal(numel, seed + 3)},
                              {"huge", normal(numel, seed + 4)},
                              {"sparse", std::vector<float>(numel)}};
  for (float& x : all[4].values) {
    x = std::round(x * 2) / 2;
  }
  for (float& x : all[5].values) {
    x *= 1e-39f;
  }
  for (float& x : all[6].values) {
    x = std::clamp(x, -1.0f, 1.0f) * std::numeric_limits<float>::max();
  }
  for (size_t i = 3; i < numel; i += 97) {
    all[7].values[i] = static_cast<float>(i % 11) - 5.0f;
  }
  return all;
}

inline std::vector<Pattern> patterns(size_t numel, uint64_t seed) {
  std::vector<Pattern> all = finite_patterns(numel, seed);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity()}) {
    all.push_back({"not finite", normal(numel, seed + 5)});
    for (size_t i = 5; i < numel; i += 1000) {
      all.back().values[i] = bad;
    }
  }
  return all;
}

/// Every NaN has the same bits here: a GPU makes 0x7fffffff of any of them, a CPU keeps most.
template <class T>
std::vector<std::conditional_t<sizeof(T) == 4, uint32_t, T>> bits_of(const std::vector<T>& values) {
  std::vector<std::conditional_t<sizeof(T) == 4, uint32_t, T>> bits(values.size());
  if (!values.empty()) {
    std::memcpy(bits.data(), values.data(), values.size() * sizeof(T));
  }
  if constexpr (std::is_same_v<T, float>) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i])) {
        bits[i] = 0x7fc00000;
      }
    }
  }
  return bits;
}

template <class T>
auto bits_of(const DeviceArray<T>& values) {
  return bits_of(values.read());
}

}  // namespace gradwire::testing
