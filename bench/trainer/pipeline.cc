#include "bench/trainer/pipeline.h"

namespace trainer {
namespace {

class PlannedPipeline final : public Pipeline {
 public:
  PlannedPipeline(gradwire::Plan plan, gradwire::Transport& transport,
                  gradwire::ReducerOptions options)
      : reducer_(std::move(plan), transport, options) {}

  gradwire::Reducer& reducer() override { return reducer_; }
  void grad_ready(gradwire::ParamId p) override { reducer_.grad_ready(p); }
  bool wait(double) override {
    reducer_.wait();
    return false;
  }
  const gradwire::StepTrace& last_step() override { return reducer_.trace().last(); }

 private:
  gradwire::Reducer reducer_;
};

}  // namespace

std::unique_ptr<Pipeline> make_pipeline(const Options& options, gradwire::Plan plan,
                                        gradwire::Transport& transport, gradwire::Stream& stream) {
  if (options.automatic.has_value()) {
    return make_auto_pipeline(options, std::move(plan.parameters), transport);
  }
  gradwire::ReducerOptions of{.threads = options.threads, .streams = options.streams};
  if (stream.device().type == gradwire::DeviceType::kCuda) {
    of.stream = &stream;
  }
  return std::make_unique<PlannedPipeline>(std::move(plan), transport, of);
}

}  // namespace trainer
