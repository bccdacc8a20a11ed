#pragma once
// A step of AdamW and LAMB on the CPU, which 1-bit Adam and 1-bit LAMB begin with.

#include <array>
#include <vector>

#include "gradwire/optimizers/step.h"
#include "gradwire/optimizers/stepped.h"

namespace gradwire {

class Adam : public SteppedOptimizer {
 public:
  Adam(const OptimizerSpec& spec, const std::vector<Parameter>& parameters,
       const std::vector<ParamGroup>& groups);

 protected:
  void step(const StepOptions& options, ThreadPool& pool) override;

  size_t place(const ParameterSet::Block& block) const {
    return static_cast<size_t>(block.item - set().items().data());
  }
  /// Puts into rates_.change_squares what is not finite exactly where a gradient of the block is
  /// not; 0 elsewhere, and everywhere where the caller knows that they are `finite`.
  void look_at(const ParameterSet::Block& block, bool finite);

  struct Moments {
    alignas(64) std::array<float, kStepPiece> exp_avg, exp_avg_sq;
  };

  LayerRates rates_;

 private:
  /// Of the step to come of item `index`.
  virtual AdamFactors factors(size_t index, float factor) const {
    const ParameterSet::Item& item = set().items()[index];
    return adam_factors(item, item.steps, factor);
  }
  cpu::AdamBlock operands(const ParameterSet::Block& block, const ParameterSet::Piece& piece,
                          Moments& scratch) const;
  void measure(const ParameterSet::Block& block, bool finite);

  std::vector<AdamFactors> factors_;  // per parameter
};

}  // namespace gradwire
