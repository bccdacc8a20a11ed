#pragma once
// What optimizers share: a step is one task of the stream, and state is a few numbers per element
// of the parameters.

#include <string_view>
#include <vector>

#include "gradwire/optimizers/parameter_set.h"
#include "gradwire/optimizers/state_buffers.h"

namespace gradwire {

class SteppedOptimizer : public Optimizer {
 public:
  const OptimizerSpec& spec() const final { return spec_; }
  using Optimizer::prepare;
  void prepare(const StepOptions& options, Context&) override { check_on_cpu(options); }
  using Optimizer::apply;
  void apply(const StepOptions& options, Context& context) final;
  void visit_state(StateVisitor& visitor) final;
  void values_changed(Context& context) final;
  void bind(std::span<const Binding> places) override { set_.bind(places); }
  void set_groups(std::vector<ParamGroup> groups) final;
  void synchronize(Context& context) final { context.stream.wait(); }
  uint64_t skipped_steps(Context& context) final;
  size_t state_bytes() const final { return states_.size_bytes() + set_.master_bytes(); }

 protected:
  /// State is that of state_names(); it begins as zeros.
  SteppedOptimizer(const OptimizerSpec& spec, const std::vector<Parameter>& parameters,
                   const std::vector<ParamGroup>& groups);

  ParameterSet& set() { return set_; }
  const ParameterSet& set() const { return set_; }
  const StepRule& rule() const { return rule_; }
  /// What brings the norm of all gradients together down to max_grad_norm, times `scale`. Not
  /// finite, or without meaning, where a gradient is not.
  float clipping_factor(double scale, ThreadPool& pool);
  /// What the step multiplies gradients by: options' scale, and what brings the norm of all of them
  /// together down to max_grad_norm. Looks at every gradient where `check` is set or it must.
  /// @throws NonFiniteGradient naming the first parameter and element that is NaN or infinite.
  float gradient_factor(const StepOptions& options, bool check, ThreadPool& pool);
  const StateBuffers& states() const { return states_; }
  /// The piece's elements of the state of this place among the names, which is floats.
  std::span<float> state(const ParameterSet::Item& item, const ParameterSet::Piece& piece,
                         size_t place) const {
    return states_.floats(item, place).subspan(piece.begin, piece.value.size());
  }
  /// The same of a momentum; nothing where the parameter's is 0, whose step does not read it.
  std::span<float> momentum(const ParameterSet::Item& item, const ParameterSet::Piece& piece,
                            size_t place) const {
    return item.momentum == 0.0f ? std::span<float>() : state(item, piece, place);
  }
  /// cpu::descend() with the first state as the momentum, or with none.
  void descend(const ParameterSet::Item& item, const ParameterSet::Piece& piece, bool has_momentum,
               const MomentumFactors& factors) const;

 private:
  /// @throws InvalidArgument unless these are options of a step on the CPU.
  void check_on_cpu(const StepOptions& options) const;
  /// @throws NonFiniteGradient where an element is NaN or infinite, here or on another rank.
  void check_gradients(const StepOptions& options, ThreadPool& pool);
  /// Applies one step, or throws and changes nothing.
  virtual void step(const StepOptions& options, ThreadPool& pool) = 0;
  /// Called where values that others wrote become the masters.
  virtual void values_taken() {}
  /// Shows what there is of item `index` beside its count of steps and the buffers.
  virtual void visit_more(size_t, StateVisitor&) {}

  const OptimizerSpec spec_;
  const StepRule rule_;
  ParameterSet set_;
  const StateBuffers states_;
  /// `slices`: those that this rank counts.
  double sum_of_gradient_squares(ThreadPool& pool, bool slices = false);

  std::vector<double> gradient_squares_;  // per block, where gradients are clipped
  const size_t group_count_;
  uint64_t skipped_ = 0;
};

/// Where values are sums over a rank's slices: makes them those over all ranks'.
void add_up_slices(const StepOptions& options, std::span<double> values);
/// Where a sum of squares of gradients is not finite. @throws NonFiniteGradient naming the
/// parameter and element here or, with slices, saying that it is another rank's; returns where all
/// are finite.
void find_non_finite(ParameterSet& set, const StepOptions& options, ThreadPool& pool);

/// Step sizes of layer-wise optimizers, which follow two norms per parameter: of its values, and of
/// what it is changed by.
class LayerRates {
 public:
  explicit LayerRates(const ParameterSet& set)
      : value_squares(set.blocks().size()),
        change_squares(set.blocks().size()),
        squares_(2 * set.items().size()),
        rates_(set.items().size()),
        still_(set.items().size()) {}

  /// Takes each parameter's layer_rate(), of the norms of all slices where options.add_up says so.
  /// @throws NonFiniteGradient naming the first parameter and element that is NaN or infinite.
  void set(ParameterSet& set, ThreadPool& pool, const StepRule& rule, const StepOptions& options,
           float factor);

  std::vector<double> value_squares;   ///< per block: sums of squares, written by a first pass
  std::vector<double> change_squares;  ///< not finite where a gradient of the block is not

  float of(const ParameterSet& set, const ParameterSet::Block& block) const {
    return rates_[place(set, block)];
  }
  /// Whether the block's parameter adapts and its change has the norm 0.
  bool still(const ParameterSet& set, const ParameterSet::Block& block) const {
    return still_[place(set, block)] != 0;
  }

 private:
  static size_t place(const ParameterSet& set, const ParameterSet::Block& block) {
    return static_cast<size_t>(block.item - set.items().data());
  }

  std::vector<double> squares_;  // per parameter: of its values, and of its change
  std::vector<float> rates_;     // per parameter
  std::vector<uint8_t> still_;   // per parameter
};

}  // namespace gradwire
