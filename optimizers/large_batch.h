#pragma once
// From a setting that works with a small batch, the setting for a large one over the same epochs:
// which optimizer, which rate, how long to warm up. No more than published rules put together: a
// start that needs no tuning, not the end of it.

#include <string>

#include "gradwire/optimizers/optimizer.h"
#include "gradwire/optimizers/schedule.h"

namespace gradwire {

/// A run that works.
struct SmallBatch {
  OptimizerSpec optimizer;
  double learning_rate = 0.1;  ///< behind its warm-up
  uint64_t batch = 256;        ///< examples of one step on all ranks together
  uint64_t examples = 0;       ///< of the training set
  double epochs = 1.0;
  double warmup_epochs = 0.0;  ///< before the learning rate above is reached
};

struct LargeBatch {
  OptimizerSpec optimizer;
  PolynomialSchedule schedule;  ///< its base is the learning rate, its total the steps of the run
  /// For biases, norms and whatever else has one dimension: neither decay nor layer-wise
  /// adaptation.
  ParamGroup vectors;
  std::string why;  ///< the rules that were used, with their sources, in a sentence each
};

/// What to run at `batch`, k times the small one:
/// - sgd becomes larc at k times the rate (Goyal et al., arXiv 1706.02677), so that no layer moves
/// by
///   more than its trust coefficient lets it where k times is too much (You et al., arXiv
///   1708.03888); larc likewise;
/// - lars and lamb at sqrt(k) times the rate (as the papers scale theirs; You et al., arXiv
///   1904.00962);
/// - adamw at sqrt(k) times the rate, with 1 - beta and epsilon that follow (Malladi et al., arXiv
///   2205.10287): 1 - beta is k times as large, at most 1/2, and epsilon 1/sqrt(k) times;
/// - as many warm-up steps as the small batch took, at least 5/90 of the run's (arXiv 1706.02677)
/// and
///   at most 3/10 (arXiv 1904.00962 warms up for 20 of 64 epochs at 32768); then a linear decay.
/// With a batch that is no larger, what worked is given back.
/// @throws InvalidArgument for an optimizer without gradients (diloco), a rate, batch, number of
/// examples or of epochs that is not positive, a batch above the examples, and a warm-up that is
/// longer than the run.
LargeBatch large_batch(const SmallBatch& small, uint64_t batch);

}  // namespace gradwire
