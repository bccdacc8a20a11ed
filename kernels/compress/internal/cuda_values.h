#pragma once
// How kernels for GPUs call the value codecs of selectors.

#include "gradwire/kernels/compress/spec.h"
#include "gradwire/kernels/ops/sparse_format.h"

namespace gradwire {

/// `codec` is one that a selector may have.
inline cuda::SparseValues sparse_values(ValueCodec codec) {
  switch (codec) {
    case ValueCodec::kFloat16:
      return cuda::SparseValues::kFloat16;
    case ValueCodec::kBFloat16:
      return cuda::SparseValues::kBFloat16;
    case ValueCodec::kInt8:
      return cuda::SparseValues::kInt8;
    case ValueCodec::kInt4:
      return cuda::SparseValues::kInt4;
    case ValueCodec::kE4M3:
      return cuda::SparseValues::kE4M3;
    case ValueCodec::kE5M2:
      return cuda::SparseValues::kE5M2;
    case ValueCodec::kInt2:
      return cuda::SparseValues::kInt2;
    case ValueCodec::kSign:
      return cuda::SparseValues::kSign;
    case ValueCodec::kPowerOfTwo:
      return cuda::SparseValues::kPowerOfTwo;
    default:
      return cuda::SparseValues::kFloat32;
  }
}

}  // namespace gradwire
