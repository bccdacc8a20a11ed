#pragma once
// Which draw a group takes part in, the same on CPU and CUDA.

#include "gradwire/kernels/compress/compressor_shape.h"
#include "gradwire/kernels/ops/draw.h"

namespace gradwire {

/// Of the shape's first segment, of which there is one.
inline DrawnGroup drawn_group(const CompressorShape& shape) {
  const Segment& first = shape.segments.front();
  return {shape.seed, first.offset_in_parameter, first.parameter};
}

}  // namespace gradwire
