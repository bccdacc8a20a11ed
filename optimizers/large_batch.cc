#include "gradwire/optimizers/large_batch.h"

#include <algorithm>
#include <cmath>

#include "gradwire/optimizers/spec.h"

namespace gradwire {
namespace {

constexpr double kLeastWarmup = 5.0 / 90.0;
constexpr double kMostWarmup = 0.3;

void check_small(const SmallBatch& small, uint64_t batch) {
  check_spec(small.optimizer);
  check(optimizer_row(small.optimizer.name).exchanges == Exchanged::kGradients,
        "large_batch: the optimizer is ", small.optimizer.name,
        ", expected one that steps on gradients");
  check(std::isfinite(small.learning_rate) && small.learning_rate > 0.0,
        "large_batch: learning_rate is ", small.learning_rate, ", must be finite and > 0");
  check(small.batch >= 1 && batch >= 1, "large_batch: batches are ", small.batch, " and ", batch,
        ", must be at least 1");
  check(std::max(small.batch, batch) <= small.examples, "large_batch: batches are ", small.batch,
        " and ", batch, ", must be at most ", small.examples, ", the number of examples");
  check(std::isfinite(small.epochs) && small.epochs > 0.0, "large_batch: epochs is ", small.epochs,
        ", must be finite and > 0");
  check(small.warmup_epochs >= 0.0 && small.warmup_epochs <= small.epochs,
        "large_batch: warmup_epochs is ", small.warmup_epochs, ", must be in [0, ", small.epochs,
        "], the epochs");
}

/// Whole steps of a run, at least one.
uint64_t steps_of(double epochs, uint64_t examples, uint64_t batch) {
  const double per_epoch = static_cast<double>(examples / batch);
  return std::max<uint64_t>(1, static_cast<uint64_t>(std::llround(epochs * per_epoch)));
}

double farther_from_one(double beta, double times) {
  return 1.0 - std::max(1.0 - beta, std::min(0.5, times * (1.0 - beta)));
}

}  // namespace

LargeBatch large_batch(const SmallBatch& small, uint64_t batch) {
  check_small(small, batch);
  const double times = static_cast<double>(batch) / static_cast<double>(small.batch);
  const uint64_t before = steps_of(small.epochs, small.examples, small.batch);
  const uint64_t total = steps_of(small.epochs, small.examples, batch);
  const auto warmed = static_cast<uint64_t>(
      std::llround(small.warmup_epochs / small.epochs * static_cast<double>(before)));
  LargeBatch large{.optimizer = small.optimizer,
                   .schedule = {.base = small.learning_rate,
                                .warmup_steps = std::min(warmed, total),
                                .total_steps = total},
                   .vectors = {.weight_decay = 0.0, .adapt = false},
                   .why = "The batch is no larger: what worked is kept."};
  if (batch <= small.batch) {
    return large;
  }
  const double root = std::sqrt(times);
  const std::string_view name = small.optimizer.name;
  if (name == "sgd" || name == "larc") {
    if (name == "sgd") {
      large.optimizer = default_spec("larc");
      large.optimizer.momentum = small.optimizer.momentum;
      large.optimizer.nesterov = small.optimizer.nesterov;
      large.optimizer.weight_decay = small.optimizer.weight_decay;
      large.optimizer.max_grad_norm = small.optimizer.max_grad_norm;
      large.optimizer.master = small.optimizer.master;
      large.optimizer.state = small.optimizer.state;
      large.optimizer.min_8bit_size = small.optimizer.min_8bit_size;
    }
    large.schedule.base = scale_linearly(small.learning_rate, small.batch, batch);
    large.why = concat("The rate is ", times, " times as large, as the batch (arXiv 1706.02677); ",
                       "LARC lowers it for layers that it would move too far (arXiv 1708.03888).");
  } else {
    large.schedule.base = scale_by_root(small.learning_rate, small.batch, batch);
    large.why = concat("The rate is ", root, " times as large, the root of the batch's ", times,
                       name == "adamw" ? " (arXiv 2205.10287)." : " (arXiv 1904.00962).");
  }
  if (name == "adamw") {
    large.optimizer.beta1 = farther_from_one(small.optimizer.beta1, times);
    large.optimizer.beta2 = farther_from_one(small.optimizer.beta2, times);
    large.optimizer.epsilon = small.optimizer.epsilon / root;
    large.why += " 1 - beta and epsilon follow it.";
  }
  const auto share = [&](double part) {
    return static_cast<uint64_t>(std::llround(part * static_cast<double>(total)));
  };
  large.schedule.warmup_steps =
      std::min(std::max({warmed, share(kLeastWarmup), uint64_t{1}}), share(kMostWarmup));
  large.why += concat(" It warms up for ", large.schedule.warmup_steps, " of ", total,
                      " steps, then falls to 0.");
  return large;
}

}  // namespace gradwire
