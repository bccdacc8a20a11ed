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
  const FeedbackRule& rule = spec.feedback;
  const auto decay = static_cast<float>(rule.decay), eta = static_cast<float>(rule.eta),
             momentum = static_cast<float>(rule.momentum), kept = static_cast<float>(1 - rule.eta);
  check(decay > 0, spec.name, ": decay is ", text_of(rule.decay), " and ", decay,
        " as float32, must be in (0, 1]");
  check(eta > 0, spec.name, ": eta is ", text_of(rule.eta), " and ", eta,
        " as float32, must be in (0, 1]");
  check(kept < 1, spec.name, ": eta is ", text_of(rule.eta), " and 1 - eta is ", kept,
        " as float32, must be below 1");
  check(momentum < 1, spec.name, ": momentum is ", text_of(rule.momentum), " and ", momentum,
        " as float32, must be in [0, 1)");
  check(momentum > 0 || rule.momentum == 0, spec.name, ": momentum is ", text_of(rule.momentum),
        " and ", momentum, " as float32, must stay above 0 or be 0");
}

void validate_feedback(const CompressorSpec& spec, const CompressorRow& row) {
  const FeedbackRule& rule = spec.feedback;
  check(rule.decay > 0 && rule.decay <= 1, spec.name, ": decay is ", rule.decay,
        ", must be in (0, 1]");
  check(rule.on || rule.decay == 1, spec.name, ": decay is ", rule.decay,
        ", must be 1 without error feedback: there is no residual");
  check(rule.residual == DType::kFloat32 || rule.residual == DType::kBFloat16, spec.name,
        ": residual is ", to_string(rule.residual), ", must be float32 or bfloat16");
  check(rule.on || rule.residual == DType::kFloat32, spec.name, ": residual is ",
        to_string(rule.residual), ", must be float32 without error feedback: there is none");
  check(!rule.ef21 || rule.residual == DType::kFloat32, spec.name, ": residual is ",
        to_string(rule.residual),
        ", must be float32 with ef21, whose estimate is the mean of what "
        "residuals say was sent");
  check(!rule.ef21 || rule.on, spec.name,
        ": ef21 is on and error feedback is off, must be on for both or off");
  check(!rule.ef21 || rule.decay == 1, spec.name, ": decay is ", rule.decay,
        ", must be 1 with ef21, which keeps what was sent");
  check(!rule.ef21 || !row.keeps_velocity(), spec.name,
        ": ef21 is on, must be off: it keeps a velocity of which it clears what was sent");
}

void validate_velocity(const CompressorSpec& spec, const CompressorRow& row) {
  const FeedbackRule& rule = spec.feedback;
  check(rule.eta > 0 && rule.eta <= 1, spec.name, ": eta is ", rule.eta, ", must be in (0, 1]");
  check(rule.ef21 || rule.eta == 1, spec.name, ": eta is ", rule.eta, ", must be 1 without ef21");
  check(rule.momentum >= 0 && rule.momentum < 1, spec.name, ": momentum is ", rule.momentum,
        ", must be in [0, 1)");
  check(rule.momentum == 0 || rule.on || row.keeps_velocity(), spec.name, ": momentum is ",
        rule.momentum,
        ", must be 0 without error feedback: there is no residual that accumulates a velocity");
  check(rule.momentum == 0 || !rule.ef21, spec.name, ": momentum is ", rule.momentum,
        ", must be 0 with ef21, whose velocity has an eta");
  if (!row.keeps_velocity()) {
    check(rule.clip == 0, spec.name, ": clip is ", rule.clip, ", must be 0: only dgc has one");
    return;
  }
  check(rule.clip >= 0 && std::isfinite(rule.clip), spec.name, ": clip is ", rule.clip,
        ", must be finite and not negative");
}

void validate_first_steps(const CompressorSpec& spec, const CompressorRow& row) {
  const Choice& choice = spec.choice;
  check(choice.warmup == 0 || row.selector(), spec.name, ": warmup is ", choice.warmup,
        ", must be 0: only selectors have a density that could fall");
  check(choice.start_values == ValueCodec::kRaw || choice.start_values == ValueCodec::kBFloat16,
        spec.name, ": start_values is ", static_cast<int>(choice.start_values),
        ", must be raw or bf16");
  check(choice.start > 0 || choice.start_values == ValueCodec::kRaw, spec.name,
        ": start is 0, must be positive where its steps send bf16");
  check(choice.start == 0 || spec.feedback.clip == 0, spec.name, ": start is ", choice.start,
        " and clip is ", spec.feedback.clip,
        ", must not both be there: steps that send everything clip nothing");
}

void validate_levels(const CompressorSpec& spec, bool has_levels) {
  const Codec& codec = spec.codec;
  check(has_levels ? codec.levels >= 1 && codec.levels <= kMaxLevels : codec.levels == 0, spec.name,
        ": number of levels is ", codec.levels, ", must be ",
        has_levels ? "1 to 127" : "0: only qsgd has levels");
  check(!has_levels || codec.values == codec_of_levels(codec.levels), spec.name,
        ": value codec is ", static_cast<int>(codec.values), ", must be ",
        static_cast<int>(codec_of_levels(codec.levels)));
}

/// Of a selector: what its values are and how they are rounded.
void validate_values(const CompressorSpec& spec) {
  const Codec& codec = spec.codec;
  check(codec.values != ValueCodec::kRaw && codec.values <= ValueCodec::kPowerOfTwo, spec.name,
        ": value codec is ", static_cast<int>(codec.values),
        ", must be fp32, fp16, bf16, int8, int4, 2bit, 1bit, e4m3, e5m2 or natural");
  validate_levels(spec, codec.levels > 0);
  const bool stochastic = codec.rounding == Rounding::kStochastic;
  check(stochastic || codec.rounding == Rounding::kNearest, spec.name, ": rounding is ",
        static_cast<int>(codec.rounding), ", must be nearest or stochastic");
  check(stochastic || (codec.levels == 0 && codec.values != ValueCodec::kPowerOfTwo), spec.name,
        ": rounding is nearest, must be stochastic with values of natural or qsgd");
  check(!stochastic || has_two_roundings(codec.values) || codec.values == ValueCodec::kPowerOfTwo,
        spec.name, ": rounding is stochastic, must be nearest with values of ",
        to_string(codec.values), "; those of int8, int4, 2bit, e4m3 and e5m2 have both");
}

}  // namespace

bool only_casts(const CompressorSpec& spec) {
  return find_compressor(spec.name).select == Selection::kAll && !has_scales(spec.codec.values) &&
         !spec.feedback.on;
}

bool keeps_velocity(const CompressorSpec& spec) {
  return spec.feedback.momentum > 0 || spec.feedback.eta < 1 ||
         find_compressor(spec.name).keeps_velocity();
}

void validate(const CompressorSpec& spec) {
  const CompressorRow& row = find_compressor(spec.name);
  const Choice& choice = spec.choice;
  const Codec& codec = spec.codec;
  check(row.low_rank() ? choice.rank >= 1 && choice.rank <= kMaxRank : choice.rank == 0, spec.name,
        ": rank is ", choice.rank, ", must be ",
        row.low_rank() ? "1 to 128" : "0: only powersgd has one");
  check(choice.rounds == 1 || (row.low_rank() && choice.rounds == 2), spec.name, ": rounds is ",
        choice.rounds, row.low_rank() ? ", must be 1 or 2" : ", must be 1: only powersgd has two");
  if (row.selector()) {
    check(choice.density > 0 && choice.density <= 1, spec.name, ": density is ", choice.density,
          ", must be in (0, 1]");
    check(!row.per_chunk() || choice.density == chunk_density(choice.density), spec.name,
          ": density is ", choice.density, ", must be K/4096 with K from 1 to 4096");
    validate_values(spec);
  } else {
    check(choice.density == 1, spec.name, ": density is ", choice.density,
          ", must be 1: only selectors take one");
    validate_levels(spec, row.takes_levels);
    check(row.takes_levels || codec.values == row.codec.values, spec.name, ": value codec is ",
          static_cast<int>(codec.values), ", must be ", static_cast<int>(row.codec.values));
  }
  if (row.takes_rounding) {
    check(codec.rounding == Rounding::kNearest || codec.rounding == Rounding::kStochastic,
          spec.name, ": rounding is ", static_cast<int>(codec.rounding),
          ", must be nearest or stochastic");
  } else if (!row.selector()) {
    const bool nearest = row.codec.rounding == Rounding::kNearest;
    check(codec.rounding == row.codec.rounding, spec.name, ": rounding is ",
          nearest ? "stochastic, must be nearest" : "nearest, must be stochastic");
  }
  if (row.takes_block()) {
    check(
        codec.block >= kMinBlock && codec.block <= kChunk && (codec.block & (codec.block - 1)) == 0,
        spec.name, ": block is ", codec.block, ", must be a power of two from ", kMinBlock, " to ",
        kChunk);
  } else {
    check(codec.block == row.codec.block, spec.name, ": block is ", codec.block, ", must stay ",
          row.codec.block, ": it has no blocks");
  }
  check(row.takes_width() ? choice.width >= 1 && choice.width <= kChunk : choice.width == 0,
        spec.name, ": width is ", choice.width, ", must be ",
        row.takes_width() ? "1 to 4096" : "0: it does not send blocks");
  validate_feedback(spec, row);
  validate_velocity(spec, row);
  validate_first_steps(spec, row);
  validate_as_float(spec);
}

}  // namespace gradwire
