#pragma once
// What the registry and the factory share about an OptimizerSpec.

#include "gradwire/optimizers/optimizer.h"

namespace gradwire {

/// @throws InvalidArgument listing the known names.
const OptimizerRow& optimizer_row(std::string_view name);

/// @throws InvalidArgument unless every field that the optimizer reads is within its range.
void check_spec(const OptimizerSpec& spec);

}  // namespace gradwire
