#include "gradwire/kernels/compress/warmup.h"

#include <algorithm>

namespace gradwire {
namespace {

// Lin et al.: each stage sends a quarter of the one before.
constexpr double kQuarter = 0.25;

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
