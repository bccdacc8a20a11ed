// OptimizerSpec as text, and the range of each of its fields.

#include "gradwire/optimizers/spec.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "gradwire/kernels/core/near_name.h"
#include "gradwire/kernels/core/number_text.h"

namespace gradwire {
namespace {

// As the float that steps are computed with, where a bound would be lost to rounding.
bool is_unit(double x) { return x >= 0.0 && static_cast<float>(x) < 1.0f; }
bool is_switch(double x) { return x == 0.0 || x == 1.0; }
bool is_positive(double x) {
  return x <= std::numeric_limits<float>::max() && static_cast<float>(x) > 0.0f;
}
bool is_part(double x) { return x >= 0.0 && x <= 1.0; }
bool is_count(double x) { return x >= 1.0 && x <= 0x1p53 && x == std::floor(x); }
bool is_whole(double x) { return x == 0.0 || is_count(x); }
bool is_not_negative(double x) { return x >= 0.0 && x <= std::numeric_limits<float>::max(); }

/// One field of OptimizerSpec: how it is written, read, and bounded.
struct Field {
  std::string_view key;
  std::string_view range;
  bool (*accepts)(double);
  bool (*is_set)(const OptimizerSpec&);
  double (*get)(const OptimizerSpec&);  // of one that is set
  void (*set)(OptimizerSpec&, double);
  std::span<const std::string_view> names = {};  // of the values 0, 1, ..: written in their place
};

constexpr std::string_view kMasterNames[] = {"remainder", "float32"};
constexpr std::string_view kStateNames[] = {"float32", "8bit"};

template <class T>
struct ValueOf {
  using Type = T;
};
template <class T>
struct ValueOf<std::optional<T>> {
  using Type = T;
};

template <auto Member>
constexpr Field field(std::string_view key, std::string_view range, bool (*accepts)(double),
                      std::span<const std::string_view> names = {}) {
  using Kept = std::remove_cvref_t<decltype(std::declval<OptimizerSpec>().*Member)>;
  using Value = typename ValueOf<Kept>::Type;
  constexpr bool kMayBeUnset = !std::is_same_v<Kept, Value>;
  return {key,
          range,
          accepts,
          [](const OptimizerSpec& spec) {
            if constexpr (kMayBeUnset) {
              return (spec.*Member).has_value();
            } else {
              return true;
            }
          },
          [](const OptimizerSpec& spec) {
            if constexpr (kMayBeUnset) {
              return static_cast<double>((spec.*Member).value());
            } else {
              return static_cast<double>(spec.*Member);
            }
          },
          [](OptimizerSpec& spec, double value) {
            if constexpr (std::is_enum_v<Value>) {
              spec.*Member = static_cast<Value>(static_cast<uint8_t>(value));
            } else {
              spec.*Member = static_cast<Value>(value);
            }
          },
          names};
}

constexpr std::array kFields{
    field<&OptimizerSpec::momentum>("momentum", "in [0, 1)", is_unit),
    field<&OptimizerSpec::nesterov>("nesterov", "0 or 1", is_switch),
    field<&OptimizerSpec::beta1>("beta1", "in [0, 1)", is_unit),
    field<&OptimizerSpec::beta2>("beta2", "in [0, 1)", is_unit),
    field<&OptimizerSpec::epsilon>("epsilon", "> 0", is_positive),
    field<&OptimizerSpec::weight_decay>("weight_decay", ">= 0", is_not_negative),
    field<&OptimizerSpec::trust_coefficient>("trust_coefficient", "> 0", is_positive),
    field<&OptimizerSpec::master>("master", "remainder or float32", is_switch, kMasterNames),
    field<&OptimizerSpec::state>("state", "float32 or 8bit", is_switch, kStateNames),
    field<&OptimizerSpec::min_8bit_size>("min_8bit_size", "a whole number from 0", is_whole),
    field<&OptimizerSpec::max_grad_norm>("max_grad_norm", ">= 0", is_not_negative),
    field<&OptimizerSpec::adapt_undecayed>("adapt_undecayed", "0 or 1", is_switch),
    field<&OptimizerSpec::max_ratio>("max_ratio", ">= 0", is_not_negative),
    field<&OptimizerSpec::min_norm>("min_norm", ">= 0", is_not_negative),
    field<&OptimizerSpec::max_norm>("max_norm", ">= 0", is_not_negative),
    field<&OptimizerSpec::rate_in_momentum>("rate_in_momentum", "0 or 1", is_switch),
    field<&OptimizerSpec::clip_rate>("clip_rate", "0 or 1", is_switch),
    field<&OptimizerSpec::decayed_norm>("decayed_norm", "0 or 1", is_switch),
    field<&OptimizerSpec::decay_at_zero>("decay_at_zero", "0 or 1", is_switch),
    field<&OptimizerSpec::freeze_step>("freeze_step", "a whole number from 1", is_count),
    field<&OptimizerSpec::bias_correction>("bias_correction", "0 or 1", is_switch),
    field<&OptimizerSpec::variance_floor>("variance_floor", "in [0, 1]", is_part),
    field<&OptimizerSpec::min_ratio>("min_ratio", ">= 0", is_not_negative),
    field<&OptimizerSpec::coeff_beta>("coeff_beta", "in [0, 1)", is_unit),
    field<&OptimizerSpec::factor_min>("factor_min", "> 0", is_positive),
    field<&OptimizerSpec::factor_max>("factor_max", "> 0", is_positive),
    field<&OptimizerSpec::factor_threshold>("factor_threshold", "in [0, 1)", is_unit),
};

const Field& field_of(std::string_view key) {
  for (const Field& candidate : kFields) {
    if (candidate.key == key) {
      return candidate;
    }
  }
  throw InvalidArgument(concat("optimizer row: key '", key, "' is no field of OptimizerSpec"));
}

/// The field `key` of the optimizer `row`; an unknown key lists the row's keys and their ranges.
const Field& known_field(const OptimizerRow& row, std::string_view key) {
  std::vector<std::string> described;
  for (std::string_view known : row.keys) {
    if (known == key) {
      return field_of(key);
    }
    described.push_back(concat(known, " ", field_of(known).range));
  }
  if (!row.presets.empty()) {
    described.push_back("preset");
  }
  const std::vector<std::string_view> names(described.begin(), described.end());
  throw_unknown_name(concat(row.name, " key"), key, names);
}

void check_range(std::string_view optimizer, const Field& which, double value) {
  const bool whole = which.accepts == is_whole || which.accepts == is_count;
  check(which.accepts(value), optimizer, ": ", which.key, " is ",
        whole ? text_of(value) : text_with_float(value), ", must be ", which.range);
}

double parse_value(std::string_view optimizer, const Field& which, std::string_view text) {
  if (!which.names.empty()) {
    const auto name = std::find(which.names.begin(), which.names.end(), text);
    check(name != which.names.end(), optimizer, ": ", which.key, " is '", text, "', must be ",
          which.range);
    return static_cast<double>(name - which.names.begin());
  }
  double value = 0.0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  check(error == std::errc() && stop == end, optimizer, ": ", which.key, " is '", text,
        "', must be a number ", which.range);
  return value;
}

std::string written(const Field& which, double value) {
  return which.names.empty() ? text_of(value)
                             : std::string(which.names[static_cast<size_t>(value)]);
}

/// Calls item(key, value) for each of "key=value,key=value", at least once; value is nothing
/// without "=".
template <class Item>
void for_each_item(std::string_view text, const Item& item) {
  for (size_t begin = 0; begin != std::string_view::npos;) {
    const size_t comma = text.find(',', begin);
    const bool last = comma == std::string_view::npos;
    const std::string_view pair = text.substr(begin, last ? comma : comma - begin);
    const size_t equals = pair.find('=');
    item(pair.substr(0, equals),
         equals == std::string_view::npos ? std::nullopt : std::optional(pair.substr(equals + 1)));
    begin = last ? comma : comma + 1;
  }
}

/// Sets the keys of `text`, which is the registry's own.
void set_keys(const OptimizerRow& row, std::string_view text, OptimizerSpec& spec) {
  if (text.empty()) {
    return;
  }
  for_each_item(text, [&](std::string_view key, std::optional<std::string_view> value) {
    const Field& which = field_of(key);
    which.set(spec, parse_value(row.name, which, value.value_or("")));
  });
}

const OptimizerPreset& preset_of(const OptimizerRow& row, std::string_view name) {
  std::vector<std::string_view> known;
  for (const OptimizerPreset& preset : row.presets) {
    if (preset.name == name) {
      return preset;
    }
    known.push_back(preset.name);
  }
  throw_unknown(concat(row.name, " preset: unknown name"), name, known);
}

}  // namespace

const OptimizerRow& optimizer_row(std::string_view name) {
  std::vector<std::string_view> known;
  for (const OptimizerRow& row : optimizer_registry()) {
    if (row.name == name) {
      return row;
    }
    known.push_back(row.name);
  }
  throw_unknown("optimizer: unknown name", name, known);
}

void check_spec(const OptimizerSpec& spec) {
  for (std::string_view key : optimizer_row(spec.name).keys) {
    const Field& which = field_of(key);
    check(which.is_set(spec), spec.name, ": ", key, " is not set, expected a filled() spec");
    check_range(spec.name, which, which.get(spec));
  }
}

OptimizerSpec default_spec(std::string_view name) {
  const OptimizerRow& row = optimizer_row(name);
  OptimizerSpec spec;
  spec.name = row.name;
  spec.nesterov = false;
  spec.epsilon = 1e-6;
  spec.weight_decay = 0.0;
  spec.trust_coefficient = 1e-3;
  spec.rate_in_momentum = true;
  spec.clip_rate = false;
  spec.decay_at_zero = true;
  spec.variance_floor = 0.0;
  set_keys(row, row.defaults, spec);
  return spec;
}

OptimizerSpec filled(OptimizerSpec spec) {
  const OptimizerSpec defaults = default_spec(spec.name);
  for (const Field& which : kFields) {
    if (!which.is_set(spec)) {
      which.set(spec, which.get(defaults));
    }
  }
  return spec;
}

bool OptimizerSpec::operator==(const OptimizerSpec& other) const {
  if (name != other.name) {
    return false;
  }
  const OptimizerSpec own = filled(*this), others = filled(other);
  return std::ranges::all_of(
      kFields, [&](const Field& which) { return which.get(own) == which.get(others); });
}

OptimizerSpec parse_optimizer(std::string_view text) {
  const size_t colon = text.find(':');
  const OptimizerRow& row = optimizer_row(text.substr(0, colon));
  OptimizerSpec spec = default_spec(row.name);
  if (colon == std::string_view::npos) {
    return spec;
  }
  const std::string_view keys = text.substr(colon + 1);
  std::vector<std::string_view> seen;
  const auto once = [&](std::string_view key) {
    check(std::find(seen.begin(), seen.end(), key) == seen.end(), row.name, ": ", key,
          " is given twice, expected once");
    seen.push_back(key);
  };
  // A preset first, wherever it stands: the other keys are changes to it.
  for_each_item(keys, [&](std::string_view key, std::optional<std::string_view> value) {
    if (key == "preset" && !row.presets.empty()) {
      once(key);
      set_keys(row, preset_of(row, value.value_or("")).keys, spec);
    }
  });
  for_each_item(keys, [&](std::string_view key, std::optional<std::string_view> value) {
    if (key == "preset" && !row.presets.empty()) {
      return;
    }
    const Field& which = known_field(row, key);
    check(value.has_value(), row.name, ": '", key, "' has no value, expected ", which.key,
          which.names.empty() ? "=NUMBER, " : "=NAME, ", which.range);
    once(which.key);
    const double number = parse_value(row.name, which, *value);
    check_range(row.name, which, number);
    which.set(spec, number);
  });
  return spec;
}

std::vector<std::pair<std::string_view, std::string>> settings_of(const OptimizerSpec& given) {
  const OptimizerSpec spec = filled(given);
  std::vector<std::pair<std::string_view, std::string>> settings;
  for (std::string_view key : optimizer_row(spec.name).keys) {
    const Field& which = field_of(key);
    settings.emplace_back(key, written(which, which.get(spec)));
  }
  return settings;
}

std::string to_string(const OptimizerSpec& given) {
  const OptimizerSpec spec = filled(given);
  const OptimizerSpec defaults = default_spec(spec.name);
  std::string text = spec.name;
  for (std::string_view key : optimizer_row(spec.name).keys) {
    const Field& which = field_of(key);
    if (which.get(spec) != which.get(defaults)) {
      text += (text.size() == spec.name.size() ? ":" : ",");
      text += concat(key, "=", written(which, which.get(spec)));
    }
  }
  return text;
}

}  // namespace gradwire
