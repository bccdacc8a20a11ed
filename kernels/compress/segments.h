#pragma once
// What a parameter's shape says of its segment: one place for plans, Python and benchmarks.

#include <span>

#include "gradwire/kernels/compress/compressor_shape.h"
#include "gradwire/kernels/core/extents.h"

namespace gradwire {

/// All of a parameter: with two dimensions or more a matrix of shape[0] rows (a convolution is one
/// of its outputs by the rest). How many elements there may be is the caller's to check.
inline Segment whole_parameter(uint32_t id, std::span<const size_t> shape) {
  return {.parameter = id, .numel = product_of(shape), .rows = shape.size() >= 2 ? shape[0] : 0};
}

}  // namespace gradwire
