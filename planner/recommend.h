#pragma once
// The cheapest configuration whose epoch fits a time budget: min cost(c) subject to T_epoch(c) <=
// budget, c over instances x counts x plans. After Sharma et al., "Stash" (arXiv:2208.14344), with
// the plan as one more thing to choose.

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gradwire::planner {

/// A row of the price table.
struct Instance {
  std::string name;
  std::string gpu;
  int gpus = 1;
  double usd_per_hour = 0;

  bool operator==(const Instance&) const = default;
};

/// The on-demand prices of AWS's p2 and p3 families that Stash compares (aakash-sharma/DS-Analyzer
/// at 5fb06a1, tool/analyze.py, MIT). They are of 2022 and of one region: replace them by yours.
std::span<const Instance> default_instances();

/// A price table: a header "instance,gpu,gpus,usd_per_hour", then a row each; lines that are empty
/// or begin with '#' mean nothing. @throws InvalidArgument naming the line, for a name given twice,
/// and for no rows.
std::vector<Instance> read_instances(std::string_view csv);

/// Something that could be rented.
struct Configuration {
  Instance instance;
  int count = 1;     ///< of instances
  std::string plan;  ///< a name of the caller's
  double epoch_s = 0;
  double cost_usd = 0;  ///< of an epoch: epoch_s * count * usd_per_hour / 3600
  bool within_budget = false;
  /// No other configuration is at least as fast and at least as cheap, and better in one of both;
  /// of configurations alike in both the first.
  bool on_front = false;
};

struct RecommendOptions {
  std::vector<int> counts = {1};
  std::vector<std::string> plans = {"none"};
  double budget_s = 0;  ///< of an epoch
};

struct Recommendation {
  /// Of `configurations`; empty: no configuration meets the budget.
  std::optional<size_t> chosen = {};
  std::vector<Configuration> configurations = {};  ///< cheapest first, of equal costs fastest first
  double budget_s = 0;

  /// What is recommended or that nothing meets the budget and what comes nearest; the front.
  std::string explain() const;
};

/// Seconds of an epoch; empty: such a configuration cannot run (a model that does not fit).
using EpochTime =
    std::function<std::optional<double>(const Instance&, int count, const std::string& plan)>;

/// Asks for the time of every configuration. Of those within the budget the cheapest, of equally
/// cheap ones the fastest, is chosen. @throws InvalidArgument for empty lists, counts below 1, a
/// budget or a time that is not positive and finite, a price that is negative, and when no
/// configuration can run at all.
Recommendation recommend(std::span<const Instance> instances, const RecommendOptions& options,
                         const EpochTime& epoch_s);

/// ceil(samples / (batch_per_gpu * gpus)) steps of step_s seconds.
/// @throws InvalidArgument for a count below 1 or a time that is not positive and finite.
double epoch_seconds(double samples, double batch_per_gpu, int gpus, double step_s);

}  // namespace gradwire::planner
