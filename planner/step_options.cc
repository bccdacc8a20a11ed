// Schedules by name, and what options are checked for.

#include <algorithm>
#include <cmath>

#include "gradwire/kernels/core/error.h"
#include "gradwire/kernels/core/number_text.h"
#include "gradwire/planner/step_graph.h"

namespace gradwire::planner {
namespace {

constexpr std::string_view kNames[kSchedules] = {"bsp",     "overlapped-io", "wfbp",
                                                 "mg-wfbp", "priority",      "multi-stream"};

void check_rate(double rate, std::string_view what) {
  check(std::isfinite(rate) && rate >= 0, "step: ", what, ": ", text_of(rate),
        ", must be at least 0");
}

}  // namespace

std::string_view name_of(Schedule schedule) { return kNames[static_cast<size_t>(schedule)]; }

Schedule schedule_named(std::string_view name) {
  const auto found = std::find(std::begin(kNames), std::end(kNames), name);
  if (found == std::end(kNames)) {
    throw_unknown_name("schedule", name, kNames);
  }
  return static_cast<Schedule>(found - std::begin(kNames));
}

void validate(const Profile& profile, const StepOptions& options) {
  const Codec& codec = options.codec;
  check(std::isfinite(codec.compression) && codec.compression > 0,
        "step: codec.compression: ", text_of(codec.compression), ", must be above 0");
  validate(codec.cost, "step");
  check_rate(options.copy_bytes_per_s, "copy_bytes_per_s");
  check_rate(options.slice_bytes, "slice_bytes");
  check(options.slice_bytes == 0 || options.slice_bytes >= 1024,
        "step: slice_bytes: ", text_of(options.slice_bytes), ", must be 0 or at least 1024");
  if (!options.buckets.empty()) {
    validate(profile, options.buckets);
  }
  if (options.exchange == StepOptions::Exchange::kMeasured) {
    buckets_as_measured(profile);
  }
}

Buckets buckets_of(const Profile& profile, const Cluster& cluster, const StepOptions& options) {
  if (!options.buckets.empty()) {
    return options.buckets;
  }
  const bool modelled = options.exchange == StepOptions::Exchange::kModelled;
  if (options.schedule == Schedule::kMgWfbp && modelled && cluster.workers > 1) {
    return mg_wfbp_buckets(
        profile,
        [&](double bytes) { return exchange_seconds(cluster, bytes / options.codec.compression); },
        exchange_cost(cluster, 0).fixed_s);
  }
  return modelled ? buckets_per_tensor(profile) : buckets_as_measured(profile);
}

}  // namespace gradwire::planner
