// OptimizerSpec as text, and the range of each of its fields.

#include "gradwire/optimizers/spec.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

namespace gradwire {
namespace {

bool is_unit(double x) { return x >= 0.0 && x < 1.0; }
bool is_switch(double x) { return x == 0.0 || x == 1.0; }
bool is_positive(double x) { return x > 0.0 && x <= std::numeric_limits<float>::max(); }
bool is_not_negative(double x) { return x >= 0.0 && x <= std::numeric_limits<float>::max(); }

/// One field of OptimizerSpec: how it is written, read, and bounded.
struct Field {
  std::string_view key;
  std::string_view range;
  bool (*accepts)(double);
  double (*get)(const OptimizerSpec&);
  void (*set)(OptimizerSpec&, double);
};

template <auto Member>
constexpr Field field(std::string_view key, std::string_view range, bool (*accepts)(double)) {
  return {key, range, accepts,
          [](const OptimizerSpec& spec) { return static_cast<double>(spec.*Member); },
          [](OptimizerSpec& spec, double value) {
            spec.*Member = static_cast<std::remove_reference_t<decltype(spec.*Member)>>(value);
          }};
}

constexpr std::array kFields{
    field<&OptimizerSpec::momentum>("momentum", "in [0, 1)", is_unit),
    field<&OptimizerSpec::nesterov>("nesterov", "0 or 1", is_switch),
    field<&OptimizerSpec::beta1>("beta1", "in [0, 1)", is_unit),
    field<&OptimizerSpec::beta2>("beta2", "in [0, 1)", is_unit),
    field<&OptimizerSpec::epsilon>("epsilon", "> 0", is_positive),
    field<&OptimizerSpec::weight_decay>("weight_decay", ">= 0", is_not_negative),
    field<&OptimizerSpec::trust_coefficient>("trust_coefficient", "> 0", is_positive),
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
  const std::vector<std::string_view> names(described.begin(), described.end());
  throw_unknown_name(concat(row.name, " key"), key, names);
}

void check_range(std::string_view optimizer, const Field& which, double value) {
  check(which.accepts(value), optimizer, ": ", which.key, " is ", value, ", must be ", which.range);
}

double parse_number(std::string_view optimizer, const Field& which, std::string_view text) {
  double value = 0.0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  check(error == std::errc() && stop == end, optimizer, ": ", which.key, " is '", text,
        "', must be a number ", which.range);
  return value;
}

/// The shortest text that reads back as the same double.
std::string shortest(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof(text), value).ptr};
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
  throw_unknown_name("optimizer", name, known);
}

void check_spec(const OptimizerSpec& spec) {
  for (std::string_view key : optimizer_row(spec.name).keys) {
    const Field& which = field_of(key);
    check_range(spec.name, which, which.get(spec));
  }
}

OptimizerSpec parse_optimizer(std::string_view text) {
  const size_t colon = text.find(':');
  const OptimizerRow& row = optimizer_row(text.substr(0, colon));
  OptimizerSpec spec;
  spec.name = row.name;
  std::vector<std::string_view> seen;
  for (size_t begin = colon; begin != std::string_view::npos;) {
    const size_t comma = text.find(',', begin + 1);
    const std::string_view item =
        text.substr(begin + 1, comma == std::string_view::npos ? comma : comma - begin - 1);
    const size_t equals = item.find('=');
    const Field& which = known_field(row, item.substr(0, equals));
    check(equals != std::string_view::npos, row.name, ": '", item, "' has no value, expected ",
          which.key, "=NUMBER, ", which.range);
    check(std::find(seen.begin(), seen.end(), which.key) == seen.end(), row.name, ": ", which.key,
          " is given twice, expected once");
    seen.push_back(which.key);
    const double value = parse_number(row.name, which, item.substr(equals + 1));
    check_range(row.name, which, value);
    which.set(spec, value);
    begin = comma;
  }
  return spec;
}

std::string to_string(const OptimizerSpec& spec) {
  const OptimizerSpec defaults;
  std::string text = spec.name;
  for (std::string_view key : optimizer_row(spec.name).keys) {
    const Field& which = field_of(key);
    if (which.get(spec) != which.get(defaults)) {
      text += (text.size() == spec.name.size() ? ":" : ",");
      text += concat(key, "=", shortest(which.get(spec)));
    }
  }
  return text;
}

}  // namespace gradwire
