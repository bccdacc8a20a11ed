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
  const bool narrow = spec.choice.start_values == ValueCodec::kBFloat16;
  const bool averages = keeps_velocity(spec) && !find_compressor(spec.name).selector();
  CompressorSpec dense;
  dense.name = narrow ? "bf16" : "none";
  dense.codec.values = spec.choice.start_values;
  dense.feedback.ef21 = spec.feedback.ef21;
  dense.feedback.eta = spec.feedback.eta;
  dense.feedback.momentum = averages ? spec.feedback.momentum : 0;
  dense.feedback.on = spec.feedback.on && (narrow || averages || spec.feedback.ef21);
  if (dense.feedback.on) {
    dense.feedback.decay = spec.feedback.decay;
    dense.feedback.residual = spec.feedback.residual;
  }
  return dense;
}

}  // namespace

uint32_t last_warmup_stage(const CompressorSpec& spec) {
  uint32_t stage = 0;
  for (double density = kQuarter; spec.choice.warmup > 0 && density > spec.choice.density;
       density *= kQuarter) {
    ++stage;
  }
  return stage;
}

uint32_t warmup_stage(const CompressorSpec& spec, uint32_t step) {
  return spec.choice.warmup == 0 ? 0 : std::min(step / spec.choice.warmup, last_warmup_stage(spec));
}

bool changes_by_step(const CompressorSpec& spec) {
  return spec.choice.start > 0 ||
         (spec.choice.warmup > 0 && !find_compressor(spec.name).keeps_velocity());
}

CompressorSpec lasting_spec(const CompressorSpec& spec) {
  CompressorSpec last = spec;
  if (changes_by_step(spec)) {
    last.choice.warmup = 0;
    last.choice.start = 0;
    last.choice.start_values = ValueCodec::kRaw;
  }
  return last;
}

CompressorSpec spec_in_step(const CompressorSpec& spec, uint64_t committed) {
  if (!changes_by_step(spec)) {
    return spec;
  }
  if (committed < spec.choice.start) {
    return dense_spec(spec);
  }
  const uint64_t behind =
      std::min<uint64_t>(committed - spec.choice.start, std::numeric_limits<uint32_t>::max());
  CompressorSpec now = lasting_spec(spec);
  now.choice.density = density_in_stage(spec, warmup_stage(spec, static_cast<uint32_t>(behind)));
  return now;
}

uint64_t next_change(const CompressorSpec& spec, uint64_t committed) {
  if (!changes_by_step(spec)) {
    return kNeverChanges;
  }
  if (committed < spec.choice.start) {
    return spec.choice.start;
  }
  const uint64_t behind = committed - spec.choice.start;
  const bool warms =
      spec.choice.warmup > 0 && behind / spec.choice.warmup < last_warmup_stage(spec);
  return warms ? spec.choice.start + (behind / spec.choice.warmup + 1) * spec.choice.warmup
               : kNeverChanges;
}

double density_in_stage(const CompressorSpec& spec, uint32_t stage) {
  if (stage >= last_warmup_stage(spec)) {
    return spec.choice.density;
  }
  double density = kQuarter;
  for (uint32_t i = 0; i < stage; ++i) {
    density *= kQuarter;
  }
  return density;
}

}  // namespace gradwire
