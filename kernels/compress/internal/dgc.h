#pragma once
// What dgc is told by its spec, the same on CPU and CUDA.

#include <cmath>

#include "gradwire/kernels/compress/spec.h"

namespace gradwire {

/// The largest norm of one rank's gradient. Only of specs that clip.
inline double clip_limit(const CompressorSpec& spec, int world_size) {
  return spec.clip / std::sqrt(static_cast<double>(world_size));
}

}  // namespace gradwire
