#pragma once
// Elements in any memory as floats on the host, and back: for what is read and written between
// steps.

#include <vector>

#include "gradwire/kernels/core/stream.h"

namespace gradwire {

/// What is there. Of a GPU's memory it is copied on `stream` and waited for; else `stream` may be
/// null.
std::vector<float> read_floats(ConstTensorView from, Stream* stream);

/// Writes them there, rounded to nearest, ties to even; likewise.
void write_floats(ConstResidual values, TensorView to, Stream* stream);

/// On the host: to[i] += factor * values[i], the product rounded to float32, the sum to to's dtype.
void add_floats(ConstResidual values, float factor, TensorView to);

}  // namespace gradwire
