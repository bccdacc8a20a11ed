#include "gradwire/kernels/compress/spec.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>
#include <optional>
#include <vector>

#include "gradwire/kernels/compress/compressor_registry.h"
#include "gradwire/kernels/compress/internal/spec_joints.h"
#include "gradwire/kernels/core/near_name.h"
#include "gradwire/kernels/core/number_text.h"

namespace gradwire {
namespace {

constexpr std::array<std::string_view, 27> kOptions = {
    "fp32",     "fp16",       "bf16",    "int8",      "int4",        "2bit",    "1bit",
    "e4m3",     "e5m2",       "natural", "ternary",   "qsgd:S",      "nearest", "stochastic",
    "block=N",  "width=W",    "ef",      "noef",      "ef21",        "decay=B", "residual=DTYPE",
    "rounds=N", "momentum=M", "eta=H",   "clip=NORM", "warmup=STEPS", "start=STEPS"};
constexpr uint32_t kDefaultWidth = 64;  // divides the rows of most embeddings

double default_momentum(const CompressorRow& row) { return row.keeps_velocity() ? 0.9 : 0; }

/// Of those that selectors take.
std::optional<ValueCodec> find_codec(std::string_view text) {
  for (uint8_t i = 0; i <= static_cast<uint8_t>(ValueCodec::kPowerOfTwo); ++i) {
    const auto codec = static_cast<ValueCodec>(i);
    if (codec != ValueCodec::kRaw && to_string(codec) == text) {
      return codec;
    }
  }
  return std::nullopt;
}

/// "a, b and c": the rows for which `which` holds.
template <class Which>
std::string names_of_rows(Which which) {
  std::vector<std::string_view> names;
  for (const CompressorRow& row : compressor_registry()) {
    if (std::invoke(which, row)) {
      names.push_back(row.name);
    }
  }
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    text.append(i == 0 ? "" : i + 1 < names.size() ? ", " : " and ").append(names[i]);
  }
  return text;
}

template <class T>
T parse_number(std::string_view spec, std::string_view what, std::string_view text) {
  T value{};
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  check(!text.empty() && result.ec == std::errc() && result.ptr == text.data() + text.size(), spec,
        ": ", what, " is '", text, "', must be a number");
  return value;
}

double parse_density(std::string_view name, std::string_view text) {
  constexpr std::string_view kPerChunk = "/4096";
  if (text.ends_with(kPerChunk)) {
    text.remove_suffix(kPerChunk.size());
    const auto kept = parse_number<uint32_t>(name, "K of the density K/4096", text);
    check(kept >= 1 && kept <= kChunk, name, ": K of the density K/4096 is ", kept,
          ", must be 1 to 4096");
    return kept / static_cast<double>(kChunk);
  }
  if (!text.empty() && text.back() == '%') {
    return parse_number<double>(name, "density", text.substr(0, text.size() - 1)) / 100.0;
  }
  return parse_number<double>(name, "density", text);
}

/// As a percentage when that reads back as the same number.
std::string print_density(double density) {
  std::array<char, 32> text;
  const auto result = std::to_chars(text.data(), text.data() + text.size(), density * 100,
                                    std::chars_format::general, 12);
  const std::string percent(text.data(), result.ptr);
  return parse_density("density", percent + "%") == density ? percent + "%" : text_of(density);
}

std::string print_chunk_density(double density) {
  return std::to_string(kept_elements(density, kChunk)) + "/4096";
}

/// What an option decides; giving two options that decide the same thing is an error.
enum class Aspect {
  kValues,
  kUnbiasedValues,
  kRounding,
  kBlock,
  kWidth,
  kFeedback,
  kDecay,
  kResidual,
  kRounds,
  kMomentum,
  kEta,
  kClip,
  kWarmup,
  kStart
};
constexpr size_t kAspects = static_cast<size_t>(Aspect::kStart) + 1;

Aspect apply_option(CompressorSpec& spec, std::string_view option) {
  if (option.starts_with("qsgd:")) {
    spec.levels = parse_number<uint32_t>(spec.name, "number of levels", option.substr(5));
    check(spec.levels > 0, spec.name, ": number of levels is 0, must be 1 to 127");
    spec.values = codec_of_levels(spec.levels);
    spec.rounding = Rounding::kStochastic;
    return Aspect::kUnbiasedValues;
  }
  if (option == "natural" || option == "ternary") {
    spec.values = option == "natural" ? ValueCodec::kPowerOfTwo : ValueCodec::kInt2;
    spec.rounding = Rounding::kStochastic;
    return Aspect::kUnbiasedValues;
  }
  if (const auto codec = find_codec(option)) {
    spec.values = *codec;
    return Aspect::kValues;
  }
  if (option == "nearest" || option == "stochastic") {
    spec.rounding = option == "nearest" ? Rounding::kNearest : Rounding::kStochastic;
    return Aspect::kRounding;
  }
  if (option.starts_with("block=")) {
    spec.block = parse_number<uint32_t>(spec.name, "block", option.substr(6));
    return Aspect::kBlock;
  }
  if (option.starts_with("width=")) {
    spec.width = parse_number<uint32_t>(spec.name, "width", option.substr(6));
    return Aspect::kWidth;
  }
  if (option == "ef" || option == "noef" || option == "ef21") {
    spec.error_feedback = option != "noef";
    spec.ef21 = option == "ef21";
    return Aspect::kFeedback;
  }
  if (option.starts_with("decay=")) {
    spec.decay = parse_number<double>(spec.name, "decay", option.substr(6));
    return Aspect::kDecay;
  }
  if (option.starts_with("residual=")) {
    const std::string_view kept = option.substr(9);
    check(kept == "fp32" || kept == "bf16", spec.name, ": residual is '", kept,
          "', must be fp32 or bf16");
    spec.residual = kept == "bf16" ? DType::kBFloat16 : DType::kFloat32;
    return Aspect::kResidual;
  }
  if (option.starts_with("rounds=")) {
    spec.rounds = parse_number<uint32_t>(spec.name, "rounds", option.substr(7));
    return Aspect::kRounds;
  }
  if (option.starts_with("momentum=")) {
    spec.momentum = parse_number<double>(spec.name, "momentum", option.substr(9));
    return Aspect::kMomentum;
  }
  if (option.starts_with("eta=")) {
    spec.eta = parse_number<double>(spec.name, "eta", option.substr(4));
    return Aspect::kEta;
  }
  if (option.starts_with("clip=")) {
    spec.clip = parse_number<double>(spec.name, "clip", option.substr(5));
    return Aspect::kClip;
  }
  if (option.starts_with("warmup=")) {
    spec.warmup = parse_number<uint32_t>(spec.name, "warmup", option.substr(7));
    return Aspect::kWarmup;
  }
  if (option.starts_with("start=")) {
    const std::string_view steps = option.substr(6, option.find(':') - 6);
    spec.start = parse_number<uint32_t>(spec.name, "start", steps);
    if (const std::string_view sent = option.substr(6 + steps.size()); !sent.empty()) {
      check(sent == ":bf16", spec.name, ": option is '", option, "', must be start=", steps,
            " or start=", steps, ":bf16");
      spec.start_values = ValueCodec::kBFloat16;
    }
    return Aspect::kStart;
  }
  throw_unknown(concat(spec.name, ": unknown option"), option, kOptions);
}

void check_fits_row(const CompressorRow& row, Aspect aspect, std::string_view option) {
  check(aspect > Aspect::kUnbiasedValues || row.selector(), row.name, ": option is '", option,
        "', but its values have one fixed type; only selectors take a value codec");
  check(aspect != Aspect::kRounding || row.takes_rounding || row.selector(), row.name,
        ": option is '", option, "', but it has one way to round; ",
        names_of_rows(&CompressorRow::takes_rounding), " have two");
  check(aspect != Aspect::kBlock || row.takes_block(), row.name, ": option is '", option,
        "', but it has no blocks; ", names_of_rows(&CompressorRow::takes_block), " have");
  check(aspect != Aspect::kWidth || row.takes_width(), row.name, ": option is '", option,
        "', but it does not send blocks; ", names_of_rows(&CompressorRow::takes_width), " does");
  check(aspect != Aspect::kRounds || row.low_rank(), row.name, ": option is '", option,
        "', but it has one round; powersgd has one or two");
  check(aspect != Aspect::kClip || row.keeps_velocity(), row.name, ": option is '", option,
        "', but only ", names_of_rows(&CompressorRow::keeps_velocity), " takes it");
  check(aspect != Aspect::kWarmup || row.selector(), row.name, ": option is '", option,
        "', but it has no density that could fall; ", names_of_rows(&CompressorRow::selector),
        " have one");
}

CompressorSpec parse_parts(std::string_view text) {
  std::string_view head = text.substr(0, text.find(','));
  std::string_view options = head.size() < text.size() ? text.substr(head.size() + 1) : "";
  const bool has_options = head.size() < text.size();
  const size_t colon = head.find(':');
  const CompressorRow& row = find_compressor(head.substr(0, colon));

  CompressorSpec spec;
  spec.name = row.name;
  spec.values = row.default_values;
  spec.rounding = row.rounding;
  spec.error_feedback = row.default_error_feedback;
  spec.momentum = default_momentum(row);
  spec.width = row.takes_width() ? kDefaultWidth : 0;
  if (row.takes_levels) {
    check(colon != std::string_view::npos, row.name, ": number of levels is missing, expected for "
          "example ", row.example);
    spec.levels = parse_number<uint32_t>(row.name, "number of levels", head.substr(colon + 1));
    spec.values = codec_of_levels(spec.levels);
  }
  if (row.low_rank()) {
    check(colon != std::string_view::npos, row.name, ": rank is missing, expected for example ",
          row.example);
    spec.rank = parse_number<uint32_t>(row.name, "rank", head.substr(colon + 1));
  }
  check(row.selector() || row.takes_levels || row.low_rank() || colon == std::string_view::npos,
        row.name, ": density is '",
        colon == std::string_view::npos ? "" : head.substr(colon + 1),
        "', but only selectors take one");
  check(!row.selector() || colon != std::string_view::npos, row.name,
        ": density is missing, expected for example ", row.example);
  if (row.selector()) {
    spec.density = parse_density(row.name, head.substr(colon + 1));
    if (row.per_chunk() && spec.density > 0 && spec.density <= 1) {
      spec.density = chunk_density(spec.density);
    }
  }

  std::array<bool, kAspects> seen{};
  while (has_options) {
    const std::string_view option = options.substr(0, options.find(','));
    const Aspect aspect = apply_option(spec, option);
    check_fits_row(row, aspect, option);
    const auto take = [&](Aspect decided) {
      bool& given = seen[static_cast<size_t>(decided)];
      check(!given, row.name, ": option '", option,
            "' decides again what an earlier option decided");
      given = true;
    };
    if (aspect == Aspect::kUnbiasedValues) {
      take(Aspect::kValues);
      take(Aspect::kRounding);
    } else {
      take(aspect);
    }
    if (option.size() == options.size()) {
      break;
    }
    options.remove_prefix(option.size() + 1);
  }
  validate(spec);
  return spec;
}

bool is_spec(std::string_view text) {
  try {
    parse_parts(text);
    return true;
  } catch (const InvalidArgument&) {
    return false;
  }
}

}  // namespace

CompressorSpec no_compression() { return {}; }

CompressorSpec parse_spec(std::string_view text) {
  refuse_joined_by_plus(text);
  try {
    return parse_parts(text);
  } catch (const InvalidArgument&) {
    const std::string joined = joined_by_commas(text);
    check(joined == text || !is_spec(joined), "spec: is '", text, "', must be joined by ',', as '",
          joined, "'");
    throw;
  }
}

std::string to_string(const CompressorSpec& spec) {
  const CompressorRow& row = find_compressor(spec.name);
  const CompressorSpec defaults;
  std::string text = spec.name;
  if (row.selector()) {
    text.append(":").append(row.per_chunk() ? print_chunk_density(spec.density)
                                          : print_density(spec.density));
  }
  if (spec.levels > 0) {
    text.append(row.takes_levels ? ":" : ",qsgd:").append(std::to_string(spec.levels));
  } else if (spec.values != row.default_values) {
    text.append(",").append(to_string(spec.values));
  }
  if (row.low_rank()) {
    text.append(":").append(std::to_string(spec.rank));
  }
  if (spec.rounds != defaults.rounds) {
    text.append(",rounds=").append(std::to_string(spec.rounds));
  }
  const bool has_one = spec.levels > 0 || spec.values == ValueCodec::kPowerOfTwo;
  if (spec.rounding != row.rounding && !has_one) {
    text += spec.rounding == Rounding::kStochastic ? ",stochastic" : ",nearest";
  }
  if (spec.block != defaults.block) {
    text.append(",block=").append(std::to_string(spec.block));
  }
  if (row.takes_width() && spec.width != kDefaultWidth) {
    text.append(",width=").append(std::to_string(spec.width));
  }
  if (spec.ef21) {
    text += ",ef21";
  } else if (spec.error_feedback != row.default_error_feedback) {
    text += spec.error_feedback ? ",ef" : ",noef";
  }
  if (spec.decay != defaults.decay) {
    text.append(",decay=").append(text_of(spec.decay));
  }
  if (spec.residual != defaults.residual) {
    text += ",residual=bf16";
  }
  if (spec.eta != defaults.eta) {
    text.append(",eta=").append(text_of(spec.eta));
  }
  if (spec.momentum != default_momentum(row)) {
    text.append(",momentum=").append(text_of(spec.momentum));
  }
  if (spec.clip != defaults.clip) {
    text.append(",clip=").append(text_of(spec.clip));
  }
  if (spec.warmup != defaults.warmup) {
    text.append(",warmup=").append(std::to_string(spec.warmup));
  }
  if (spec.start != defaults.start) {
    text.append(",start=").append(std::to_string(spec.start));
    text.append(spec.start_values == ValueCodec::kBFloat16 ? ":bf16" : "");
  }
  return text;
}

uint32_t fingerprint(const CompressorSpec& spec) {
  uint32_t hash = 2166136261u;  // FNV-1a
  for (const char c : to_string(spec)) {
    hash = (hash ^ static_cast<uint8_t>(c)) * 16777619u;
  }
  return hash;
}

double chunk_density(double density) {
  return static_cast<double>(kept_elements(density, kChunk)) / static_cast<double>(kChunk);
}

size_t kept_elements(double density, size_t n) {
  if (n == 0) {
    return 0;
  }
  const double kept = std::ceil(density * static_cast<double>(n));
  return std::clamp<size_t>(static_cast<size_t>(kept), 1, n);
}

}  // namespace gradwire
