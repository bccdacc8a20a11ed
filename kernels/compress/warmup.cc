#include "gradwire/kernels/compress/warmup.h"

#include <algorithm>
#include <limits>

#include "gradwire/kernels/compress/compressor_registry.h"

namespace gradwire {
namespace {

// Lin et al.: each stage sends a quarter of the one before.
constexpr double kQuarter = 0.25;

/// Where everything is sent a selector clears its whole velocity, and there is none; what is sent
/// as it is leaves no residual, unless a velocity or an estimate needs its place.
CompressorSpec dense_spec(const CompressorSpec& spec) {
  const bool narrow = spec.start_values == ValueCodec::kBFloat16;
  const bool averages = keeps_velocity(spec) && !find_compressor(spec.name).selector();
  CompressorSpec dense;
  dense.name = narrow ? "bf16" : "none";
  dense.values = spec.start_values;
  dense.ef21 = spec.ef21;
  dense.eta = spec.eta;
  dense.momentum = averages ? spec.momentum : 0;
  dense.error_feedback = spec.error_feedback && (narrow || averages || spec.ef21);
  if (dense.error_feedback) {
    dense.decay = spec.decay;
    dense.residual = spec.residual;
  }
  return dense;
}

}  // namespace

uint32_t last_warmup_stage(const CompressorSpec& spec) {
  uint32_t stage = 0;
  for (double density = kQuarter; spec.warmup > 0 && density > spec.density; density *= kQuarter) {
    ++stage;
  }
  return stage;
}

uint32_t warmup_stage(const CompressorSpec& spec, uint32_t step) {
  return spec.warmup == 0 ? 0 : std::min(step / spec.warmup, last_warmup_stage(spec));
}

bool changes_by_step(const CompressorSpec& spec) {
  return spec.start > 0 || (spec.warmup > 0 && !find_compressor(spec.name).keeps_velocity());
}

CompressorSpec lasting_spec(const CompressorSpec& spec) {
  CompressorSpec last = spec;
  if (changes_by_step(spec)) {
    last.warmup = 0;
    last.start = 0;
    last.start_values = ValueCodec::kRaw;
  }
  return last;
}

CompressorSpec spec_in_step(const CompressorSpec& spec, uint64_t committed) {
  if (!changes_by_step(spec)) {
    return spec;
  }
  if (committed < spec.start) {
    return dense_spec(spec);
  }
  const uint64_t behind =
      std::min<uint64_t>(committed - spec.start, std::numeric_limits<uint32_t>::max());
  CompressorSpec now = lasting_spec(spec);
  now.density = density_in_stage(spec, warmup_stage(spec, static_cast<uint32_t>(behind)));
  return now;
}

uint64_t next_change(const CompressorSpec& spec, uint64_t committed) {
  if (!changes_by_step(spec)) {
    return kNeverChanges;
  }
  if (committed < spec.start) {
    return spec.start;
  }
  const uint64_t behind = committed - spec.start;
  const bool warms = spec.warmup > 0 && behind / spec.warmup < last_warmup_stage(spec);
  return warms ? spec.start + (behind / spec.warmup + 1) * spec.warmup : kNeverChanges;
}

double density_in_stage(const CompressorSpec& spec, uint32_t stage) {
  if (stage >= last_warmup_stage(spec)) {
    return spec.density;
  }
  double density = kQuarter;
  for (uint32_t i = 0; i < stage; ++i) {
    density *= kQuarter;
  }
  return density;
}

}  // namespace gradwire
