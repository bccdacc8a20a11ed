#pragma once
// What tests of compressors that choose or factor within parameters share.

#include <functional>
#include <vector>

#include "tests/kernels/compress_cases.h"
#include "tests/support/close.h"

namespace gradwire::testing {

inline size_t numel_of(const std::vector<Segment>& segments) {
  size_t numel = 0;
  for (const Segment& segment : segments) {
    numel += segment.numel;
  }
  return numel;
}

/// Three ranks' payloads of gradient(seed), merged tile by tile without feedback: what comes out is
/// chosen(their sum, the tile), over the whole group.
inline void expect_merges_choose(
    const std::string& spec, const std::vector<Segment>& segments,
    const std::function<std::vector<float>(uint64_t seed)>& gradient,
    const std::function<std::vector<float>(const std::vector<float>& sum, Region)>& chosen) {
  const size_t numel = numel_of(segments);
  Rig rig(spec, {.numel = numel, .segments = segments});
  std::vector<std::vector<std::byte>> payloads;
  std::vector<float> sum(numel);
  for (const uint64_t seed : {1, 2, 3}) {
    payloads.push_back(rig.compress(tensor_of(gradient(seed), DType::kFloat32), {}, {}));
    const std::vector<float> sent = rig.decompress({payloads.back()}).floats();
    for (size_t i = 0; i < numel; ++i) {
      sum[i] += sent[i];
    }
  }
  for (const Region region : tiles(numel, 2)) {
    std::vector<std::vector<std::byte>> slices;
    for (const auto& payload : payloads) {
      slices.push_back(rig.slice(payload, region));
      EXPECT_LE(slices.back().size(), rig.compressor().slice_capacity_bytes(region));
    }
    const std::vector<float> merged =
        rig.decompress({rig.merge(slices, region, 1.0f, {})}).floats();
    std::vector<float> expected = chosen(sum, region);
    for (size_t i = 0; i < numel; ++i) {
      expected[i] = i < region.begin || i >= region.end ? 0.0f : expected[i];
    }
    EXPECT_TRUE(all_equal(merged, expected));
  }
}

}  // namespace gradwire::testing
