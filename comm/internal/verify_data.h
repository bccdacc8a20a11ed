#pragma once
// What the self-check of transports sends: bytes, values and lengths that differ by call and rank.
// Part of verify.cc.

#include <algorithm>
#include <cstring>
#include <vector>

#include "gradwire/comm/fingerprint.h"
#include "gradwire/comm/transport/frame.h"
#include "gradwire/kernels/core/memory.h"

namespace gradwire::verify {

constexpr size_t kGuardBytes = 64;
constexpr std::byte kGuard{0xA5};

/// Which bytes: of a call of a verb, from a rank to a rank.
struct Origin {
  Verb verb;
  size_t size = 0;
  int round = 0;
  int source = 0;
  int destination = 0;

  uint64_t seed() const {
    const uint64_t parts[] = {static_cast<uint64_t>(verb), size, static_cast<uint64_t>(round),
                              static_cast<uint64_t>(source), static_cast<uint64_t>(destination)};
    return fnv1a(std::as_bytes(std::span(parts)));
  }
};

inline uint64_t noise(uint64_t seed, size_t index) {
  uint64_t x = seed + (index + 1) * 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  return x ^ (x >> 27);
}

inline void fill(std::span<std::byte> bytes, const Origin& origin) {
  const uint64_t seed = origin.seed();
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(noise(seed, i) >> 56);
  }
}

/// An integer of at most three digits: 16,000 of them add up exactly.
inline float value_of(uint64_t seed, size_t index) {
  return static_cast<float>(noise(seed, index) >> 40 & 1023) - 511.0f;
}

/// Parts differ in length, some are empty, some are full.
inline size_t length_of(const Origin& origin) {
  const auto turn = static_cast<size_t>(origin.source + 2 * origin.destination + origin.round);
  return origin.size == 0 || turn % 5 == 4 ? 0
                                           : origin.size - turn % std::min<size_t>(origin.size, 3);
}

/// Bytes where the transport works, and on the host, with a guard behind them.
class Area {
 public:
  Area(size_t bytes, Device device)
      : host_(bytes + kGuardBytes, kGuard), there_(host_.size(), device), bytes_(bytes) {}

  std::span<std::byte> host() { return std::span(host_).first(bytes_); }
  std::span<std::byte> there() const { return there_.bytes().first(bytes_); }
  std::span<float> host_values() { return as_floats(host()); }
  std::span<float> values() const { return as_floats(there()); }
  bool guard_stands() const {
    return std::all_of(host_.end() - kGuardBytes, host_.end(),
                       [](std::byte b) { return b == kGuard; });
  }

  void upload(Stream& stream) {
    copy_bytes(there_.bytes(), there_.device(), host_, {}, stream);
  }
  void download(Stream& stream) {
    copy_bytes(host_, {}, there_.bytes(), there_.device(), stream);
  }

 private:
  static std::span<float> as_floats(std::span<std::byte> bytes) {
    return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
  }
  std::vector<std::byte> host_;
  Buffer there_;
  size_t bytes_;
};

}  // namespace gradwire::verify
