// One row per optimizer: the parser, the factory, tests and bindings read this table.

#include "gradwire/optimizers/registry.h"

#include "gradwire/optimizers/parameter_checks.h"
#include "gradwire/optimizers/spec.h"

namespace gradwire {
namespace {

constexpr std::string_view kSgdKeys[] = {"momentum", "nesterov", "weight_decay", "max_grad_norm",
                                         "master",   "state",    "min_8bit_size"};
constexpr std::string_view kAdamKeys[] = {"beta1",         "beta2",  "epsilon", "weight_decay",
                                          "max_grad_norm", "master", "state",   "min_8bit_size"};
constexpr std::string_view kLarsKeys[] = {"momentum",      "nesterov",        "trust_coefficient",
                                          "epsilon",       "weight_decay",    "rate_in_momentum",
                                          "clip_rate",     "adapt_undecayed", "decayed_norm",
                                          "decay_at_zero", "max_grad_norm",   "master",
                                          "state",         "min_8bit_size"};
constexpr std::string_view kLambKeys[] = {
    "beta1",    "beta2",    "epsilon",         "weight_decay", "max_grad_norm", "max_ratio",
    "min_norm", "max_norm", "adapt_undecayed", "master",       "state",         "min_8bit_size"};

constexpr OptimizerPreset kLarsPresets[] = {
    {"paper", "", "arXiv 1708.03888, algorithm 1; MLPerf's ResNet-50 reference"},
    {"timm", "rate_in_momentum=0,adapt_undecayed=0,epsilon=1e-8", "timm 1.0, optim/lars.py"},
    {"torch-optimizer",
     "rate_in_momentum=0,adapt_undecayed=0,decay_at_zero=0,trust_coefficient=0.01,epsilon=1e-8",
     "torch-optimizer 0.3, lars.py"},
    // Its epsilon is 0, which nothing divides by: where a norm is 0 the ratio is 1.
    {"optax", "decayed_norm=1,epsilon=1e-30", "optax, lars and scale_by_trust_ratio"},
};
constexpr std::string_view kLarcDefaults =
    "rate_in_momentum=0,clip_rate=1,decay_at_zero=0,trust_coefficient=0.02,epsilon=1e-8";

constexpr OptimizerPreset kLambPresets[] = {
    {"paper", "", "arXiv 1904.00962v5, algorithm 2"},
    {"paper-v1", "max_ratio=10", "arXiv 1904.00962v1"},
    {"apex", "max_grad_norm=1,adapt_undecayed=0", "apex, FusedLAMB"},
    {"nvlamb", "max_grad_norm=1", "apex, FusedLAMB with use_nvlamb"},
    {"tf-addons", "adapt_undecayed=0", "TensorFlow Addons, LAMB"},
    {"timm", "max_grad_norm=1,adapt_undecayed=0", "timm 1.0, optim/lamb.py"},
    {"lambc", "max_grad_norm=1,adapt_undecayed=0,max_ratio=1",
     "timm 1.0, optim/lamb.py with trust_clip"},
    {"optax", "", "optax, lamb"},
};

constexpr std::string_view kOneBitAdamKeys[] = {
    "freeze_step",  "beta1",         "beta2",  "epsilon", "bias_correction", "variance_floor",
    "weight_decay", "max_grad_norm", "master", "state",   "min_8bit_size"};
constexpr std::string_view kOneBitLambKeys[] = {
    "freeze_step",      "beta1",          "beta2",        "epsilon",
    "bias_correction",  "variance_floor", "weight_decay", "max_grad_norm",
    "max_ratio",        "min_ratio",      "min_norm",     "max_norm",
    "adapt_undecayed",  "coeff_beta",     "factor_min",   "factor_max",
    "factor_threshold", "master",         "state",        "min_8bit_size"};
constexpr OptimizerPreset kOneBitAdamPresets[] = {
    {"paper", "bias_correction=0,variance_floor=0,weight_decay=0", "arXiv 2102.02888, algorithm 1"},
    {"deepspeed", "bias_correction=0,variance_floor=0,weight_decay=0",
     "DeepSpeed, OnebitAdam, whose steps correct no bias whatever its bias_correction is"},
};
constexpr OptimizerPreset kOneBitLambPresets[] = {
    {"paper", "bias_correction=0,variance_floor=0", "arXiv 2104.06069, algorithm 1"},
    {"deepspeed", "bias_correction=0,variance_floor=0,epsilon=1e-8,max_ratio=10,min_ratio=0.01",
     "DeepSpeed, OnebitLamb, whose steps correct no bias whatever its bias_correction is"},
};

constexpr std::string_view kOuterKeys[] = {"momentum", "nesterov", "max_grad_norm"};
constexpr OptimizerPreset kOuterPresets[] = {
    {"paper", "", "arXiv 2311.08105: learning rate 0.7"},
    {"sparseloco", "momentum=0,nesterov=0", "arXiv 2508.15706: learning rate 1"},
    {"local-sgd", "momentum=0,nesterov=0", "Stich, arXiv 1805.09767: learning rate 1"},
};

constexpr OptimizerRow kRows[] = {
    {.name = "sgd",
     .summary = "stochastic gradient descent with heavy-ball or Nesterov momentum",
     .formula = "d = g + wd w; v = mu v + d; w -= lr v (nesterov: w -= lr (d + mu v))",
     .source = "Sutskever et al., On the importance of initialization and momentum in deep "
               "learning, ICML 2013",
     .keys = kSgdKeys,
     .defaults = "",
     .presets = {},
     .exchanges = Exchanged::kGradients,
     .make = make_sgd},
    {.name = "adamw",
     .summary = "Adam with weight decay that does not pass through the moments",
     .formula = "m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; m^ = m / (1 - b1^t); "
                "v^ = v / (1 - b2^t); w -= lr (m^ / (sqrt v^ + eps) + wd w)",
     .source = "Loshchilov, Hutter, Decoupled Weight Decay Regularization, arXiv 1711.05101",
     .keys = kAdamKeys,
     .defaults = "epsilon=1e-8,weight_decay=0.01",
     .presets = {},
     .exchanges = Exchanged::kGradients,
     .make = make_adam},
    {.name = "lars",
     .summary = "SGD whose learning rate follows each layer's ratio of weight to gradient norm",
     .formula = "v = mu v + lr eta ||w|| / (||g|| + wd ||w|| + eps) (g + wd w); w -= v",
     .source = "You, Gitman, Ginsburg, Large Batch Training of Convolutional Networks, "
               "arXiv 1708.03888",
     .keys = kLarsKeys,
     .defaults = "",
     .presets = kLarsPresets,
     .exchanges = Exchanged::kGradients,
     .make = make_lars},
    {.name = "larc",
     .summary = "LARS that never takes a layer's rate above the learning rate",
     .formula = "v = mu v + min(eta ||w|| / (||g|| + wd ||w|| + eps) / lr, 1) (g + wd w); "
                "w -= lr v",
     .source = "apex, parallel/LARC.py",
     .keys = kLarsKeys,
     .defaults = kLarcDefaults,
     .presets = {},
     .exchanges = Exchanged::kGradients,
     .make = make_lars},
    {.name = "lamb",
     .summary = "Adam whose update is scaled to each layer's weight norm",
     .formula = "m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; m^ = m / (1 - b1^t); "
                "v^ = v / (1 - b2^t); u = m^ / (sqrt v^ + eps) + wd w; "
                "w -= lr ||w|| / ||u|| u",
     .source = "You et al., Large Batch Optimization for Deep Learning: Training BERT in 76 "
               "minutes, arXiv 1904.00962",
     .keys = kLambKeys,
     .defaults = "",
     .presets = kLambPresets,
     .exchanges = Exchanged::kGradients,
     .make = make_adam},
    {.name = "onebit-adam",
     .summary = "AdamW that, once v hardly changes, keeps it and has momenta exchanged in 1 bit",
     .formula = "adamw for freeze_step steps; then v stays, m = the mean over ranks of "
                "b1 m + (1 - b1) g_i, as it was compressed; w -= lr (m^ / (sqrt v^ + eps) + wd w)",
     .source = "Tang et al., 1-bit Adam: Communication Efficient Large-Scale Training with Adam's "
               "Convergence Speed, arXiv 2102.02888",
     .keys = kOneBitAdamKeys,
     .defaults = "epsilon=1e-8,variance_floor=0.01,weight_decay=0.01",
     .presets = kOneBitAdamPresets,
     .exchanges = Exchanged::kMomentum,
     .make = make_onebit},
    {.name = "onebit-lamb",
     .summary =
         "LAMB that, once v hardly changes, keeps it and each layer's ratio, times a factor, "
         "and has momenta exchanged in 1 bit",
     .formula =
         "lamb for freeze_step steps, c = the average ratio; then v stays, m as onebit-adam; "
         "g = (m - b1 m') / (1 - b1), m' the last m; v' = b2 v' + (1 - b2) g^2; "
         "r = max((sqrt v^ + eps) / (sqrt v'^ + eps)) within bounds; "
         "w -= lr c r (m^ / (sqrt v^ + eps) + wd w)",
     .source = "Li et al., 1-bit LAMB: Communication Efficient Large-Scale Large-Batch Training "
               "with LAMB's Convergence Speed, arXiv 2104.06069",
     .keys = kOneBitLambKeys,
     .defaults = "variance_floor=0.01",
     .presets = kOneBitLambPresets,
     .exchanges = Exchanged::kMomentum,
     .make = make_onebit},
    {.name = "diloco",
     .summary =
         "the outer step of training with local steps, on what these have moved parameters by",
     .formula = "D = the mean of theta - theta_i over ranks; v = mu v + D; "
                "theta -= lr (D + mu v) (nesterov=0: theta -= lr v)",
     .source =
         "Douillard et al., DiLoCo: Distributed Low-Communication Training of Language Models, "
         "arXiv 2311.08105",
     .keys = kOuterKeys,
     .defaults = "nesterov=1",
     .presets = kOuterPresets,
     .exchanges = Exchanged::kMoves,
     .make = make_outer},
};

}  // namespace

std::span<const OptimizerRow> optimizer_registry() { return kRows; }

std::unique_ptr<Optimizer> make_optimizer(const OptimizerSpec& given,
                                          std::vector<Parameter> parameters,
                                          std::vector<ParamGroup> groups) {
  const OptimizerRow& row = optimizer_row(given.name);
  const OptimizerSpec spec = filled(given);
  check_spec(spec);
  if (groups.empty()) {
    groups.emplace_back();
  }
  const Device device = device_of(parameters);
  const bool on_gpu = device.type == DeviceType::kCuda;
  return (on_gpu ? make_cuda_optimizer : row.make)(spec, std::move(parameters), std::move(groups));
}

}  // namespace gradwire
