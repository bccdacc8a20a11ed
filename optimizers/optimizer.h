#pragma once
// What a step does to parameters. An optimizer never exchanges: prepare() writes what must be
// exchanged, the caller exchanges it, apply() uses it.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/kernels/core/memory.h"

namespace gradwire {

/// A parameter and its gradient: float32 views of equal numel. The memory is the caller's and stays
/// where it is for the optimizer's life.
struct Parameter {
  std::string name;
  TensorView value;
  TensorView gradient;
  size_t group = 0;  ///< index into the groups given to make_optimizer
};

/// Settings that may differ between parameters; unset fields take the OptimizerSpec's.
struct ParamGroup {
  std::optional<double> weight_decay = std::nullopt;
  double learning_rate_scale = 1.0;
  bool adapt = true;  ///< layer-wise adaptation (LARS, LAMB); false: ratio 1
};

/// A validated request. parse_optimizer() reads "sgd", "sgd:momentum=0.9,nesterov=1",
/// "lamb:weight_decay=0.01", "lars:trust_coefficient=0.001".
struct OptimizerSpec {
  std::string name = "sgd";
  double momentum = 0.9;            ///< sgd, lars; in [0, 1)
  bool nesterov = false;            ///< sgd
  double beta1 = 0.9;               ///< lamb; in [0, 1)
  double beta2 = 0.999;             ///< lamb; in [0, 1)
  double epsilon = 1e-6;            ///< > 0; lamb: outside the root; lars: in the denominator
  double weight_decay = 0.0;        ///< >= 0
  double trust_coefficient = 1e-3;  ///< lars' eta; > 0

  bool operator==(const OptimizerSpec&) const = default;
};

/// @throws InvalidArgument: an unknown name or key lists the known ones; a value out of range says
/// which range.
OptimizerSpec parse_optimizer(std::string_view text);
std::string to_string(const OptimizerSpec& spec);

/// Sees every piece of state by name ("momentum", "exp_avg", "exp_avg_sq") and parameter, and the
/// number of updates applied ("step"). It may write to what it sees, to restore a checkpoint.
class StateVisitor {
 public:
  virtual ~StateVisitor() = default;
  virtual void tensor(std::string_view parameter, std::string_view name, TensorView value) = 0;
  virtual void scalar(std::string_view name, uint64_t& value) = 0;  ///< e.g. "step"
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual const OptimizerSpec& spec() const = 0;

  /// Enqueues what must be ready before the exchange. SGD, LARS and LAMB exchange the gradient
  /// itself, so theirs does nothing.
  virtual void prepare(Context& context) = 0;

  /// Enqueues the update of all parameters from their gradients. When a gradient holds NaN or
  /// infinity nothing is changed, state included, and the stream's wait() throws NonFiniteGradient
  /// naming the parameter.
  /// @throws InvalidArgument at once unless learning_rate is finite and >= 0.
  virtual void apply(double learning_rate, Context& context) = 0;

  /// Shows all state, in parameter order, for checkpoints. The stream must be idle.
  virtual void visit_state(StateVisitor& visitor) = 0;
};

struct OptimizerRow {
  std::string_view name;
  std::string_view summary;
  std::string_view formula;
  std::string_view source;
  std::span<const std::string_view> keys;  ///< of OptimizerSpec, that this optimizer reads
  std::unique_ptr<Optimizer> (*make)(const OptimizerSpec&, std::vector<Parameter>,
                                     std::vector<ParamGroup>);
};
std::span<const OptimizerRow> optimizer_registry();

/// Allocates all state; apply() allocates nothing.
/// @throws InvalidArgument for a spec out of range, no parameters, an empty parameter, value and
/// gradient of different numel, a dtype other than float32, memory that is not the CPU's, a group
/// index without a group (an empty `groups` means one default group).
std::unique_ptr<Optimizer> make_optimizer(const OptimizerSpec& spec,
                                          std::vector<Parameter> parameters,
                                          std::vector<ParamGroup> groups = {});

}  // namespace gradwire
