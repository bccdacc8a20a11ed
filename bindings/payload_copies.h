#pragma once
// A group's payloads as Python holds them.

#include <cstddef>
#include <string>
#include <vector>

#include "gradwire/kernels/compress/compressor.h"

namespace gradwire::bindings {

/// Copied: the reducer's own are overwritten by the next step.
struct PayloadCopies {
  std::string spec;
  size_t offset = 0, numel = 0;
  std::vector<Segment> segments;  ///< whole parameters, by the plan's ids
  uint64_t seed = 0;
  float scale = 1;
  std::vector<std::vector<std::byte>> parts;
};

}  // namespace gradwire::bindings
