#include "gradwire/planner/reducer_profile.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

#include "gradwire/kernels/core/error.h"

namespace gradwire::planner {
namespace {

constexpr double kPerMicrosecond = 1e-6;

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

void check_step(const Plan& plan, const StepTrace& step) {
  std::vector<bool> seen(plan.buckets.size());
  for (const BucketTrace& bucket : step.buckets) {
    check(bucket.bucket < seen.size(), "trace: step ", step.step, " has bucket ", bucket.bucket,
          ", must be below the plan's ", seen.size(), " buckets");
    check(!seen[bucket.bucket], "trace: step ", step.step, " has bucket ", bucket.bucket,
          " twice, expected once");
    seen[bucket.bucket] = true;
    check(step.first_ready_us <= bucket.ready_us && bucket.begin_us <= bucket.compressed_us &&
              bucket.exchange_us <= bucket.end_us && bucket.transfer_us >= 0,
          "trace: step ", step.step, ", bucket ", bucket.bucket,
          ": its times run backwards, expected ready behind the step's first gradient, and ends "
          "behind beginnings");
  }
  const auto missing = std::ranges::find(seen, false);
  check(missing == seen.end(), "trace: step ", step.step, " has no bucket ", missing - seen.begin(),
        ", expected all of the plan's ", seen.size());
  check(step.first_ready_us <= step.wait_begin_us, "trace: step ", step.step,
        ": wait() began before the first gradient, expected after it");
}

// One figure of a bucket in each step, in microseconds; its median in seconds.
double median_of(std::span<const StepTrace> steps, BucketId bucket,
                 const std::function<int64_t(const StepTrace&, const BucketTrace&)>& figure) {
  std::vector<double> values;
  for (const StepTrace& step : steps) {
    const auto traced = std::ranges::find(step.buckets, bucket, &BucketTrace::bucket);
    values.push_back(static_cast<double>(figure(step, *traced)));
  }
  return kPerMicrosecond * median(std::move(values));
}

// When each parameter's gradient was ready, since the first one of the step.
std::vector<double> ready_times(const Plan& plan, std::span<const StepTrace> steps,
                                std::span<const GradientTiming> timings) {
  std::vector<double> ready(plan.parameters.size(), -1.0);
  if (timings.empty()) {
    for (size_t p = 0; p < ready.size(); ++p) {
      ready[p] = median_of(steps, plan.places[p].bucket,
                           [](const StepTrace& step, const BucketTrace& bucket) {
                             return bucket.ready_us - step.first_ready_us;
                           });
    }
    return ready;
  }
  for (const GradientTiming& timing : timings) {
    check(timing.parameter < ready.size(), "timings: parameter ", timing.parameter,
          ", must be below the plan's ", ready.size());
    ready[timing.parameter] = timing.ready_s;
  }
  for (size_t p = 0; p < ready.size(); ++p) {
    check(ready[p] >= 0, "timings: parameter '", plan.parameters[p].name, "' is ready at ",
          ready[p], " s, expected a time from 0 for each parameter of the plan");
  }
  return ready;
}

// What backward took before its first gradient.
double before_first(std::span<const StepTrace> steps, const TrainerTimes& times) {
  if (!times.backward_s) {
    return 0;
  }
  std::vector<double> until_wait;
  for (const StepTrace& step : steps) {
    until_wait.push_back(static_cast<double>(step.wait_begin_us - step.first_ready_us));
  }
  return std::max(0.0, *times.backward_s - kPerMicrosecond * median(std::move(until_wait)));
}

// Its last gradient in backward; of equal ones the first in forward, as backward_parts() has it.
size_t carrier_of(const Plan& plan, BucketId bucket, const std::vector<LayerProfile>& layers) {
  size_t last = layers.size();
  for (size_t p = 0; p < layers.size(); ++p) {
    if (plan.places[p].bucket == bucket &&
        (last == layers.size() || *layers[p].ready_s > *layers[last].ready_s)) {
      last = p;
    }
  }
  return last;
}

}  // namespace

Profile reducer_profile(const Plan& plan, std::span<const StepTrace> steps,
                        const TrainerTimes& times, std::span<const GradientTiming> timings) {
  check(!steps.empty(), "trace: 0 steps, expected at least one");
  for (const StepTrace& step : steps) {
    check_step(plan, step);
  }
  Profile profile;
  profile.model = times.model;
  profile.machine = times.machine;
  profile.source = concat("gradwire::Reducer, ", steps.size(), " steps");
  profile.batch = times.batch;
  profile.ranks = times.ranks;
  profile.io_s = times.io_s;
  profile.host_to_device_s = times.host_to_device_s;
  profile.other_s = times.forward_s;
  profile.measured_step_s = times.measured_step_s;

  const std::vector<double> ready = ready_times(plan, steps, timings);
  const double before = before_first(steps, times);
  size_t elements = 0;
  for (const ParamInfo& parameter : plan.parameters) {
    elements += parameter.numel();
  }
  for (size_t p = 0; p < plan.parameters.size(); ++p) {
    LayerProfile layer;
    layer.name = plan.parameters[p].name;
    layer.numel = plan.parameters[p].numel();
    layer.dtype = plan.dtype;
    layer.ready_s = before + ready[p];
    layer.update_s =
        times.update_s * static_cast<double>(layer.numel) / static_cast<double>(elements);
    profile.layers.push_back(layer);
  }
  for (const BackwardPart& part : backward_parts(profile)) {
    if (part.layer != kNoLayer) {
      profile.layers[part.layer].backward_s = part.seconds;
    }
  }
  for (BucketId b = 0; b < plan.buckets.size(); ++b) {
    LayerProfile& carrier = profile.layers[carrier_of(plan, b, profile.layers)];
    carrier.compress_s = median_of(steps, b, [](const StepTrace&, const BucketTrace& bucket) {
      return bucket.compressed_us - bucket.begin_us;
    });
    carrier.exchange_s = median_of(
        steps, b, [](const StepTrace&, const BucketTrace& bucket) { return bucket.transfer_us; });
    carrier.decompress_s = median_of(steps, b, [](const StepTrace&, const BucketTrace& bucket) {
      return std::max(int64_t{0}, bucket.end_us - bucket.exchange_us - bucket.transfer_us);
    });
  }
  validate(profile, "trace");
  return profile;
}

}  // namespace gradwire::planner
