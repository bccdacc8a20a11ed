#pragma once
// What a spec is in its first steps: dense, and then of a density that falls by stages.

#include <cstddef>
#include <cstdint>
#include <limits>

#include "gradwire/kernels/compress/spec.h"

namespace gradwire {

/// Which stage of its warm-up a spec is in: `warmup` steps each at 25%, 6.25%, 1.5625% and so on,
/// as long as that is more than its density, and then the last stage for ever. 0 without warm-up.
uint32_t warmup_stage(const CompressorSpec& spec, uint32_t step);
uint32_t last_warmup_stage(const CompressorSpec& spec);

/// The density of a stage.
double density_in_stage(const CompressorSpec& spec, uint32_t stage);

/// k of `n` elements in `step`; largest in step 0.
inline size_t kept_in_step(const CompressorSpec& spec, size_t n, uint32_t step) {
  return kept_elements(density_in_stage(spec, warmup_stage(spec, step)), n);
}

/// Whether the spec is another one in later steps, of which one compressor cannot be made.
bool changes_by_step(const CompressorSpec& spec);

/// The spec without start and warm-up that a compressor is made of in the step behind `committed`
/// ones. In those of `start` none, or bf16, with what goes on behind them: the estimate of ef21 and
/// the velocity of specs that do not clear it where they send. A spec that does not
/// changes_by_step(), such as dgc's with a warm-up alone, is itself.
CompressorSpec spec_in_step(const CompressorSpec& spec, uint64_t committed);

/// spec_in_step() of all steps from some step on.
CompressorSpec lasting_spec(const CompressorSpec& spec);

constexpr uint64_t kNeverChanges = std::numeric_limits<uint64_t>::max();
/// The fewest committed steps, more than `committed`, behind which it is another one.
uint64_t next_change(const CompressorSpec& spec, uint64_t committed);

}  // namespace gradwire
