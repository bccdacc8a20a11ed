#pragma once
// What a Reducer is made of, and the order of its steps.

#include <deque>
#include <exception>
#include <optional>
#include <string>

#include "gradwire/comm/internal/bucket_pipeline.h"
#include "gradwire/comm/internal/epoch.h"
#include "gradwire/comm/internal/gradient_writer.h"
#include "gradwire/comm/internal/measurements.h"
#include "gradwire/comm/internal/reached_bits.h"
#include "gradwire/comm/internal/step_gradients.h"
#include "gradwire/comm/reducer.h"
#include "gradwire/kernels/core/of_process.h"

namespace gradwire {

struct Reducer::State {
  State(Plan plan, Transport& transport, ReducerOptions the_options);
  /// Peers cannot finish a step that this rank leaves, and are told.
  ~State();

  void throw_if_finished() const;
  /// The same, and for a gradient that is ready already.
  void check_not_ready(std::string_view call, ParamId p) const;
  /// The same, and where a step has begun.
  void check_between_steps(std::string_view call) const;
  void refuse_on_gpu(std::string_view call, std::string_view because) const;
  bool on_gpu() const { return options.stream != nullptr; }
  /// Of this reducer's bucket. @throws InvalidArgument, in the name of `call`, for an unknown one.
  Bucket& bucket_of(std::string_view call, BucketId b);

  // In a step.
  void set_ready(ParamId p);
  /// Ready with a zero gradient, or with what was accumulated.
  void set_unused(ParamId p);
  void set_bucket_ready(BucketId b, Gradient gradient);
  StepOutcome wait();

  // Between steps.
  /// Also before the first bucket of a step leaves: where as many steps are committed as the plan's
  /// specs stay what they are for, buckets become those of the next ones. Ranks say nothing to each
  /// other: all have committed the same. On a GPU it waits from the first step on that may be the one.
  void begin_stage();
  void set_plan(Plan plan);
  void load(const OpenCheckpoint& open);
  Rebuilt rebuild(Transport& survivors);
  void synchronize();

 private:
  void adopt(Epoch next);
  void begin_plan();
  void make_reached_bits();
  void begin_step();
  /// Unused are those never ready; ranks compare them behind all buckets.
  void complete_gradients();
  /// On the CPU: commits, or not for `bad`.
  void conclude(const Bucket* bad);
  std::string reason_of_leaving() const;

 public:
  const OfProcess process;
  const ReducerOptions options;
  const int exceptions_before = std::uncaught_exceptions();  // on their way when this was made
  Trace trace;
  StepTrace times;  // of the step that wait() concludes; kept for its memory
  uint64_t step = 0;
  int no_sync = 0;               // scopes that live
  bool has_parameters = true;    // false: rebuild() committed a step whose mean never came
  Buffer widened;                // what residual() returned last, where it is kept in fewer bits
  StepGradients gradients;
  Measurements measured;
  std::optional<ReachedBits> reached;  // where ranks compare them
  GradientWriter writer;
  Epoch epoch;
  std::deque<Bucket> retired;  // of the stage before, as long as their payloads may be read
  BucketPipeline pipeline;     // goes first: its threads use the others
};

}  // namespace gradwire
