#pragma once
// A plan as pieces of a checkpoint's file: of each parameter, its bucket and its place there, its
// spec and where this comes in the order of groups, and the exchange.

#include <optional>

#include "bench/trainer/state_file.h"
#include "gradwire/comm/plan.h"

namespace trainer {

void add_plan(const gradwire::Plan& plan, StateWriter& to);

/// The plan that add_plan() wrote; `usual` has what belongs to no bucket (seed, ...). Nothing where
/// there is none.
/// @throws gradwire::InvalidArgument naming the file and the piece that is missing, or as
/// make_plan() and parse_spec().
std::optional<gradwire::Plan> read_plan(std::span<const gradwire::ParamInfo> parameters,
                                        gradwire::PlanOptions usual, StateReader& from);

}  // namespace trainer
