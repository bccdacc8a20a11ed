#pragma once
// The density of a selector whose warm-up lowers it step by step.

#include <cstddef>
#include <cstdint>

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

}  // namespace gradwire
