#pragma once
// What SGD, LARS and LAMB share: a step is one task of the stream, and state is a few buffers with
// an element per element of the parameters.

#include <cmath>
#include <string_view>
#include <vector>

#include "gradwire/optimizers/parameter_set.h"

namespace gradwire {

class SteppedOptimizer : public Optimizer {
 public:
  const OptimizerSpec& spec() const final { return spec_; }
  void prepare(Context&) final {}
  void apply(double learning_rate, Context& context) final;
  void visit_state(StateVisitor& visitor) final;

 protected:
  /// `states`: the names of the state buffers, which begin as zeros. They outlive this.
  SteppedOptimizer(const OptimizerSpec& spec, const std::vector<Parameter>& parameters,
                   const std::vector<ParamGroup>& groups, std::vector<std::string_view> states);

  ParameterSet& set() { return set_; }
  const ParameterSet& set() const { return set_; }
  /// How many steps were applied.
  uint64_t steps() const { return steps_; }
  /// The block's elements of the state of this place among the names.
  std::span<float> state(const ParameterSet::Block& block, size_t place) const {
    return block.state(buffers_[place]);
  }

 private:
  /// Applies one step, or throws and changes nothing.
  virtual void step(double learning_rate, ThreadPool& pool) = 0;

  const OptimizerSpec spec_;
  ParameterSet set_;
  const std::vector<std::string_view> names_;
  std::vector<Buffer> buffers_;
  uint64_t steps_ = 0;
};

/// Step sizes of layer-wise optimizers: the learning rate times a ratio of two norms, one of a
/// parameter's values and one of what it is changed by.
class LayerRates {
 public:
  explicit LayerRates(const ParameterSet& set)
      : value_squares(set.blocks().size()),
        change_squares(set.blocks().size()),
        rates_(set.items().size()) {}

  std::vector<double> value_squares;   ///< per block: sums of squares, written by a first pass
  std::vector<double> change_squares;  ///< not finite where a gradient of the block is not

  /// Takes ratio(item, value norm, change norm), 1 where a norm is 0 and for items that do not adapt.
  /// @throws NonFiniteGradient naming the first parameter and element that is NaN or infinite.
  template <class Ratio>
  void set(double learning_rate, ParameterSet& set, ThreadPool& pool, const Ratio& ratio) {
    for (size_t i = 0; i < rates_.size(); ++i) {
      const ParameterSet::Item& item = set.items()[i];
      const double change_square = sum_of_blocks(item, change_squares);
      if (!std::isfinite(change_square)) {
        set.check_gradients(pool);
      }
      const double values = std::sqrt(sum_of_blocks(item, value_squares));
      const double change = std::sqrt(change_square);
      const bool adapts = item.adapt && values != 0.0 && change != 0.0;
      rates_[i] = to_rate(learning_rate * item.learning_rate_scale *
                          (adapts ? ratio(item, values, change) : 1.0));
    }
  }

  float of(const ParameterSet& set, const ParameterSet::Block& block) const {
    return rates_[static_cast<size_t>(block.item - set.items().data())];
  }

 private:
  std::vector<float> rates_;  // per parameter
};

}  // namespace gradwire
