#include "gradwire/comm/internal/reducer_agreement.h"

#include <algorithm>

#include "gradwire/kernels/core/device_name.h"

namespace gradwire {
namespace {

constexpr int kMostStreams = 16;

void check_plan(const Plan& plan) {
  check(!plan.buckets.empty(), "reducer: the plan has 0 buckets, expected at least one");
  check(plan.places.size() == plan.parameters.size(), "reducer: the plan places ",
        plan.places.size(), " of ", plan.parameters.size(), " parameters, expected all");
  for (size_t p = 0; p < plan.places.size(); ++p) {
    const auto [bucket, offset] = plan.places[p];
    const size_t numel = plan.parameters[p].numel();
    check(bucket < plan.buckets.size() && offset <= plan.buckets[bucket].numel &&
              numel <= plan.buckets[bucket].numel - offset,
          "reducer: parameter '", plan.parameters[p].name, "' lies at ", offset, " of bucket ",
          bucket, ", outside of the plan");
  }
}

// What ranks must agree on before the first payload travels.
std::string agreement_text(const Plan& plan, const ReducerOptions& options) {
  return concat(plan.describe(), "on_nonfinite: ",
                options.on_nonfinite == OnNonFinite::kSkip ? "skip" : "error",
                "\nunused: ", options.unused == UnusedParameters::kZero ? "zero" : "error",
                "\nstreams: ", options.streams,
                "\nlaunch order: ", options.launch_order == LaunchOrder::kAgreed ? "agreed" : "plan",
                "\n");
}

}  // namespace

// The streams' owner is told apart by the transport: it says where memory lies.
const ReducerOptions& checked(const ReducerOptions& options, Device device) {
  const Stream* const stream = options.stream;
  const bool on_gpu = device.type == DeviceType::kCuda;
  check(options.streams >= 1 && options.streams <= kMostStreams, "reducer: streams is ",
        options.streams, ", must be in [1, ", kMostStreams, "]");
  check(on_gpu == (stream != nullptr) && (!on_gpu || stream->device() == device),
        "reducer: stream is ", stream == nullptr ? "null" : "of " + name_of(stream->device()),
        ", expected ", on_gpu ? "one of " + name_of(device) : "null",
        ", because the transport carries memory of ", name_of(device));
  check(!on_gpu || options.launch_order == LaunchOrder::kPlan,
        "reducer: launch_order is agreed, expected plan: on a GPU nobody waits for what other ranks "
        "say");
  return options;
}

void agree_on(const Plan& plan, const ReducerOptions& options, Transport& over, Context& context) {
  check_plan(plan);
  over.agree("plan", agreement_text(plan, options), context);
}

void check_same_parameters(const Plan& old, const Plan& next) {
  const bool same = std::ranges::equal(
      old.parameters, next.parameters,
      [](const ParamInfo& x, const ParamInfo& y) { return x.name == y.name && x.shape == y.shape; });
  check(same && old.dtype == next.dtype,
        "set_plan: the new plan's parameters or dtype differ from the old one's, expected the same");
}

}  // namespace gradwire
