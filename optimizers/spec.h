#pragma once
// What the registry and the factory share about an OptimizerSpec.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gradwire/optimizers/optimizer.h"

namespace gradwire {

/// @throws InvalidArgument listing the known names.
const OptimizerRow& optimizer_row(std::string_view name);

/// @throws InvalidArgument unless every field that the optimizer reads is set and within its range.
void check_spec(const OptimizerSpec& spec);

/// Every key of the optimizer and its value, as parse_optimizer() reads them: presets and defaults
/// are resolved.
std::vector<std::pair<std::string_view, std::string>> settings_of(const OptimizerSpec& spec);

}  // namespace gradwire
