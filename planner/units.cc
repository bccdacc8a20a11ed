#include "gradwire/planner/units.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <optional>
#include <span>

#include "gradwire/kernels/core/error.h"

namespace gradwire::planner {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

constexpr Unit kBytes[] = {{"B", 1},        {"kB", 1e3},        {"KB", 1e3},
                           {"MB", 1e6},     {"GB", 1e9},        {"TB", 1e12},
                           {"KiB", 1024.0}, {"MiB", 1048576.0}, {"GiB", 1073741824.0}};
constexpr Unit kBits[] = {{"b", 1},    {"kb", 1e3}, {"Kb", 1e3},
                          {"Mb", 1e6}, {"Gb", 1e9}, {"Tb", 1e12}};
constexpr Unit kBitWords[] = {
    {"bit", 1}, {"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}, {"tbit", 1e12}};
constexpr Unit kSeconds[] = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3},
                             {"s", 1},     {"min", 60},  {"h", 3600}};

struct Quantity {
  double number = 0;
  std::string_view unit;
};

std::optional<Quantity> split(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  Quantity quantity;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), quantity.number);
  if (error != std::errc() || !std::isfinite(quantity.number) || quantity.number < 0) {
    return std::nullopt;
  }
  quantity.unit = text.substr(static_cast<size_t>(end - text.data()));
  while (!quantity.unit.empty() && quantity.unit.front() == ' ') quantity.unit.remove_prefix(1);
  return quantity;
}

std::optional<double> factor_of(std::string_view unit, std::span<const Unit> units) {
  const auto found = std::ranges::find(units, unit, &Unit::name);
  return found == units.end() ? std::nullopt : std::optional(found->factor);
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

std::string with_unit(double value, std::span<const Unit> units) {
  const Unit* chosen = &units.front();
  for (const Unit& unit : units) {
    // Against what would be printed: 0.9996 ms is 1 ms, not 1000 us.
    if (std::fabs(value) >= 0.9995 * unit.factor) {
      chosen = &unit;
    }
  }
  std::array<char, 48> text;
  const double number = value / chosen->factor;
  const bool whole = std::fabs(number) >= 999.5;  // of the largest unit: 1080, not 1.08e+03
  std::snprintf(text.data(), text.size(), whole ? "%.0f" : "%.3g", number);
  return concat(text.data(), " ", chosen->name);
}

double parse_with(std::string_view text, std::span<const Unit> units, const char* expected) {
  const auto quantity = split(text);
  const auto factor = quantity ? factor_of(quantity->unit, units) : std::nullopt;
  check(factor.has_value(), "'", text, "', expected ", expected);
  return quantity->number * *factor;
}

}  // namespace

double parse_rate_bytes_per_s(std::string_view text) {
  constexpr const char* kExpected = ", expected a rate such as 10gbit, 25Gb/s or 1.2GB/s";
  const auto quantity = split(text);
  check(quantity.has_value(), "rate '", text, "'", kExpected);
  std::string_view unit = quantity->unit;
  const bool per_second = unit.ends_with("/s");
  if (per_second) {
    unit.remove_suffix(2);
  }
  std::optional<double> factor = factor_of(lower(unit), kBitWords);
  if (!factor && per_second) {  // "10GB" alone is an amount
    factor = factor_of(unit, kBits);
  }
  if (factor) {
    factor = *factor / 8;
  } else if (per_second) {
    factor = factor_of(unit, kBytes);
  }
  check(factor.has_value(), "rate '", text, "'", kExpected);
  const double rate = quantity->number * *factor;
  check(rate > 0 && rate <= 1e15, "rate '", text, "' is ", rate,
        " bytes/s, must be more than 0 and at most 1e15: a link without bandwidth carries nothing");
  return rate;
}

double parse_seconds(std::string_view text) {
  return parse_with(text, kSeconds, "a time such as 60us, 1.5ms, 2s, 30min or 2h");
}

double parse_bytes(std::string_view text) {
  return parse_with(text, kBytes, "an amount such as 25MB, 64KiB or 100B");
}

std::string seconds_text(double seconds) {
  return seconds == 0 ? "0 s" : with_unit(seconds, kSeconds);
}

std::string bytes_text(double bytes) {
  constexpr Unit kUnits[] = {{"B", 1}, {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}};
  return with_unit(bytes, kUnits);
}

}  // namespace gradwire::planner
