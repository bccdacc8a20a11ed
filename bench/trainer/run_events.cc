#include "bench/trainer/run_events.h"

#include <unistd.h>

#include "gradwire/kernels/core/error.h"

namespace trainer {
namespace {

JsonLine line_at(std::string_view event, const Moment& at) {
  JsonLine line(event);
  line.add("step", at.step).add("epoch", at.epoch).add("seconds", at.seconds);
  return line;
}

JsonLine& add_plan(JsonLine& line, const gradwire::Plan& plan) {
  return line.add("plan_fingerprint", to_hex(plan.fingerprint())).add("plan", plan.describe());
}

}  // namespace

void RunEvents::start(const Started& run, const gradwire::Plan& plan) const {
  const Options& o = in_.options;
  const bool outer = o.exchange_gradients && o.local_steps > 1;
  JsonLine line("start");
  line.add("rank", in_.transport.rank())
      .add("pid", static_cast<int64_t>(getpid()))
      .add("world_size", in_.transport.world_size())
      .add("threads", o.threads)
      .add("transport", in_.transport.name())
      .add("method", method_text(o))
      .add("exchange", plan.buckets.front().exchange)
      .add("optimizer", gradwire::to_string(o.optimizer))
      .add("learning_rate", o.learning_rate)
      .add("local_steps", o.local_steps)
      .add("outer", outer ? std::optional(gradwire::to_string(o.outer)) : std::nullopt)
      .add("outer_learning_rate", o.outer_learning_rate)
      .add("parameters", run.parameters)
      .add("train_examples", in_.data.train.count)
      .add("test_examples", in_.data.test.count)
      .add("steps_per_epoch", run.steps_per_epoch)
      .add("interface", run.interface.empty() ? std::nullopt : std::optional(run.interface))
      .add("overlap", o.overlap)
      .add("no_exchange", !o.exchange_gradients)
      .add("resumed_at", run.resumed_at);
  in_.events.write(add_plan(line, plan));
}

void RunEvents::plan(uint64_t step, const gradwire::Plan& plan) const {
  if (first()) {
    JsonLine line("plan");
    line.add("step", step).add("exchange", plan.buckets.front().exchange);
    in_.events.write(add_plan(line, plan));
  }
}

void RunEvents::step(const Moment& at, const StepMetrics& metrics, double loss) const {
  if (first()) {
    JsonLine line = line_at("step", at);
    line.add("loss", loss);
    add_step_fields(metrics, line);
    in_.events.write(line);
  }
}

void RunEvents::timeline(uint64_t step, const StepMoments& at,
                         const gradwire::StepTrace* trace) const {
  if (first()) {
    in_.events.write(trainer::timeline(step, at, trace));
  }
}

void RunEvents::decision(uint64_t step, const gradwire::planner::Decision& decision) const {
  if (first()) {
    in_.events.write(JsonLine("decision")
                         .add("step", step)
                         .add("what", decision.what)
                         .add("from", decision.from)
                         .add("to", decision.to)
                         .add("reason", decision.reason)
                         .add("numbers", decision.numbers));
  }
}

void RunEvents::evaluate(const Moment& at, const Evaluation& found) const {
  if (first()) {
    in_.events.write(
        line_at("evaluate", at).add("accuracy", found.accuracy).add("loss", found.loss));
  }
}

void RunEvents::target(const Moment& at, double accuracy) const {
  if (first()) {
    in_.events.write(line_at("target", at).add("accuracy", accuracy));
  }
}

void RunEvents::epoch(const Moment& at, uint64_t parameter_hash, std::optional<bool> equal) const {
  if (first()) {
    in_.events.write(JsonLine("epoch")
                         .add("epoch", at.epoch)
                         .add("seconds", at.seconds)
                         .add("parameter_hash", to_hex(parameter_hash))
                         .add("hashes_equal", equal));
  }
}

void RunEvents::checkpoint(const Moment& at, const std::string& folder) const {
  if (first()) {
    in_.events.write(JsonLine("checkpoint")
                         .add("step", at.step)
                         .add("seconds", at.seconds)
                         .add("folder", folder));
  }
}

void RunEvents::done(const Ended& run) const {
  JsonLine line("done");
  line.add("rank", in_.transport.rank())
      .add("steps", run.at.step)
      .add("epochs", run.epochs)
      .add("seconds", run.at.seconds)
      .add("final_accuracy", run.accuracy)
      .add("seconds_to_target", run.seconds_to_target);
  add_mean_fields(run.mean, line);
  in_.events.write(line.add("skipped_steps", run.skipped_steps));
}

}  // namespace trainer
