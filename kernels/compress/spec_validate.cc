// What a spec may say.

#include <cmath>
#include <string>

#include "gradwire/kernels/compress/compressor_registry.h"
#include "gradwire/kernels/compress/spec.h"
#include "gradwire/kernels/core/number_text.h"

namespace gradwire {
namespace {

constexpr uint32_t kMinBlock = 8;
constexpr uint32_t kMaxLevels = 127;
constexpr uint32_t kMaxRank = 128;

/// Codes that can be rounded to nearest or by chance.
bool has_two_roundings(ValueCodec codec) {
  return codec == ValueCodec::kInt8 || codec == ValueCodec::kInt4 || codec == ValueCodec::kInt2 ||
         codec == ValueCodec::kE4M3 || codec == ValueCodec::kE5M2;
}

/// Rates are kept exactly and computed with as float32, which must be in the range too.
void validate_as_float(const CompressorSpec& spec) {
  const auto decay = static_cast<float>(spec.decay), eta = static_cast<float>(spec.eta),
             momentum = static_cast<float>(spec.momentum), kept = static_cast<float>(1 - spec.eta);
  check(decay > 0, spec.name, ": decay is ", text_of(spec.decay), " and ", decay,
        " as float32, must be in (0, 1]");
  check(eta > 0, spec.name, ": eta is ", text_of(spec.eta), " and ", eta,
        " as float32, must be in (0, 1]");
  check(kept < 1, spec.name, ": eta is ", text_of(spec.eta), " and 1 - eta is ", kept,
        " as float32, must be below 1");
  check(momentum < 1, spec.name, ": momentum is ", text_of(spec.momentum), " and ", momentum,
        " as float32, must be in [0, 1)");
  check(momentum > 0 || spec.momentum == 0, spec.name, ": momentum is ", text_of(spec.momentum),
        " and ", momentum, " as float32, must stay above 0 or be 0");
}

void validate_feedback(const CompressorSpec& spec, const CompressorRow& row) {
  check(spec.decay > 0 && spec.decay <= 1, spec.name, ": decay is ", spec.decay,
        ", must be in (0, 1]");
  check(spec.error_feedback || spec.decay == 1, spec.name, ": decay is ", spec.decay,
        ", must be 1 without error feedback: there is no residual");
  check(spec.residual == DType::kFloat32 || spec.residual == DType::kBFloat16, spec.name,
        ": residual is ", to_string(spec.residual), ", must be float32 or bfloat16");
  check(spec.error_feedback || spec.residual == DType::kFloat32, spec.name, ": residual is ",
        to_string(spec.residual), ", must be float32 without error feedback: there is none");
  check(!spec.ef21 || spec.residual == DType::kFloat32, spec.name, ": residual is ",
        to_string(spec.residual),
        ", must be float32 with ef21, whose estimate is the mean of what "
        "residuals say was sent");
  check(!spec.ef21 || spec.error_feedback, spec.name,
        ": ef21 is on and error feedback is off, must be on for both or off");
  check(!spec.ef21 || spec.decay == 1, spec.name, ": decay is ", spec.decay,
        ", must be 1 with ef21, which keeps what was sent");
  check(!spec.ef21 || !row.keeps_velocity(), spec.name,
        ": ef21 is on, must be off: it keeps a velocity of which it clears what was sent");
}

void validate_velocity(const CompressorSpec& spec, const CompressorRow& row) {
  check(spec.eta > 0 && spec.eta <= 1, spec.name, ": eta is ", spec.eta, ", must be in (0, 1]");
  check(spec.ef21 || spec.eta == 1, spec.name, ": eta is ", spec.eta, ", must be 1 without ef21");
  check(spec.momentum >= 0 && spec.momentum < 1, spec.name, ": momentum is ", spec.momentum,
        ", must be in [0, 1)");
  check(spec.momentum == 0 || spec.error_feedback || row.keeps_velocity(), spec.name,
        ": momentum is ", spec.momentum,
        ", must be 0 without error feedback: there is no residual that accumulates a velocity");
  check(spec.momentum == 0 || !spec.ef21, spec.name, ": momentum is ", spec.momentum,
        ", must be 0 with ef21, whose velocity has an eta");
  if (!row.keeps_velocity()) {
    check(spec.clip == 0, spec.name, ": clip is ", spec.clip, ", must be 0: only dgc has one");
    return;
  }
  check(spec.clip >= 0 && std::isfinite(spec.clip), spec.name, ": clip is ", spec.clip,
        ", must be finite and not negative");
}

void validate_first_steps(const CompressorSpec& spec, const CompressorRow& row) {
  check(spec.warmup == 0 || row.selector(), spec.name, ": warmup is ", spec.warmup,
        ", must be 0: only selectors have a density that could fall");
  check(spec.start_values == ValueCodec::kRaw || spec.start_values == ValueCodec::kBFloat16,
        spec.name, ": start_values is ", static_cast<int>(spec.start_values),
        ", must be raw or bf16");
  check(spec.start > 0 || spec.start_values == ValueCodec::kRaw, spec.name,
        ": start is 0, must be positive where its steps send bf16");
  check(spec.start == 0 || spec.clip == 0, spec.name, ": start is ", spec.start, " and clip is ",
        spec.clip, ", must not both be there: steps that send everything clip nothing");
}

void validate_levels(const CompressorSpec& spec, bool has_levels) {
  check(has_levels ? spec.levels >= 1 && spec.levels <= kMaxLevels : spec.levels == 0, spec.name,
        ": number of levels is ", spec.levels, ", must be ",
        has_levels ? "1 to 127" : "0: only qsgd has levels");
  check(!has_levels || spec.values == codec_of_levels(spec.levels), spec.name,
        ": value codec is ", static_cast<int>(spec.values), ", must be ",
        static_cast<int>(codec_of_levels(spec.levels)));
}

/// Of a selector: what its values are and how they are rounded.
void validate_values(const CompressorSpec& spec) {
  check(spec.values != ValueCodec::kRaw && spec.values <= ValueCodec::kPowerOfTwo, spec.name,
        ": value codec is ", static_cast<int>(spec.values),
        ", must be fp32, fp16, bf16, int8, int4, 2bit, 1bit, e4m3, e5m2 or natural");
  validate_levels(spec, spec.levels > 0);
  const bool stochastic = spec.rounding == Rounding::kStochastic;
  check(stochastic || spec.rounding == Rounding::kNearest, spec.name, ": rounding is ",
        static_cast<int>(spec.rounding), ", must be nearest or stochastic");
  check(stochastic || (spec.levels == 0 && spec.values != ValueCodec::kPowerOfTwo), spec.name,
        ": rounding is nearest, must be stochastic with values of natural or qsgd");
  check(!stochastic || has_two_roundings(spec.values) || spec.values == ValueCodec::kPowerOfTwo,
        spec.name, ": rounding is stochastic, must be nearest with values of ",
        to_string(spec.values), "; those of int8, int4, 2bit, e4m3 and e5m2 have both");
}

}  // namespace

bool only_casts(const CompressorSpec& spec) {
  return find_compressor(spec.name).select == Selection::kAll && !has_scales(spec.values) &&
         !spec.error_feedback;
}

bool keeps_velocity(const CompressorSpec& spec) {
  return spec.momentum > 0 || spec.eta < 1 || find_compressor(spec.name).keeps_velocity();
}

void validate(const CompressorSpec& spec) {
  const CompressorRow& row = find_compressor(spec.name);
  check(row.low_rank() ? spec.rank >= 1 && spec.rank <= kMaxRank : spec.rank == 0, spec.name,
        ": rank is ", spec.rank, ", must be ",
        row.low_rank() ? "1 to 128" : "0: only powersgd has one");
  check(spec.rounds == 1 || (row.low_rank() && spec.rounds == 2), spec.name, ": rounds is ",
        spec.rounds, row.low_rank() ? ", must be 1 or 2" : ", must be 1: only powersgd has two");
  if (row.selector()) {
    check(spec.density > 0 && spec.density <= 1, spec.name, ": density is ", spec.density,
          ", must be in (0, 1]");
    check(!row.per_chunk() || spec.density == chunk_density(spec.density), spec.name,
          ": density is ", spec.density, ", must be K/4096 with K from 1 to 4096");
    validate_values(spec);
  } else {
    check(spec.density == 1, spec.name, ": density is ", spec.density,
          ", must be 1: only selectors take one");
    validate_levels(spec, row.takes_levels);
    check(row.takes_levels || spec.values == row.default_values, spec.name, ": value codec is ",
          static_cast<int>(spec.values), ", must be ", static_cast<int>(row.default_values));
  }
  const CompressorSpec defaults;
  if (row.takes_rounding) {
    check(spec.rounding == Rounding::kNearest || spec.rounding == Rounding::kStochastic, spec.name,
          ": rounding is ", static_cast<int>(spec.rounding), ", must be nearest or stochastic");
  } else if (!row.selector()) {
    const bool nearest = row.rounding == Rounding::kNearest;
    check(spec.rounding == row.rounding, spec.name, ": rounding is ",
          nearest ? "stochastic, must be nearest" : "nearest, must be stochastic");
  }
  if (row.takes_block()) {
    check(spec.block >= kMinBlock && spec.block <= kChunk && (spec.block & (spec.block - 1)) == 0,
          spec.name, ": block is ", spec.block, ", must be a power of two from ", kMinBlock, " to ",
          kChunk);
  } else {
    check(spec.block == defaults.block, spec.name, ": block is ", spec.block, ", must stay ",
          defaults.block, ": it has no blocks");
  }
  check(row.takes_width() ? spec.width >= 1 && spec.width <= kChunk : spec.width == 0, spec.name,
        ": width is ", spec.width, ", must be ",
        row.takes_width() ? "1 to 4096" : "0: it does not send blocks");
  validate_feedback(spec, row);
  validate_velocity(spec, row);
  validate_first_steps(spec, row);
  validate_as_float(spec);
}

}  // namespace gradwire
