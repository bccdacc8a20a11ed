#pragma once
// What a rank's run tells: the events of README.md. Every rank says how it begins and ends, rank 0
// the rest.

#include <cstdint>
#include <optional>
#include <string>

#include "bench/trainer/group_checks.h"
#include "bench/trainer/step_metrics.h"
#include "bench/trainer/train.h"
#include "gradwire/comm/plan.h"
#include "gradwire/planner/decision.h"

namespace trainer {

/// Where a run is.
struct Moment {
  uint64_t step = 0;
  uint64_t epoch = 0;  ///< from 1
  double seconds = 0;  ///< training clock
};

/// What only the run knows of its start.
struct Started {
  size_t parameters = 0;
  uint64_t steps_per_epoch = 0;
  std::string interface;  ///< empty: not counted
  std::optional<uint64_t> resumed_at;
};

/// How a run has ended.
struct Ended {
  Moment at;
  uint64_t epochs = 0;  ///< complete ones
  double accuracy = 0;
  std::optional<double> seconds_to_target;
  StepMetrics mean;
  uint64_t skipped_steps = 0;
};

class RunEvents {
 public:
  /// `in` outlives it.
  explicit RunEvents(const RankInputs& in) : in_(in) {}

  void start(const Started& run, const gradwire::Plan& plan) const;
  void plan(uint64_t step, const gradwire::Plan& plan) const;
  void step(const Moment& at, const StepMetrics& metrics, double loss) const;
  /// `trace`: null where nothing was exchanged.
  void timeline(uint64_t step, const StepMoments& at, const gradwire::StepTrace* trace) const;
  void decision(uint64_t step, const gradwire::planner::Decision& decision) const;
  void evaluate(const Moment& at, const Evaluation& found) const;
  void target(const Moment& at, double accuracy) const;
  /// `equal`: nothing where ranks train alone.
  void epoch(const Moment& at, uint64_t parameter_hash, std::optional<bool> equal) const;
  void checkpoint(const Moment& at, const std::string& folder) const;
  void done(const Ended& run) const;

 private:
  bool first() const { return in_.transport.rank() == 0; }

  const RankInputs& in_;
};

}  // namespace trainer
