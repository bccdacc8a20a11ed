// 1-bit Adam, Tang et al., arXiv 2102.02888, and 1-bit LAMB, Li et al., arXiv 2104.06069. For
// freeze_step steps of every parameter they are AdamW and LAMB (adam.cc), on the mean gradient.
// From then on v stays as it is, and the step is linear in the gradient, so that a compressor with
// error feedback loses nothing of it. Of every parameter:
//   prepare:  m_i = b1 m + (1 - b1) g_i, to be exchanged; the mean, as it arrives, is m
//   apply:    u = m^ / (sqrt(v^) + eps) + wd w
//             onebit-adam: w -= lr u
//             onebit-lamb: w -= lr c r u
// c is the average of LAMB's ratios over the steps before, c = b3 c + (1 - b3) ratio from 0, and r
// follows how v would have gone on, with the gradient recovered from the momentum and its last one:
//   g = (m - b1 m') / (1 - b1);  v' = b2 v' + (1 - b2) g^2, from v
//   r = max over the layer of (sqrt(v^) + eps) / (sqrt(v'^) + eps), of which weight decay has no
//   part: r p + 1 - p, p = min(1, ||m^ / (sqrt(v^) + eps)|| / ||u||); then within
//   [factor_min, factor_max], and within factor_threshold of the last r.
// m^ = m / (1 - b1^t), v'^ = v' / (1 - b2^t), v^ = v / (1 - b2^s) and c / (1 - b3^s), s the steps
// that they are averages of; without bias_correction they are m, v', v and c.
//
// onebit-lamb exchanges m_i times the power of two nearest the mean over parameters of the last
// momentum's root mean square over the parameter's own, so that layers that share a bucket are of
// one size; being a power of two it rounds nothing.
//
// 1-bit compression leaves momenta of one magnitude, so that an element whose v froze far below its
// layer's would move as far beyond the others. Neither paper has a remedy; here sqrt(v), where it
// is not 0, is made variance_floor times the root of its mean over the parameter at the least.
//
// A parameter whose gradients begin late takes all back to AdamW or LAMB until it too has made
// freeze_step steps. Clipping (max_grad_norm) is by the mean gradient's norm before the freeze, by
// that of the rank's own gradient after it.

#include <algorithm>
#include <cmath>
#include <optional>

#include "gradwire/optimizers/adam.h"
#include "gradwire/optimizers/onebit_rule.h"
#include "gradwire/optimizers/registry.h"

namespace gradwire {
namespace {

constexpr size_t kMoment = 0, kVariance = 1, kFresh = 2;  // places among the state's names

class OneBit final : public Adam {
 public:
  OneBit(const OptimizerSpec& spec, const std::vector<Parameter>& parameters,
         const std::vector<ParamGroup>& groups)
      : Adam(spec, parameters, groups),
        rule_(onebit_rule(spec)),
        layers_(set().items().size()),
        frozen_(set().items().size()),
        largest_ratios_(set().blocks().size()) {}

  Exchanged exchanges() const override {
    return frozen() ? Exchanged::kMomentum : Exchanged::kGradients;
  }
  Exchanged exchanges(Context& context) const override {
    context.stream.wait();
    return exchanges();
  }

  using Optimizer::prepare;
  void prepare(const StepOptions& options, Context& context) override {
    SteppedOptimizer::prepare(options, context);
    const double gradient_scale = options.gradient_scale;
    context.stream.enqueue([this, gradient_scale, &pool = context.stream.pool()] {
      prepared_scale_.reset();
      if (frozen()) {
        set().check_gradients_in_memory("prepare");
        prepared_scale_ = gradient_scale;
        take_factors(clipping_factor(gradient_scale, pool));
        set().for_each_block(pool, [this](const ParameterSet::Block& block) {
          block.rewrite_gradient([&](const ParameterSet::Piece& piece, std::span<float> out) {
            Moments scratch;
            cpu::local_momentum(operands(block, piece, scratch), frozen_[place(block)], out);
          });
        });
      }
    });
  }

  void state_loaded() override { prepared_scale_.reset(); }

 private:
  struct Layer : OneBitLayer, OneBitCounts {
    float next_factor = 1.0f;  // of the step in progress
    float rate = 0.0f;
  };

  bool layerwise() const { return rule().layerwise; }

  /// Whether every parameter of a step with `ahead` steps more has made freeze_step of them.
  bool frozen(uint64_t ahead = 0) const {
    bool any = false;
    for (const ParameterSet::Item& item : set().items()) {
      if (item.present() && item.steps + ahead < spec().freeze_step) {
        return false;
      }
      any = any || item.present();
    }
    return any;
  }

  void step(const StepOptions& options, ThreadPool& pool) override {
    check(options.add_up == nullptr, spec().name,
          ": add_up is given, expected whole parameters on every rank");
    if (!frozen()) {
      prepared_scale_.reset();
      Adam::step(options, pool);
      end_averages(pool);
      return;
    }
    check(prepared_scale_.has_value(), spec().name,
          ": apply() without prepare(), expected before the exchange of every step once "
          "exchanges() says momentum");
    check(options.gradient_scale == *prepared_scale_, spec().name, ": gradient_scale is ",
          options.gradient_scale, ", must be ", *prepared_scale_,
          ", as prepare() was given, which has read the gradients");
    prepared_scale_.reset();  // behind what refuses the call: the gradients' memory holds momenta
    take_factors(1.0f);
    set().for_each_block(pool, [&](const ParameterSet::Block& block) {
      measure_momentum(block, options.known_finite);
    });
    take_rates(options.learning_rate, pool);
    set().for_each_block_backwards(pool, [&](const ParameterSet::Block& block) { update(block); });
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (set().items()[i].present()) {  // of others next_factor is of an older step, or of none
        layers_[i].factor = layers_[i].next_factor;
      }
    }
  }

  AdamFactors factors(size_t index, float factor) const override {
    const ParameterSet::Item& item = set().items()[index];
    return onebit_factors(rule_, item, item.steps, layers_[index].variance_steps, factor);
  }

  /// Behind a step of AdamW or LAMB, which cannot fail any more.
  void end_averages(ThreadPool& pool) {
    for (size_t i = 0; i < layers_.size(); ++i) {
      const ParameterSet::Item& item = set().items()[i];
      if (item.present()) {
        ++layers_[i].variance_steps;
        average_ratio(item, layers_[i]);
      }
    }
    if (frozen(1)) {
      raise_variances(pool);
      if (layerwise()) {
        begin_fresh(pool);
      }
    }
  }

  /// Takes v where it is not 0 to variance_floor squared times its mean over the parameter.
  void raise_variances(ThreadPool& pool) {
    if (rule_.variance_floor == 0.0) {
      return;
    }
    std::vector<double>& sums = rates_.change_squares;
    set().for_each_block(pool, [&](const ParameterSet::Block& block) {
      double& sum = sums[block.index] = 0.0;
      block.read([&](const ParameterSet::Piece& piece) {
        Moments scratch;
        for (const float v : variance(block, piece, scratch)) {
          sum += static_cast<double>(v);
        }
      });
    });
    set().for_each_block(pool, [&](const ParameterSet::Block& block) {
      const float least =
          least_variance(rule_, sum_of_blocks(*block.item, sums), block.item->value.numel);
      block.read([&](const ParameterSet::Piece& piece) {
        Moments scratch;
        const std::span<float> raised = variance(block, piece, scratch);
        for (float& v : raised) {
          v = raised_variance(v, least);
        }
        states().store(*block.item, piece, {raised}, kVariance);
      });
    });
  }

  void average_ratio(const ParameterSet::Item& item, Layer& layer) {
    if (!layerwise() || !item.adapt) {
      return;
    }
    const LayerNorms norms{std::sqrt(sum_of_blocks(item, rates_.value_squares)),
                           std::sqrt(sum_of_blocks(item, rates_.change_squares))};
    gradwire::average_ratio(rule_, rule(), norms, layer, layer);
  }

  /// v' begins as v, and momenta are measured.
  void begin_fresh(ThreadPool& pool) {
    set().for_each_block(pool, [this](const ParameterSet::Block& block) {
      double& squares = rates_.value_squares[block.index] = 0.0;
      block.read([&](const ParameterSet::Piece& piece) {
        Moments scratch;
        const cpu::FrozenBlock all = operands(block, piece, scratch);
        std::ranges::copy(all.exp_avg_sq, state(*block.item, piece, kFresh).begin());
        squares += cpu::sum_of_squares(all.exp_avg);
      });
    });
    double sum = 0.0, count = 0.0;
    for (const ParameterSet::Item& item : set().items()) {
      const double size = momentum_size(item);
      sum += size;
      count += size > 0.0 ? 1.0 : 0.0;
    }
    for (size_t i = 0; i < layers_.size(); ++i) {
      const double size = momentum_size(set().items()[i]);
      layers_[i].momentum_scale = size > 0.0 ? nearest_power_of_two(sum / count / size) : 1.0f;
    }
  }

  double momentum_size(const ParameterSet::Item& item) const {
    return item.present() ? std::sqrt(sum_of_blocks(item, rates_.value_squares) /
                                      static_cast<double>(item.value.numel))
                          : 0.0;
  }

  void take_factors(float factor) {
    for (size_t i = 0; i < frozen_.size(); ++i) {
      const ParameterSet::Item& item = set().items()[i];
      const Layer& layer = layers_[i];
      frozen_[i] = frozen_factors(rule_, item, layer.momentum_scale, item.steps,
                                  layer.variance_steps, factor);
    }
  }

  std::span<float> variance(const ParameterSet::Block& block, const ParameterSet::Piece& piece,
                            Moments& scratch) const {
    return states().load(*block.item, piece, kVariance, scratch.exp_avg_sq);
  }

  cpu::FrozenBlock operands(const ParameterSet::Block& block, const ParameterSet::Piece& piece,
                            Moments& scratch) const {
    return {piece.value, states().load(*block.item, piece, kMoment, scratch.exp_avg),
            variance(block, piece, scratch), piece.gradient};
  }

  void measure_momentum(const ParameterSet::Block& block, bool finite) {
    if (!block.item->adapt) {
      look_at(block, finite);
      return;
    }
    double& part = rates_.value_squares[block.index] = 0.0;
    double& change = rates_.change_squares[block.index] = 0.0;
    float& largest = largest_ratios_[block.index] = 0.0f;
    block.read([&](const ParameterSet::Piece& piece) {
      Moments scratch;
      const cpu::FrozenSums sums =
          cpu::frozen_sums(operands(block, piece, scratch), state(*block.item, piece, kFresh),
                           frozen_[place(block)]);
      part += sums.gradient_part;
      change += sums.update;
      largest = std::max(largest, sums.largest_ratio);
    });
  }

  void take_rates(double learning_rate, ThreadPool& pool) {
    for (size_t i = 0; i < layers_.size(); ++i) {
      const ParameterSet::Item& item = set().items()[i];
      if (!item.present()) {
        continue;
      }
      if (!std::isfinite(sum_of_blocks(item, rates_.change_squares))) {
        set().check_gradients(pool);
      }
      Layer& layer = layers_[i];
      const double rate = learning_rate * item.learning_rate_scale;
      layer.next_factor = item.adapt ? factor_of(item, layer) : layer.factor;
      layer.rate =
          to_rate(item.adapt ? rate * mean_ratio(rule_, layer.coefficient, layer.coefficients) *
                                   static_cast<double>(layer.next_factor)
                             : rate);
    }
  }

  float factor_of(const ParameterSet::Item& item, const Layer& layer) const {
    float largest = 0.0f;
    for (size_t b = item.first_block; b < item.first_block + item.block_count; ++b) {
      largest = std::max(largest, largest_ratios_[b]);
    }
    return next_factor(
        rule_, item, largest,
        {sum_of_blocks(item, rates_.value_squares), sum_of_blocks(item, rates_.change_squares)},
        layer.factor);
  }

  void update(const ParameterSet::Block& block) {
    const FrozenFactors& f = frozen_[place(block)];
    const float rate = layers_[place(block)].rate;
    block.update([&](const ParameterSet::Piece& piece) {
      Moments scratch;
      const cpu::FrozenBlock all = operands(block, piece, scratch);
      if (layerwise()) {
        cpu::fresh_update(all, state(*block.item, piece, kFresh), f);
      }
      cpu::frozen_update(all, f, rate);
      states().store(*block.item, piece, {all.exp_avg});
    });
  }

  void visit_more(size_t index, StateVisitor& visitor) override {
    Layer& layer = layers_[index];
    const std::string& name = set().items()[index].name;
    visitor.scalar(name, "variance_step", layer.variance_steps);
    if (layerwise()) {
      visitor.scalar(name, "coefficients", layer.coefficients);
      visitor.tensor(name, "coefficient", {&layer.coefficient, 1, DType::kFloat32, {}});
      visitor.tensor(name, "factor", {&layer.factor, 1, DType::kFloat32, {}});
      visitor.tensor(name, "momentum_scale", {&layer.momentum_scale, 1, DType::kFloat32, {}});
    }
  }

  const OneBitRule rule_;
  std::vector<Layer> layers_;          // per parameter
  std::vector<FrozenFactors> frozen_;  // per parameter
  std::vector<float> largest_ratios_;  // per block
  // Of the gradients whose momentum, of the step in progress, is in their place.
  std::optional<double> prepared_scale_;
};

}  // namespace

std::unique_ptr<Optimizer> make_onebit(const OptimizerSpec& spec, std::vector<Parameter> parameters,
                                       std::vector<ParamGroup> groups) {
  return std::make_unique<OneBit>(spec, parameters, groups);
}

}  // namespace gradwire
