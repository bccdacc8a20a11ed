#pragma once
// Choices that all ranks share, so that values add up in flight without indices, against choices
// that each rank makes for itself, at equal bytes.

#include "bench/selection_data.h"

namespace selection {

/// Prints which share of |mean of all ranks|^2 each way captures with as many bytes per rank as
/// two_shot sends of topk:density.
void compare_shared(const Gradients& gradients, double density);

}  // namespace selection
