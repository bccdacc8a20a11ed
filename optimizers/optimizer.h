#pragma once
// What a step does to parameters. An optimizer never exchanges: prepare() writes what must be
// exchanged, the caller exchanges it, apply() uses it.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gradwire/kernels/compress/on_non_finite.h"
#include "gradwire/kernels/core/element_reader.h"
#include "gradwire/kernels/core/memory.h"

namespace gradwire {

/// A parameter and its gradient: views of equal numel, each of any dtype, all of an optimizer's in
/// memory of the CPU or of one GPU, where its state and its steps are then. The memory is the
/// caller's and stays where it is for the optimizer's life, or until bind(). Steps are computed in
/// float32; a value of 16 bits is what its float32 master, which the optimizer keeps, rounds to
/// (OptimizerSpec::master). Steps see what others write to values: an element that its master does
/// not round to, bit for bit, is its own master.
struct Parameter {
  std::string name;
  TensorView value;
  TensorView gradient;
  size_t group = 0;  ///< index into the groups given to make_optimizer
  /// Another rank has the same slice and counts it: sums over ranks (StepOptions::add_up) leave
  /// this one out. Without add_up it has no meaning.
  bool replica = false;
};

/// Where a parameter is for the steps to come. A gradient without memory (data null, numel 0) and
/// without a reader: the parameter is left out of them, and neither it nor its state nor its count
/// of steps changes.
struct Binding {
  TensorView value;
  ConstTensorView gradient;
  /// In the gradient's place, which has no memory then: apply() reads the value's numel elements
  /// from here, from element reader_begin on, once or (where a norm is taken, and unless the step's
  /// gradients are known_finite) twice, a few thousand at a time on each thread. A PayloadSum reads
  /// them from what was received. The same bits as of a float32 gradient that holds them. On a GPU
  /// a reader with on_device(), as a PayloadSum of its memory is, which thread blocks read into
  /// shared memory; payloads of which nothing can be read are a fault that synchronize() throws. A
  /// step that was captured before the first reader is one too.
  const ElementReader* reader = nullptr;
  size_t reader_begin = 0;
};

/// Settings that may differ between parameters; unset fields take the OptimizerSpec's.
struct ParamGroup {
  std::optional<double> weight_decay = std::nullopt;
  std::optional<double> momentum = std::nullopt;  ///< sgd, lars, larc; in [0, 1)
  double learning_rate_scale = 1.0;
  bool adapt = true;  ///< layer-wise adaptation (LARS, LARC, LAMB); false: ratio 1
  std::optional<double> beta1 = std::nullopt;    ///< adamw, lamb; in [0, 1)
  std::optional<double> beta2 = std::nullopt;    ///< adamw, lamb; in [0, 1)
  std::optional<double> epsilon = std::nullopt;  ///< adamw, lamb, lars, larc; > 0
  bool full_state = false;                       ///< state is float32 whatever the spec says
};

/// Parameters for which `applies` is true get `settings`.
struct GroupRule {
  std::function<bool(const Parameter&)> applies;
  ParamGroup settings;
};

/// Sets every parameter's group: that of the first rule which applies, else the first of the groups
/// returned, which takes everything from the spec.
/// @throws InvalidArgument for a rule without a predicate.
std::vector<ParamGroup> assign_groups(std::span<Parameter> parameters,
                                      std::span<const GroupRule> rules);

/// What is kept of the float32 master of a value of 16 bits. Both are exact: steps have the same
/// bits as those of a float32 parameter.
enum class MasterWeights : uint8_t {
  /// Of a bfloat16 its master's other 16 bits, 2 bytes an element; the value is then the master
  /// rounded to nearest with ties away from zero. What others write is such a value as well: its
  /// master differs from it by half a bit of bfloat16 at most, until values_changed(). Of a float16
  /// as kFloat32.
  kRemainder,
  kFloat32,  ///< the master itself, 4 bytes an element; the value is rounded to nearest even
};

/// How moments and momenta are kept.
enum class StateBits : uint8_t {
  kFloat32,
  /// A byte an element, and a scale for every 256 (optimizers/state_code.h).
  kEight,
};

/// A validated request. parse_optimizer() reads "sgd", "sgd:momentum=0.9,nesterov=1",
/// "lamb:weight_decay=0.01", "lamb:preset=apex,weight_decay=0.01". Filled by hand, a field that is
/// not set is what the optimizer's row says: AdamW's epsilon is 1e-8 either way. filled() writes
/// them.
struct OptimizerSpec {
  std::string name = "sgd";
  double momentum = 0.9;                        ///< sgd, lars, larc; in [0, 1)
  std::optional<bool> nesterov = std::nullopt;  ///< sgd, lars, larc
  double beta1 = 0.9;                           ///< adamw, lamb; in [0, 1)
  double beta2 = 0.999;                         ///< adamw, lamb; in [0, 1)
  std::optional<double> epsilon =
      std::nullopt;  ///< > 0; adamw, lamb: outside the root; lars: in the denominator
  std::optional<double> weight_decay = std::nullopt;       ///< >= 0
  std::optional<double> trust_coefficient = std::nullopt;  ///< eta of lars, larc; > 0
  MasterWeights master = MasterWeights::kRemainder;
  StateBits state = StateBits::kFloat32;
  size_t min_8bit_size = 4096;  ///< parameters with fewer elements have state of float32
  double max_grad_norm = 0.0;   ///< all gradients together are scaled down to it; 0: never
  // What implementations of lars and lamb differ in; as here they are their papers'.
  bool adapt_undecayed = true;  ///< parameters without weight decay are adapted as well
  double max_ratio = 0.0;       ///< lamb: the ratio is at most this; 0: unbounded
  double min_norm = 0.0;        ///< lamb: ||w|| counts as at least this,
  double max_norm = 0.0;        ///< lamb: and at most this; 0: unbounded
  std::optional<bool> rate_in_momentum =
      std::nullopt;  ///< lars: the momentum holds steps, not directions
  std::optional<bool> clip_rate =
      std::nullopt;           ///< lars: a layer's rate is min(eta ||w|| / .., learning rate)
  bool decayed_norm = false;  ///< lars: the denominator is ||g + wd w|| + eps
  std::optional<bool> decay_at_zero = std::nullopt;  ///< lars: weights decay even where ||g|| is 0
  // onebit-adam and onebit-lamb, the last five of onebit-lamb.
  uint64_t freeze_step = 100000;  ///< steps of adamw or lamb before v stays; from 1 to 2^53
  bool bias_correction = true;    ///< of m and v, and of onebit-lamb's average ratio
  std::optional<double> variance_floor =
      std::nullopt;               ///< sqrt v stays at least this part of its layer's; in [0, 1]
  double min_ratio = 0.0;         ///< the ratio is at least this, before max_ratio
  double coeff_beta = 0.9;        ///< of the average of a layer's ratios; in [0, 1)
  double factor_min = 0.5;        ///< > 0; that average's factor afterwards is at least this,
  double factor_max = 4.0;        ///< > 0; at most this,
  double factor_threshold = 0.1;  ///< and this part from the last one at the most; in [0, 1)

  /// Whether both ask for the same: a field that is not set is the row's.
  bool operator==(const OptimizerSpec& other) const;
};

/// @throws InvalidArgument: an unknown name, key or preset lists the known ones; a value out of
/// range says which range.
OptimizerSpec parse_optimizer(std::string_view text);
/// What the optimizer `name` is without any key. @throws InvalidArgument listing the known names.
OptimizerSpec default_spec(std::string_view name);
/// The spec with every field set. @throws InvalidArgument listing the known names.
OptimizerSpec filled(OptimizerSpec spec);
/// parse_optimizer() reads it back; a preset is written as the keys it stands for.
std::string to_string(const OptimizerSpec& spec);

/// What one step is given.
struct StepOptions {
  double learning_rate;
  /// What gradients are multiplied by as they are read, in (0, 1]: 1 over a loss scale, or over a
  /// number of gradients added up.
  double gradient_scale = 1.0;
  /// The caller knows that all gradients are finite, a Reducer's means for example: saves SGD and
  /// AdamW a pass over them. Where it is not so, state is lost to NaN.
  bool known_finite = false;
  /// With kSkip a step whose gradients are not finite is left out and counted, as if it had not
  /// been asked for: what a loss scaler wants.
  OnNonFinite on_non_finite = OnNonFinite::kError;
  /// What the step reads from the memory of its GPU when it runs, so that a captured step follows
  /// it; null, and always on the CPU: the fields above. A value out of range is kept as a fault.
  struct OnDevice {
    const double* learning_rate = nullptr;  ///< in the place of learning_rate; finite and >= 0
    const float* loss_scale = nullptr;      ///< divides gradient_scale; finite and > 0
    const float* found_inf = nullptr;       ///< where it is not 0 the step is left out and counted
    /// add_up's form there: enqueues on the stream what makes `values`, in that memory, the sums of
    /// all ranks' values, and does not wait. Called in apply(), between the launches: once or twice
    /// as add_up, by AdamW too not at all where gradients are known_finite. Learning rate, loss
    /// scale and found_inf are then the same on all ranks. What it throws comes out of apply(), and
    /// the step changes nothing.
    const std::function<void(std::span<double> values, Stream& stream)>* add_up = nullptr;
  } on_device = {};
  /// Sharded use: every rank holds slices of the same parameters, in the same order, of which some
  /// may be empty. Makes values[i] the sum of all ranks' values[i], the same on each; called in
  /// apply()'s task, as often and with as many values on every rank: once, twice with
  /// max_grad_norm, by SGD not at all where gradients are known_finite. Norms are then those of
  /// whole parameters, and a gradient that is not finite on one rank leaves the step out on all. Of
  /// a slice that several ranks have one counts it (Parameter::replica).
  /// What it throws ends the step, which changes nothing. Null: parameters are whole. On the CPU
  /// (on a GPU on_device.add_up); not for onebit-*.
  const std::function<void(std::span<double>)>* add_up = nullptr;
};

/// Sees every piece of state by parameter and name ("momentum", "exp_avg", "exp_avg_sq", "master",
/// "remainder"), and each parameter's number of updates ("step"). It may write to what it sees;
/// load_state() (saved_state.h) restores a checkpoint, checked and converted. All are float32 but
/// "remainder", 16 bits shown as bfloat16: the lower half of a master of which the value, which a
/// checkpoint has as well, is the upper one. Tensors have the parameter's numel, or one element
/// ("coefficient", "factor", "momentum_scale"). State of 8 bits is bytes() by its name, and a
/// tensor() of its scales, "exp_avg.scale", one for 256 elements.
class StateVisitor {
 public:
  virtual ~StateVisitor() = default;
  virtual void tensor(std::string_view parameter, std::string_view name, TensorView value) = 0;
  virtual void bytes(std::string_view parameter, std::string_view name, std::span<std::byte> value,
                     Device device) = 0;
  virtual void scalar(std::string_view parameter, std::string_view name, uint64_t& value) = 0;
};

/// What is in the gradients' memory behind prepare(), for the exchange.
enum class Exchanged : uint8_t {
  kGradients,  ///< the gradients as they are
  kMomentum,   ///< this rank's momentum, which goes well with 1-bit compression
  kMoves,      ///< what local steps have moved values by
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual const OptimizerSpec& spec() const = 0;

  /// What the next step exchanges, the same on ranks that have stepped alike. The stream must be
  /// idle. A change is the time to change the exchange (Reducer::set_plan).
  virtual Exchanged exchanges() const { return Exchanged::kGradients; }
  /// The same behind the steps that are enqueued on the context's stream, which need not be idle:
  /// 1-bit Adam and 1-bit LAMB, which ask how many were made, wait for it.
  virtual Exchanged exchanges(Context& /*context*/) const { return exchanges(); }

  /// Enqueues what must be ready before the exchange: unless exchanges() says kGradients, it writes
  /// to the gradients' memory what is to be exchanged. Once a step, with the options that apply()
  /// is to be given. Where momentum is exchanged its gradient_scale, and on a GPU
  /// on_device.loss_scale, are those of the gradients, and of no use to apply() any more but that
  /// it refuses others. What is not finite stays so: the exchange's flag, or apply(), then leaves
  /// out the step on every rank. On a GPU it can be captured in a CUDA graph.
  /// @throws InvalidArgument at once as apply() does, and where moves are to be scaled.
  virtual void prepare(const StepOptions& options, Context& context) = 0;
  void prepare(double gradient_scale, Context& context) {
    prepare(StepOptions{.learning_rate = 0.0, .gradient_scale = gradient_scale}, context);
  }
  void prepare(Context& context) { prepare(1.0, context); }

  /// Enqueues the update of all parameters from their gradients. When a gradient holds NaN or
  /// infinity nothing is changed, state included, and unless it is to be skipped the stream's
  /// wait() throws NonFiniteGradient naming the parameter. On a GPU synchronize() throws it, and
  /// until then steps change nothing; nothing waits and nothing is allocated, and the work, as many
  /// launches for any number of parameters, can be captured in a CUDA graph.
  /// @throws InvalidArgument at once unless learning_rate is finite and >= 0 and gradient_scale in
  /// (0, 1], and the stream is of the parameters' device.
  virtual void apply(const StepOptions& options, Context& context) = 0;
  void apply(double learning_rate, Context& context) {
    apply(StepOptions{.learning_rate = learning_rate}, context);
  }

  /// Tells where the parameters are from the next apply() on, all of them in the order given to
  /// make_optimizer(). Allocates nothing. The stream must be idle. A captured graph follows it.
  /// @throws InvalidArgument as make_optimizer() does, and for a value of another numel or dtype
  /// than the parameter's; then all stays as it was.
  virtual void bind(std::span<const Binding> places) = 0;

  /// Other settings for the groups given to make_optimizer(), as many of them. The stream must be
  /// idle.
  /// @throws InvalidArgument as make_optimizer() does, for a momentum where no group had one when
  /// the optimizer was made, so that there is no state of it, and for another full_state where
  /// state is of 8 bits; then all stays as it was.
  virtual void set_groups(std::vector<ParamGroup> groups) = 0;

  /// bind() and set_groups() in the order of the context's stream, which need not be idle: steps
  /// enqueued before are not changed. On a GPU nothing waits unless two such changes are still on
  /// their way; while a graph is captured they are as the two above. On the CPU they wait for the
  /// stream. Errors as theirs.
  virtual void bind_in_order(std::span<const Binding> places, Context& context) {
    context.stream.wait();
    bind(places);
  }
  virtual void set_groups_in_order(std::vector<ParamGroup> groups, Context& context) {
    context.stream.wait();
    set_groups(std::move(groups));
  }

  /// Waits for the stream. @throws NonFiniteGradient of a step that was not to be skipped, and on a
  /// GPU InvalidArgument naming what StepOptions::on_device held or the parameter whose payloads
  /// cannot be read; then forgets it, and the next
  /// step is as good as any.
  virtual void synchronize(Context& context) = 0;

  /// How many steps were left out so far; waits for the stream.
  virtual uint64_t skipped_steps(Context& context) = 0;

  /// Enqueues taking values as they are for their masters, exactly: other bits of a bfloat16's
  /// master are 0 then. Masters of the first step are the values it finds.
  virtual void values_changed(Context& context) = 0;

  /// Shows all state, in parameter order, for checkpoints: on a GPU tensors in its memory. The
  /// stream must be idle, behind the visit as well.
  virtual void visit_state(StateVisitor& visitor) = 0;
  /// To be called behind a visit that wrote: what prepare() made of the state before is void, and
  /// the next step begins with prepare() again.
  virtual void state_loaded() {}
  /// Memory of all state and masters.
  virtual size_t state_bytes() const = 0;
};

/// Settings under which a row is what another implementation computes.
struct OptimizerPreset {
  std::string_view name;
  std::string_view keys;  ///< as in a spec: "max_grad_norm=1,adapt_undecayed=0"; may be empty
  std::string_view source;
};

struct OptimizerRow {
  std::string_view name;
  std::string_view summary;
  std::string_view formula;
  std::string_view source;
  std::span<const std::string_view> keys;  ///< of OptimizerSpec, that this optimizer reads
  std::string_view defaults;               ///< as in a spec, what differs from OptimizerSpec's
  std::span<const OptimizerPreset> presets;
  Exchanged exchanges;  ///< kMomentum: once freeze_step steps were made
  std::unique_ptr<Optimizer> (*make)(const OptimizerSpec&, std::vector<Parameter>,
                                     std::vector<ParamGroup>);
};
std::span<const OptimizerRow> optimizer_registry();

/// Allocates all state; apply() allocates nothing.
/// A parameter without elements is left out of steps and has no state.
/// @throws InvalidArgument for a spec out of range, no parameters, value and gradient of different
/// numel, memory of different devices, a group index without a group (an empty `groups` means one
/// default group). DeviceError for GPU memory in a build without CUDA.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerSpec& spec,
                                          std::vector<Parameter> parameters,
                                          std::vector<ParamGroup> groups = {});

}  // namespace gradwire
