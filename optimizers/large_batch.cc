#include "gradwire/optimizers/large_batch.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "gradwire/optimizers/spec.h"

namespace gradwire {
namespace {

constexpr double kLeastWarmup = 5.0 / 90.0;
constexpr double kMostWarmup = 20.0 / 90.0;
constexpr double kLargestLamb = 0.04;
constexpr double kLargestLars = 0.02 / (1.0 - 0.9);  // a step with its momentum, of a layer's size

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
  const double noise = small.noise_scale.value_or(1.0);
  check(std::isfinite(noise) && noise > 0.0, "large_batch: noise_scale is ", noise,
        ", must be finite and > 0");
}

/// How much more a step may do at `batch`.
double gain(const SmallBatch& small, uint64_t batch) {
  const auto from = static_cast<double>(small.batch), to = static_cast<double>(batch);
  return small.noise_scale ? (1.0 + *small.noise_scale / from) / (1.0 + *small.noise_scale / to)
                           : to / from;
}

/// The rate at which `total` steps of LAMB add up to what `before` steps at `rate` did, or to a
/// layer's own size, the least of them: rates fall to 0, so that a step's is half in the mean.
double rate_that_goes_as_far(double rate, uint64_t before, uint64_t total) {
  const double moved = std::min(1.0, rate / 2.0 * static_cast<double>(before));
  return std::min(kLargestLamb, moved / (static_cast<double>(total) / 2.0));
}

/// Above it a step moves layers farther than any that was published as good.
double largest_rate(const OptimizerSpec& spec) {
  return spec.name == "lamb" ? kLargestLamb
         : spec.name == "lars"
             ? kLargestLars * (1.0 - spec.momentum) / spec.trust_coefficient.value()
             : std::numeric_limits<double>::infinity();
}

/// Of a run, at least one.
uint64_t steps_of(const SmallBatch& run, uint64_t batch) {
  const uint64_t partial = run.drop_last || run.examples % batch == 0 ? 0 : 1;
  const auto per_epoch = static_cast<double>(run.examples / batch + partial);
  return std::max<uint64_t>(1, static_cast<uint64_t>(std::llround(run.epochs * per_epoch)));
}

/// Where gain() is from, if not from the batch alone.
std::string left_by_noise(const SmallBatch& small, double times) {
  return small.noise_scale ? concat("what a noise scale of ", *small.noise_scale,
                                    " leaves of the batch's ", times, " (arXiv 1812.06162)")
                           : "";
}

double farther_from_one(double beta, double times) {
  return 1.0 - std::max(1.0 - beta, std::min(0.5, times * (1.0 - beta)));
}

}  // namespace

LargeBatch large_batch(const SmallBatch& given, uint64_t batch) {
  SmallBatch small = given;
  small.optimizer = filled(given.optimizer);
  check_small(small, batch);
  const double times = static_cast<double>(batch) / static_cast<double>(small.batch);
  const uint64_t before = steps_of(small, small.batch);
  const uint64_t total = steps_of(small, batch);
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
  const double grown = gain(small, batch), root = std::sqrt(grown);
  const std::string left = left_by_noise(small, times);
  const std::string squared =
      left.empty() ? concat("the batch's ", times) : concat(grown, ", ", left);
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
    large.schedule.base = grown * small.learning_rate;
    large.why =
        concat("The rate is ", grown, " times as large, ",
               left.empty() ? "as the batch (arXiv 1706.02677)" : left,
               "; LARC lowers it for layers that it would move too far (arXiv 1708.03888).");
  } else {
    const double most = std::max(small.learning_rate, largest_rate(small.optimizer));
    large.schedule.base = std::min(root * small.learning_rate, most);
    const bool less = large.schedule.base < root * small.learning_rate;
    large.why = concat(
        "The rate is ", less ? concat("at its largest, ", most, ": ") : "", root,
        " times as large, the root (arXiv ", name == "adamw" ? "2205.10287" : "1904.00962", ") of ",
        squared,
        !less            ? "."
        : name == "lars" ? ", would move layers farther than LARC's coefficient of 0.02 lets them."
                         : ", would be more than the 0.04 of the paper at 32768.");
  }
  if (name == "adamw") {
    large.optimizer.beta2 = farther_from_one(small.optimizer.beta2, times);
    large.optimizer.epsilon = small.optimizer.epsilon.value() / root;
    large.why +=
        " 1 - beta2 grows as the batch, at most to 1/2, and epsilon falls as the rate grows.";
  }
  const double as_far = rate_that_goes_as_far(small.learning_rate, before, total);
  if (name == "lamb" && as_far > large.schedule.base) {
    large.schedule.base = as_far;
    large.why =
        concat("The rate is ", as_far, ", at which ", total, " steps move a layer as far as the ",
               before, " did, or by its own size: ", root,
               " times as large, the root (arXiv 1904.00962) of ", squared, ", does not.");
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
