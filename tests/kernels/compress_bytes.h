#pragma once
// Payloads as numbers that a test can spell out.

#include <cstddef>
#include <string>
#include <vector>

#include "tests/kernels/compress_cases.h"

namespace gradwire::testing {

using Bytes = std::vector<int>;

/// The payload of `values` without residuals, as the compressor of `spec` writes it.
inline std::vector<std::byte> encode(const std::string& spec, const std::vector<float>& values) {
  Rig rig(spec, {.numel = values.size(), .seed = kLawSeed});
  return rig.compress(tensor_of(values, DType::kFloat32), {}, {});
}

/// What lies behind the header.
inline Bytes body_of(const std::vector<std::byte>& payload) {
  Bytes body;
  for (size_t i = sizeof(PayloadHeader); i < payload.size(); ++i) {
    body.push_back(std::to_integer<int>(payload[i]));
  }
  return body;
}

/// What `values` become on their way through a payload.
inline std::vector<float> round_trip(const std::string& spec, const std::vector<float>& values) {
  Rig rig(spec, {.numel = values.size(), .seed = kLawSeed});
  return rig.decompress({rig.compress(tensor_of(values, DType::kFloat32), {}, {})}).floats();
}

}  // namespace gradwire::testing
