#pragma once
// Bytes and values that tests of the verbs send, and what must come of them.

#include <algorithm>
#include <cstring>

#include "tests/comm/transport_ranks.h"

namespace gradwire::transport_test {

constexpr size_t kHeader = 64;              // frame header
constexpr size_t kInline = 8192 - kHeader;  // payload that travels with the header
constexpr size_t kChunk = 131072;
constexpr size_t kMiB = size_t{1} << 20;
constexpr CallTag kTag{0x1234, "a test"};

inline const std::vector<size_t>& sizes() {
  static const std::vector<size_t> all = {0,
                                          1,
                                          63,
                                          64,
                                          kInline - 1,
                                          kInline,
                                          kInline + 1,
                                          kChunk,
                                          kInline + kChunk - 1,
                                          kInline + kChunk,
                                          kInline + kChunk + 1,
                                          kInline + 5 * kChunk + 3,
                                          3 * kMiB + 7};
  return all;
}

/// What `source` sends to `destination` (-1: to everyone): a stretch of one long row of noise that
/// begins elsewhere for each pair.
inline std::span<const std::byte> expected(size_t length, int source, int destination) {
  static const std::vector<std::byte> noise = [] {
    std::vector<std::byte> bytes(4 * kMiB);
    uint32_t state = 12345;
    for (std::byte& b : bytes) {
      state = state * 1664525u + 1013904223u;
      b = static_cast<std::byte>(state >> 24);
    }
    return bytes;
  }();
  return std::span(noise).subspan(static_cast<size_t>(source * 16 + destination + 1) * 97, length);
}

inline void fill(std::span<std::byte> bytes, int source, int destination) {
  const auto from = expected(bytes.size(), source, destination);
  std::copy(from.begin(), from.end(), bytes.begin());
}

inline size_t first_difference(std::span<const std::byte> bytes, int source, int destination) {
  const auto wanted = expected(bytes.size(), source, destination);
  if (bytes.empty() || std::memcmp(bytes.data(), wanted.data(), bytes.size()) == 0) {
    return bytes.size();
  }
  return static_cast<size_t>(std::mismatch(bytes.begin(), bytes.end(), wanted.begin()).first -
                             bytes.begin());
}

/// Receive buffers with a guard after each part's true length.
struct Buffers {
  static constexpr std::byte kGuard{0xA5};
  Buffers(int size, size_t stride)
      : memory(static_cast<size_t>(size) * stride, kGuard),
        lengths(static_cast<size_t>(size), 0),
        parts{memory, stride, lengths} {}
  std::vector<std::byte> memory;
  std::vector<size_t> lengths;
  Parts parts;

  void expect_part(int r, size_t length, int source, int destination) const {
    const auto index = static_cast<size_t>(r);
    ASSERT_EQ(lengths[index], length) << "part " << r;
    EXPECT_EQ(first_difference(parts.part(index), source, destination), length) << "part " << r;
    const auto guard = parts.bytes.subspan(index * parts.stride + length, parts.stride - length);
    EXPECT_TRUE(std::all_of(guard.begin(), guard.end(), [](std::byte b) { return b == kGuard; }))
        << "bytes after the length of part " << r << " were written";
  }
};

/// Element i of a rank's values: signs and magnitudes differ, so that a sum depends on its order.
inline float value_of(int rank, size_t i) {
  uint32_t bits =
      static_cast<uint32_t>(i) * 2654435761u + static_cast<uint32_t>(rank) * 2246822519u;
  bits = (bits ^ (bits >> 15)) * 3266489917u;
  const float unit = static_cast<float>(bits >> 8) / 16777216.0f - 0.5f;
  return unit * static_cast<float>(1u << (bits % 13));
}

inline std::vector<float> values_of(int rank, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) {
    values[i] = value_of(rank, i);
  }
  return values;
}

inline std::vector<float> sum_in_rank_order(int size, size_t count) {
  std::vector<float> sum(count);
  for (size_t i = 0; i < count; ++i) {
    sum[i] = value_of(0, i);
    for (int r = 1; r < size; ++r) {
      sum[i] += value_of(r, i);
    }
  }
  return sum;
}

// 104401 and 174001: with 3 or 5 ranks the first shard has a chunk more than the others.
inline const std::vector<size_t> kCounts = {0,     1,      2,      3,     7,      4096,
                                     16383, 104401, 174001, 70001, 600007};

inline constexpr AllReduce kAllReduces[] = {AllReduce::kRing, AllReduce::kRabenseifner};
inline constexpr AllGather kAllGathers[] = {AllGather::kRing, AllGather::kBruck};

inline CallTag by(AllReduce algorithm) { return {0x1234, "a test", algorithm}; }
inline CallTag by(AllGather algorithm) { return {0x1234, "a test", {}, algorithm}; }

class Verbs : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (const std::string why = unavailable(GetParam()); !why.empty()) {
      GTEST_SKIP() << why;
    }
  }
  /// Groups of 1 to 5 ranks.
  void on_ranks(const std::function<void(Rank)>& body) const {
    for (int size = 1; size <= 5; ++size) {
      SCOPED_TRACE(testing::Message() << size << " ranks");
      expect_all_fine(run_ranks(GetParam(), size, {}, body));
    }
  }
};

}  // namespace gradwire::transport_test
