#include "bench/trainer/train.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <optional>

#include "bench/trainer/checkpoint.h"
#include "bench/trainer/data.h"
#include "bench/trainer/group_checks.h"
#include "bench/trainer/host_verbs.h"
#include "bench/trainer/math.h"
#include "bench/trainer/network.h"
#include "bench/trainer/run_events.h"
#include "bench/trainer/step_metrics.h"
#include "bench/trainer/updates.h"
#include "gradwire/kernels/core/error.h"
#include "gradwire/optimizers/schedule.h"

namespace trainer {
namespace {

using Clock = std::chrono::steady_clock;
using gradwire::ParamId;

NetworkShape shape_of(const Options& options, const DataFolder& data) {
  return {.image = {.channels = data.train.channels,
                    .rows = data.train.rows,
                    .columns = data.train.columns},
          .convolutions = options.convolutions,
          .hidden = options.hidden,
          .classes = data.classes};
}

size_t rows(const Options& options) { return std::max<size_t>(options.batch_size, 128); }

// Where the transport carries memory, there a rank computes.
std::unique_ptr<gradwire::Stream> make_stream(const RankInputs& in) {
  const gradwire::Device device = in.transport.traits().device;
  return device.type == gradwire::DeviceType::kCuda
             ? gradwire::cuda::make_stream(device.index)
             : gradwire::make_inline_stream(in.options.threads);
}

// Ends the group with the exception being handled, and throws it on.
[[noreturn]] void end_group(const RankInputs& in) {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    const NetworkShape shape = shape_of(in.options, in.data);
    const std::string message = gradwire::concat(
        "memory: there is too little for a model of ", Network::count_parameters(shape),
        " parameters, which takes ", Network::count_bytes(shape, rows(in.options)),
        " bytes with its activations and more for the exchange and the optimizer, expected a ",
        "smaller --hidden or --batch-size");
    in.transport.abort(message);
    throw gradwire::InvalidArgument(message);
  } catch (const std::exception& error) {
    in.transport.abort(error.what());
    throw;
  }
}

// Ranks that are threads have the same options and data anyhow.
void compare_settings(const RankInputs& in) {
  if (in.options.transport != "in_process") {
    const auto stream = make_stream(in);
    gradwire::Workspace workspace(*stream);
    gradwire::Context context{*stream, workspace};
    check_same_settings(common_settings(in.options, in.data), in.transport, context);
  }
}

class Training {
 public:
  explicit Training(const RankInputs& in);

  void run();

 private:
  void join();
  /// Whether all ranks have the same parameters behind step `steps_`.
  bool together() const;
  void begin_step();
  void step();
  void settle();
  void after_step();
  void evaluate_now();
  void compare_parameters();
  double learning_rate(uint64_t step) const;
  Moment now() const {
    return {.step = steps_, .epoch = (steps_ - 1) / steps_per_epoch_ + 1, .seconds = seconds_};
  }
  uint64_t interface_bytes() const;
  void resume();
  void save_checkpoint();
  void tell_start();
  void tell_decisions();
  void tell_end();

  RankInputs in_;
  RunEvents events_{in_};
  const Options& options_;
  Standardiser standardise_;
  BatchSampler sampler_;  // before the model, so that its check comes before any allocation
  std::unique_ptr<gradwire::Stream> stream_ = make_stream(in_);
  const bool on_gpu_ = stream_->device().type == gradwire::DeviceType::kCuda;
  std::unique_ptr<Math> math_ = make_math(*stream_);
  Network model_;
  gradwire::Workspace workspace_{*stream_};
  gradwire::Context context_{*stream_, workspace_};
  Updates updates_{options_, in_.transport, model_, context_};
  std::unique_ptr<Examples> training_, test_;
  std::string interface_;  // empty: not counted
  Checkpoints checkpoints_{options_.checkpoint, options_.keep_checkpoints, in_.transport, context_};
  std::optional<uint64_t> resumed_at_;
  uint64_t saved_at_ = 0;  // step of the last checkpoint
  uint64_t steps_per_epoch_;
  uint64_t total_steps_;
  uint64_t steps_ = 0;               // done, on a GPU enqueued
  std::vector<StepMetrics> untold_;  // of the last steps
  StepMoments::Time untold_since_;   // when the first of them began
  double seconds_ = 0;               // training clock: steps, and what auto probes before
  bool finished_ = false;
  MetricsMean metrics_;
  std::optional<uint64_t> evaluated_at_, compared_at_;
  Evaluation evaluation_;
  std::optional<double> seconds_to_target_;
};

Training::Training(const RankInputs& in)
    : in_(in),
      options_(in.options),
      standardise_(in.data.train),
      sampler_({.examples = in.data.train.count,
                .batch_size = in.options.batch_size,
                .world_size = static_cast<size_t>(in.transport.world_size()),
                .seed = in.options.seed},
               static_cast<size_t>(in.transport.rank())),
      model_(shape_of(in.options, in.data), rows(in.options), *math_),
      training_(math_->examples(in.data.train, standardise_, in.options.batch_size)),
      test_(math_->examples(in.data.test, standardise_, model_.max_batch())),
      steps_per_epoch_(in.data.train.count /
                       (in.options.batch_size * static_cast<size_t>(in.transport.world_size()))),
      total_steps_(steps_per_epoch_ * in.options.epochs) {
  if (options_.max_steps > 0) {
    total_steps_ = std::min(total_steps_, options_.max_steps);
  }
  // The loopback is every rank's: its counter would show the whole group's traffic.
  if (options_.transport != "in_process" && options_.group.network_interface != "lo") {
    interface_ = options_.group.network_interface;
  }
  model_.initialise(options_.seed);
}

void Training::join() {
  const auto begin = Clock::now();
  updates_.join();
  const std::chrono::duration<double> joining = Clock::now() - begin;
  seconds_ = updates_.chooses() ? joining.count() : 0;  // auto probes, for the training's sake
  if (options_.resume) {
    resume();
  }
  tell_start();
  meet("start", in_.transport, context_);
}

void Training::resume() {
  const Position position = checkpoints_.load(model_, updates_);
  steps_ = position.steps_at(steps_per_epoch_);
  seconds_ += position.seconds;
  if (position.seconds_to_target >= 0) {
    seconds_to_target_ = position.seconds_to_target;
  }
  resumed_at_ = saved_at_ = steps_;
  check_equal_on_all_ranks(steps_, in_.transport, context_);
  gradwire::check(steps_ < total_steps_, options_.checkpoint, ": the checkpoint is of step ",
                  steps_, " of ", total_steps_, ", expected more --epochs or --max-steps");
}

void Training::save_checkpoint() {
  const Position position{.steps = steps_,
                          .steps_per_epoch = steps_per_epoch_,
                          .world_size = static_cast<uint64_t>(in_.transport.world_size()),
                          .seconds = seconds_,
                          .seconds_to_target = seconds_to_target_.value_or(-1)};
  const std::string folder = checkpoints_.save(position, model_, updates_);
  saved_at_ = steps_;
  events_.checkpoint(now(), folder);
}

double Training::learning_rate(uint64_t step) const {
  if (options_.schedule == Schedule::kConstant) {
    return gradwire::warmup(options_.learning_rate, step, options_.warmup_steps);
  }
  return gradwire::PolynomialSchedule{.base = options_.learning_rate,
                                      .warmup_steps = options_.warmup_steps,
                                      .total_steps = total_steps_}
      .at(step);
}

uint64_t Training::interface_bytes() const {
  return interface_.empty() ? 0 : interface_bytes_sent(interface_);
}

bool Training::together() const {
  return !updates_.has_local_steps() || steps_ % options_.local_steps == 0 ||
         steps_ >= total_steps_;
}

void Training::begin_step() {
  const auto begin = Clock::now();
  if (updates_.begin_step()) {
    seconds_ += std::chrono::duration<double>(Clock::now() - begin).count();
    events_.plan(steps_, updates_.reducer()->plan());
  }
}

void Training::step() {
  StepMetrics metrics;
  const uint64_t interface_before = interface_bytes();
  const double cpu_before = process_cpu_ms();
  const auto begin = Clock::now();
  // [step]
  const auto labels = training_->take(sampler_.batch(steps_), model_.inputs());
  model_.forward(labels);
  const auto forward_end = Clock::now();
  model_.backward(labels, [&](ParamId p) { updates_.gradient_ready(p); });
  const auto backward_end = Clock::now();
  updates_.prepare();
  const auto prepare_end = Clock::now();
  updates_.exchange();
  const auto exchange_end = Clock::now();
  updates_.apply(learning_rate(steps_));
  // [step-end]
  const auto local_end = Clock::now();
  ++steps_;
  if (updates_.has_local_steps() && together()) {
    updates_.outer_step();
  }
  const auto end = Clock::now();
  const gradwire::StepTrace* trace = nullptr;
  if (updates_.reducer() != nullptr && together()) {
    metrics.add_trace(*(trace = updates_.last_exchange()));
  }
  const auto waited = updates_.has_local_steps() ? end : exchange_end;
  const StepMoments at{begin,        forward_end, backward_end, prepare_end,
                       exchange_end, local_end,   end,          waited};
  metrics.add_times(at);
  metrics.cpu_ms = process_cpu_ms() - cpu_before;
  if (!interface_.empty()) {
    metrics.interface_bytes_sent = static_cast<double>(interface_bytes() - interface_before);
  }
  if (untold_.empty()) {
    untold_since_ = begin;
  }
  untold_.push_back(metrics);
  if (on_gpu_) {
    if (untold_.size() == Network::kResults) {
      settle();
    }
    return;  // the host has only seen how long it took to enqueue
  }
  settle();
  events_.timeline(steps_, at, trace);
  tell_decisions();
}

// Tells of the steps that have not been told of. On a GPU it waits for them first, and they took
// the same time each: as much as the host has seen go by.
void Training::settle() {
  if (untold_.empty()) {
    return;
  }
  updates_.synchronize();
  const std::vector<BatchResult> results = model_.last_results(untold_.size());
  if (on_gpu_) {
    const std::chrono::duration<double, std::milli> all = Clock::now() - untold_since_;
    for (StepMetrics& step : untold_) {
      step.keep_only_step_time(all.count() / static_cast<double>(untold_.size()));
    }
  }
  const uint64_t last = steps_;
  steps_ -= untold_.size();
  for (size_t i = 0; i < untold_.size(); ++i) {
    ++steps_;
    seconds_ += untold_[i].step_ms / 1000;
    metrics_.add(untold_[i]);
    events_.step(now(), untold_[i], results[i].loss);
  }
  steps_ = last;
  untold_.clear();
}

void Training::after_step() {
  const bool epoch_end = steps_ % steps_per_epoch_ == 0;
  finished_ = steps_ >= total_steps_;
  if (!together()) {
    return;  // ranks are compared, and evaluated, where they are the same
  }
  const bool due = options_.eval_every == 0 ? epoch_end : steps_ % options_.eval_every == 0;
  const bool save =
      options_.checkpoint_every == 0 ? epoch_end : steps_ >= saved_at_ + options_.checkpoint_every;
  if (due || epoch_end || save || finished_) {
    settle();
  }
  if (due || finished_) {
    evaluate_now();
  }
  if (epoch_end || finished_) {
    compare_parameters();
  }
  if (!options_.checkpoint.empty() && (save || finished_)) {
    save_checkpoint();
  }
}

void Training::evaluate_now() {
  evaluation_ = evaluate(model_, *test_, in_.transport, context_);
  events_.evaluate(now(), evaluation_);
  // The accuracy has the same bits on every rank, so all take the same decision.
  const bool reached =
      options_.target_accuracy > 0 && evaluation_.accuracy >= options_.target_accuracy;
  if (reached && !seconds_to_target_.has_value()) {
    seconds_to_target_ = seconds_;
    events_.target(now(), evaluation_.accuracy);
  }
  finished_ = finished_ || (reached && options_.stop_at_target);
}

void Training::compare_parameters() {
  const uint64_t hash = fnv1a(std::as_bytes(model_.values()));
  std::optional<bool> equal;  // ranks that train alone differ, and may
  if (options_.exchange_gradients) {
    check_equal_on_all_ranks(hash, in_.transport, context_);
    equal = true;
  }
  events_.epoch(now(), hash, equal);
}

void Training::run() {
  try {
    join();
    while (!finished_) {
      in_.signals.check();
      begin_step();
      step();
      const auto behind = Clock::now();
      after_step();
      updates_.leave_out(Clock::now() - behind);
    }
    tell_end();
  } catch (const std::exception&) {
    // Before the reducer goes: its destructor waits for buckets that peers may never answer.
    end_group(in_);
  }
  if (!options_.chrome_trace.empty() && updates_.reducer() != nullptr) {
    const int rank = in_.transport.rank();
    write_file(of_rank(options_.chrome_trace, rank),
               updates_.reducer()->trace().to_chrome_json(rank));
  }
}

void Training::tell_start() {
  events_.start({.parameters = model_.parameter_count(),
                 .steps_per_epoch = steps_per_epoch_,
                 .interface = interface_,
                 .resumed_at = resumed_at_},
                updates_.plan());
  tell_decisions();  // of one rank alone there is one before any step
}

void Training::tell_decisions() {
  for (const gradwire::planner::Decision& decision : updates_.decisions()) {
    events_.decision(steps_, decision);  // the planner's own count begins anew with every run
  }
}

void Training::tell_end() {
  events_.done(
      {.at = now(),
       .epochs = steps_ / steps_per_epoch_,
       .accuracy = evaluation_.accuracy,
       .seconds_to_target = seconds_to_target_,
       .mean = metrics_.mean(),
       .skipped_steps = updates_.reducer() == nullptr ? 0 : updates_.reducer()->skipped_steps()});
}

}  // namespace

void train(const RankInputs& inputs) {
  try {
    compare_settings(inputs);
    Training(inputs).run();
  } catch (const std::exception&) {
    end_group(inputs);  // also what the constructor throws
  }
}

}  // namespace trainer
