// The planner's: no_planner.cc takes its place in a build without one.

#include <algorithm>
#include <iterator>
#include <optional>

#include "bench/trainer/pipeline.h"
#include "gradwire/planner/autopilot.h"

namespace trainer {
namespace {

using gradwire::planner::Autopilot;
using gradwire::planner::AutopilotOptions;
using gradwire::planner::Decision;

// A shaped link lets a burst pass at once: what is timed must be much longer.
constexpr std::chrono::milliseconds kProbe{200};
// Behind a checkpoint: long enough that what is measured then is not the start of a job.
constexpr size_t kKeptSteps = 200;

AutopilotOptions options_of(const Options& options) {
  AutopilotOptions of{.reducer = {.threads = options.threads}, .probe = {.budget = kProbe}};
  of.pilot.specs = options.automatic->specs;
  of.pilot.window_steps = options.automatic->window_steps;
  of.pilot.plan = {.bucket_bytes = options.bucket_kib * 1024, .seed = options.seed};
  // One that clips divides by a norm.
  const bool linear = options.optimizer.name == "sgd" && options.optimizer.max_grad_norm == 0;
  of.pilot.updates =
      linear ? gradwire::planner::Updates::kLinear : gradwire::planner::Updates::kScaled;
  return of;
}

class AutoPipeline final : public Pipeline {
 public:
  AutoPipeline(const Options& options, std::vector<gradwire::ParamInfo> parameters,
               gradwire::Transport& transport)
      : autopilot_(std::move(parameters), transport, options_of(options)) {}

  gradwire::Reducer& reducer() override { return autopilot_.reducer(); }
  void grad_ready(gradwire::ParamId p) override { autopilot_.grad_ready(p); }
  bool wait(double loss) override {
    const uint64_t epoch = autopilot_.epoch();
    autopilot_.wait(loss);
    return autopilot_.epoch() != epoch;
  }
  const gradwire::StepTrace& last_step() override { return autopilot_.last_step(); }
  bool chooses() const override { return true; }
  void keep(gradwire::Plan plan, uint64_t steps) override {
    autopilot_.keep(std::move(plan), kKeptSteps, steps);
  }
  void leave_out(std::chrono::steady_clock::duration time) override { autopilot_.leave_out(time); }

  // The log forgets its oldest ones; those of one window have its last step.
  std::vector<Decision> decisions() override {
    std::vector<Decision> fresh;
    const uint64_t steps = autopilot_.pilot().steps();
    std::ranges::copy_if(autopilot_.pilot().log(), std::back_inserter(fresh),
                         [&](const Decision& decision) { return decision.step == steps; });
    const size_t told = told_at_ == steps ? std::min(told_, fresh.size()) : 0;
    told_at_ = steps;
    told_ = fresh.size();
    fresh.erase(fresh.begin(), fresh.begin() + static_cast<ptrdiff_t>(told));
    return fresh;
  }

 private:
  Autopilot autopilot_;
  std::optional<uint64_t> told_at_;
  size_t told_ = 0;  // of that step's
};

}  // namespace

std::unique_ptr<Pipeline> make_auto_pipeline(const Options& options,
                                             std::vector<gradwire::ParamInfo> parameters,
                                             gradwire::Transport& transport) {
  return std::make_unique<AutoPipeline>(options, std::move(parameters), transport);
}

}  // namespace trainer
