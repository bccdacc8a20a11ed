#pragma once
// A plan in its first steps, where some of its specs are others (start= and warmup=).

#include <cstdint>

#include "gradwire/comm/plan.h"

namespace gradwire {

/// The plan of the step behind `committed` ones: every group of its spec then (spec_in_step()), in
/// the same places. Where a bucket's groups send every element then, it travels by its own exchange
/// if that carries them and sends a dense gradient as often as `dense` does, else by `dense`; where
/// that does not carry all, by its own or by `gather`.
Plan plan_in_step(const Plan& plan, uint64_t committed);

/// The fewest committed steps, more than `committed`, behind which the plan is another one;
/// kNeverChanges (warmup.h): it stays.
uint64_t next_change(const Plan& plan, uint64_t committed);

}  // namespace gradwire
