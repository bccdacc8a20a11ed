#include "gradwire/planner/recommend.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>

#include "gradwire/kernels/core/error.h"
#include "gradwire/planner/internal/table_reader.h"
#include "gradwire/planner/units.h"

namespace gradwire::planner {
namespace {

constexpr std::string_view kHeader = "instance,gpu,gpus,usd_per_hour";

template <class T>
T number_in(std::string_view cell, const char* column, size_t line) {
  T value{};
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), value);
  check(error == std::errc() && end == cell.data() + cell.size(), "price table: line ", line, ": ",
        column, " is '", cell, "', expected a number");
  return value;
}

Instance read_row(std::string_view row, size_t line) {
  std::vector<std::string_view> cells;
  for (size_t begin = 0; begin <= row.size();) {
    const size_t end = std::min(row.find(',', begin), row.size());
    cells.push_back(trimmed(row.substr(begin, end - begin)));
    begin = end + 1;
  }
  check(cells.size() == 4, "price table: line ", line, " has ", cells.size(),
        " columns, expected 4: ", kHeader);
  Instance instance{std::string(cells[0]), std::string(cells[1]),
                    number_in<int>(cells[2], "gpus", line),
                    number_in<double>(cells[3], "usd_per_hour", line)};
  check(!instance.name.empty() && !instance.gpu.empty(), "price table: line ", line,
        " has no name or no GPU, expected both");
  return instance;
}

void check_instance(const Instance& instance) {
  check(instance.gpus >= 1, "instance '", instance.name, "' has ", instance.gpus,
        " GPUs, expected at least 1");
  check(std::isfinite(instance.usd_per_hour) && instance.usd_per_hour >= 0, "instance '",
        instance.name, "' costs ", instance.usd_per_hour,
        " USD per hour, must be finite and at least 0");
}

std::string configuration_text(const Configuration& configuration) {
  std::array<char, 32> cost;
  std::snprintf(cost.data(), cost.size(), "%.2f", configuration.cost_usd);
  return concat(configuration.count, " x ", configuration.instance.name, ", plan ",
                configuration.plan, ": ", seconds_text(configuration.epoch_s), " and ", cost.data(),
                " USD an epoch");
}

// Cheapest first: a configuration is on the front if it is faster than all before it.
void mark_front(std::vector<Configuration>& configurations) {
  double fastest = std::numeric_limits<double>::infinity();
  for (Configuration& configuration : configurations) {
    configuration.on_front = configuration.epoch_s < fastest;
    fastest = std::min(fastest, configuration.epoch_s);
  }
}

}  // namespace

std::span<const Instance> default_instances() {
  static const std::vector<Instance> instances = {
      {"p2.xlarge", "K80", 1, 0.90},     {"p2.8xlarge", "K80", 8, 7.20},
      {"p2.16xlarge", "K80", 16, 14.40}, {"p3.2xlarge", "V100", 1, 3.06},
      {"p3.8xlarge", "V100", 4, 12.24},  {"p3.16xlarge", "V100", 8, 24.48}};
  return instances;
}

std::vector<Instance> read_instances(std::string_view csv) {
  std::vector<Instance> instances;
  bool header = false;
  size_t line = 0;
  for (size_t begin = 0; begin < csv.size();) {
    const size_t end = std::min(csv.find('\n', begin), csv.size());
    const std::string_view row = trimmed(csv.substr(begin, end - begin));
    begin = end + 1;
    ++line;
    if (row.empty() || row.starts_with('#')) {
      continue;
    }
    if (!header) {
      check(row == kHeader, "price table: line ", line, " is '", row, "', expected '", kHeader,
            "'");
      header = true;
      continue;
    }
    Instance instance = read_row(row, line);
    check_instance(instance);
    check(std::ranges::find(instances, instance.name, &Instance::name) == instances.end(),
          "price table: line ", line, ": '", instance.name, "' is given twice, expected once");
    instances.push_back(std::move(instance));
  }
  check(!instances.empty(), "price table: 0 instances in ", line, " lines, expected at least 1");
  return instances;
}

Recommendation recommend(std::span<const Instance> instances, const RecommendOptions& options,
                         const EpochTime& epoch_s) {
  check(!instances.empty() && !options.counts.empty() && !options.plans.empty(),
        "recommend: ", instances.size(), " instances, ", options.counts.size(), " counts and ",
        options.plans.size(), " plans, expected at least 1 of each");
  check(std::isfinite(options.budget_s) && options.budget_s > 0, "recommend: the budget is ",
        options.budget_s, " s, must be positive and finite");
  Recommendation found;
  found.budget_s = options.budget_s;
  for (const Instance& instance : instances) {
    check_instance(instance);
    for (const int count : options.counts) {
      check(count >= 1, "recommend: ", count, " instances, expected at least 1");
      for (const std::string& plan : options.plans) {
        const std::optional<double> seconds = epoch_s(instance, count, plan);
        if (!seconds) {
          continue;
        }
        check(std::isfinite(*seconds) && *seconds > 0, "recommend: an epoch on ", count, " x ",
              instance.name, " with plan '", plan, "' takes ", *seconds,
              " s, must be positive and finite");
        found.configurations.push_back({instance, count, plan, *seconds,
                                        *seconds * count * instance.usd_per_hour / 3600,
                                        *seconds <= options.budget_s});
      }
    }
  }
  check(!found.configurations.empty(),
        "recommend: none of the configurations can run, expected at least 1");
  std::ranges::stable_sort(
      found.configurations, [](const Configuration& a, const Configuration& b) {
        return a.cost_usd != b.cost_usd ? a.cost_usd < b.cost_usd : a.epoch_s < b.epoch_s;
      });
  mark_front(found.configurations);
  const auto cheapest =
      std::ranges::find(found.configurations, true, &Configuration::within_budget);
  if (cheapest != found.configurations.end()) {
    found.chosen = static_cast<size_t>(cheapest - found.configurations.begin());
  }
  return found;
}

std::string Recommendation::explain() const {
  std::string out;
  if (chosen) {
    out = concat("recommended: ", configuration_text(configurations.at(*chosen)),
                 "; the budget is ", seconds_text(budget_s), "\n");
  } else {
    const auto fastest = std::ranges::min_element(configurations, {}, &Configuration::epoch_s);
    out = concat("no configuration meets the budget of ", seconds_text(budget_s),
                 "; the fastest is ", configuration_text(*fastest), "\n");
  }
  for (const Configuration& configuration : configurations) {
    if (configuration.on_front) {
      out += concat("on the front: ", configuration_text(configuration), "\n");
    }
  }
  return out;
}

double epoch_seconds(double samples, double batch_per_gpu, int gpus, double step_s) {
  check(std::isfinite(samples) && samples >= 1, "epoch: ", samples,
        " samples, must be finite and at least 1");
  check(std::isfinite(batch_per_gpu) && batch_per_gpu >= 1, "epoch: ", batch_per_gpu,
        " samples a GPU and step, must be finite and at least 1");
  check(gpus >= 1, "epoch: ", gpus, " GPUs, expected at least 1");
  check(std::isfinite(step_s) && step_s > 0, "epoch: a step takes ", step_s,
        " s, must be positive and finite");
  return std::ceil(samples / (batch_per_gpu * gpus)) * step_s;
}

}  // namespace gradwire::planner
