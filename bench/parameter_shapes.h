#pragma once
// The parameters of a benchmark's group: compressors that see parameters apart do what they do in a
// plan, and all others are told as much.

#include <vector>

#include "gradwire/kernels/compress/segments.h"

namespace gradwire::bench {

/// Layers of a matrix of 1024 x 1024 and a vector of 1024; what is left is a vector.
inline std::vector<Segment> layers_of(size_t numel) {
  std::vector<Segment> layers;
  const auto add = [&](const std::vector<size_t>& shape) {
    layers.push_back(whole_parameter(static_cast<uint32_t>(layers.size()), shape));
    numel -= layers.back().numel;
  };
  while (numel >= 1024 * 1025) {
    add({1024, 1024});
    add({1024});
  }
  if (numel > 0) {
    add({numel});
  }
  return layers;
}

}  // namespace gradwire::bench
