#pragma once
// From a setting that works with a small batch, the setting for a large one over the same epochs:
// which optimizer, which rate, how long to warm up. No more than published rules put together: a
// start that needs no tuning, not the end of it.

#include <optional>
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
  /// Whether the examples that do not fill an epoch's last batch are left out of it, as a loader
  /// with drop_last does; else they are a step too. Steps are counted so of both batches.
  bool drop_last = true;
  /// Of the gradients, in examples, where it was measured: NoiseScale::value(). Above it rates
  /// hardly grow.
  std::optional<double> noise_scale = std::nullopt;
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
///   by more than its trust coefficient lets it where k times is too much (You et al., arXiv
///   1708.03888); larc likewise;
/// - lars and lamb at sqrt(k) times the rate (as the papers scale theirs; You et al., arXiv
///   1904.00962), but no farther than what is known to work, unless the small batch's rate was
///   above it: lamb to 0.04, the paper's at 32768; lars to where a step, its momentum included,
///   moves a layer by a fifth of its size, which is what larc's coefficient, 0.02 with momentum
///   0.9, lets it;
/// - lamb higher than that where its steps, each of which moves a layer by the rate times its own
///   size, would no longer add up to what they did, or to that size: a run of so few steps cannot
///   go as far however well they are aimed. At most 0.04 as well;
/// - adamw at sqrt(k) times the rate, with 1 - beta2 and epsilon that follow (Malladi et al., arXiv
///   2205.10287): 1 - beta2 is k times as large, at most 1/2, and epsilon 1/sqrt(k) times. beta1
///   stays: against the same curvature 1/2 in place of 0.9 would have to step 6 times shorter, the
///   largest stable rate being in proportion to (1 + beta1) / (1 - beta1) (Cohen et al., arXiv
///   2207.14484), and noise that it averages is less by itself;
/// - with a noise scale N, in the place of k: (1 + N / small batch) / (1 + N / batch) (McCandlish
///   et al., arXiv 1812.06162), which is k far below it and grows no more far above. What LAMB's
///   steps add up to and AdamW's beta2 follow the batch all the same;
/// - as many warm-up steps as the small batch took, at least 5/90 of the run's (arXiv 1706.02677)
///   and at most 20/90 (arXiv 1904.00962, ResNet-50 at 32768); then a linear decay.
/// With a batch that is no larger, what worked is given back.
/// @throws InvalidArgument for an optimizer without gradients (diloco), a rate, batch, number of
/// examples or of epochs or noise scale that is not positive, a batch above the examples, and a
/// warm-up that is longer than the run.
LargeBatch large_batch(const SmallBatch& small, uint64_t batch);

}  // namespace gradwire
