#pragma once
// Shapes of parameters as Python gives them, and what compressors make of them.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gradwire/kernels/compress/compressor.h"

namespace gradwire::bindings {

/// Of parameters, one behind another in a group.
using Shapes = std::vector<std::vector<int64_t>>;

/// By place: parameter i is shapes[i]. @throws InvalidArgument for extents below 1, and for more
/// than kMostNumel elements in one.
std::vector<Segment> segments_of(const Shapes& shapes);

}  // namespace gradwire::bindings
