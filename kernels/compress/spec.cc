#include "gradwire/kernels/compress/spec.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <functional>
#include <optional>
#include <tuple>
#include <type_traits>
#include <variant>
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

/// What a spec is that says no more than its row.
CompressorSpec default_spec(const CompressorRow& row) {
  return {.name = std::string(row.name),
          .choice = {.width = row.takes_width() ? kDefaultWidth : 0},
          .codec = row.codec,
          .feedback = row.feedback};
}

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

/// An option that is a number: "decay=" in front of it, and where it lies.
struct NumberOption {
  std::string_view name;
  Aspect aspect;
  std::variant<uint32_t Choice::*, uint32_t Codec::*, double FeedbackRule::*> field;
};
constexpr std::array kNumbers = {
    NumberOption{"rounds", Aspect::kRounds, &Choice::rounds},
    NumberOption{"block", Aspect::kBlock, &Codec::block},
    NumberOption{"width", Aspect::kWidth, &Choice::width},
    NumberOption{"decay", Aspect::kDecay, &FeedbackRule::decay},
    NumberOption{"eta", Aspect::kEta, &FeedbackRule::eta},
    NumberOption{"momentum", Aspect::kMomentum, &FeedbackRule::momentum},
    NumberOption{"clip", Aspect::kClip, &FeedbackRule::clip},
    NumberOption{"warmup", Aspect::kWarmup, &Choice::warmup}};

template <class Spec, class T>
auto& in(Spec& spec, T Choice::* field) {
  return spec.choice.*field;
}
template <class Spec, class T>
auto& in(Spec& spec, T Codec::* field) {
  return spec.codec.*field;
}
template <class Spec, class T>
auto& in(Spec& spec, T FeedbackRule::* field) {
  return spec.feedback.*field;
}

/// ",decay=0.9" where the spec has another number than its row gives it.
std::string number_text(std::string_view name, const CompressorSpec& spec,
                        const CompressorSpec& defaults) {
  const NumberOption& option = *std::ranges::find(kNumbers, name, &NumberOption::name);
  return std::visit(
      [&](auto field) {
        const auto value = in(spec, field);
        if (value == in(defaults, field)) {
          return std::string();
        }
        if constexpr (std::is_floating_point_v<decltype(in(defaults, field) + 0)>) {
          return concat(",", name, "=", text_of(value));
        } else {
          return concat(",", name, "=", value);
        }
      },
      option.field);
}

Aspect apply_option(CompressorSpec& spec, std::string_view option) {
  Codec& codec = spec.codec;
  if (option.starts_with("qsgd:")) {
    codec.levels = parse_number<uint32_t>(spec.name, "number of levels", option.substr(5));
    check(codec.levels > 0, spec.name, ": number of levels is 0, must be 1 to 127");
    codec.values = codec_of_levels(codec.levels);
    codec.rounding = Rounding::kStochastic;
    return Aspect::kUnbiasedValues;
  }
  if (option == "natural" || option == "ternary") {
    codec.values = option == "natural" ? ValueCodec::kPowerOfTwo : ValueCodec::kInt2;
    codec.rounding = Rounding::kStochastic;
    return Aspect::kUnbiasedValues;
  }
  if (const auto values = find_codec(option)) {
    codec.values = *values;
    return Aspect::kValues;
  }
  if (option == "nearest" || option == "stochastic") {
    codec.rounding = option == "nearest" ? Rounding::kNearest : Rounding::kStochastic;
    return Aspect::kRounding;
  }
  if (option == "ef" || option == "noef" || option == "ef21") {
    spec.feedback.on = option != "noef";
    spec.feedback.ef21 = option == "ef21";
    return Aspect::kFeedback;
  }
  const size_t equals = std::min(option.find('='), option.size());
  const std::string_view key = option.substr(0, equals);
  const std::string_view value = option.substr(std::min(equals + 1, option.size()));
  const auto number = std::ranges::find(kNumbers, key, &NumberOption::name);
  if (number != kNumbers.end() && equals < option.size()) {
    std::visit(
        [&](auto field) {
          auto& place = in(spec, field);
          place = parse_number<std::remove_reference_t<decltype(place)>>(spec.name, key, value);
        },
        number->field);
    return number->aspect;
  }
  if (option.starts_with("residual=")) {
    check(value == "fp32" || value == "bf16", spec.name, ": residual is '", value,
          "', must be fp32 or bf16");
    spec.feedback.residual = value == "bf16" ? DType::kBFloat16 : DType::kFloat32;
    return Aspect::kResidual;
  }
  if (option.starts_with("start=")) {
    const std::string_view steps = value.substr(0, value.find(':'));
    spec.choice.start = parse_number<uint32_t>(spec.name, "start", steps);
    if (const std::string_view sent = value.substr(steps.size()); !sent.empty()) {
      check(sent == ":bf16", spec.name, ": option is '", option, "', must be start=", steps,
            " or start=", steps, ":bf16");
      spec.choice.start_values = ValueCodec::kBFloat16;
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

  CompressorSpec spec = default_spec(row);
  if (row.takes_levels) {
    check(colon != std::string_view::npos, row.name, ": number of levels is missing, expected for "
          "example ", row.example);
    spec.codec.levels =
        parse_number<uint32_t>(row.name, "number of levels", head.substr(colon + 1));
    spec.codec.values = codec_of_levels(spec.codec.levels);
  }
  if (row.low_rank()) {
    check(colon != std::string_view::npos, row.name, ": rank is missing, expected for example ",
          row.example);
    spec.choice.rank = parse_number<uint32_t>(row.name, "rank", head.substr(colon + 1));
  }
  check(row.selector() || row.takes_levels || row.low_rank() || colon == std::string_view::npos,
        row.name, ": density is '",
        colon == std::string_view::npos ? "" : head.substr(colon + 1),
        "', but only selectors take one");
  check(!row.selector() || colon != std::string_view::npos, row.name,
        ": density is missing, expected for example ", row.example);
  if (row.selector()) {
    double& density = spec.choice.density;
    density = parse_density(row.name, head.substr(colon + 1));
    if (row.per_chunk() && density > 0 && density <= 1) {
      density = chunk_density(density);
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

bool asks_for_nothing(std::string_view text) { return text == CompressorSpec().name; }

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
  const CompressorSpec defaults = default_spec(row);
  const auto number = [&](std::string_view name) { return number_text(name, spec, defaults); };
  const auto& [choice, codec, feedback] = std::tie(spec.choice, spec.codec, spec.feedback);
  std::string text = spec.name;
  if (row.selector()) {
    text.append(":").append(row.per_chunk() ? print_chunk_density(choice.density)
                                            : print_density(choice.density));
  }
  if (codec.levels > 0) {
    text.append(row.takes_levels ? ":" : ",qsgd:").append(std::to_string(codec.levels));
  } else if (codec.values != row.codec.values) {
    text.append(",").append(to_string(codec.values));
  }
  if (row.low_rank()) {
    text.append(":").append(std::to_string(choice.rank));
  }
  text += number("rounds");
  const bool has_one = codec.levels > 0 || codec.values == ValueCodec::kPowerOfTwo;
  if (codec.rounding != row.codec.rounding && !has_one) {
    text += codec.rounding == Rounding::kStochastic ? ",stochastic" : ",nearest";
  }
  text += number("block") + number("width");
  if (feedback.ef21) {
    text += ",ef21";
  } else if (feedback.on != row.feedback.on) {
    text += feedback.on ? ",ef" : ",noef";
  }
  text += number("decay");
  text += feedback.residual == DType::kBFloat16 ? ",residual=bf16" : "";
  for (const std::string_view name : {"eta", "momentum", "clip", "warmup"}) {
    text += number(name);
  }
  if (choice.start > 0) {
    text.append(",start=").append(std::to_string(choice.start));
    text.append(choice.start_values == ValueCodec::kBFloat16 ? ":bf16" : "");
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
