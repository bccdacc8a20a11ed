// One row per optimizer: the parser, the factory, tests and bindings read this table.

#include "gradwire/optimizers/registry.h"

#include <array>

#include "gradwire/optimizers/spec.h"

namespace gradwire {
namespace {

constexpr std::array<std::string_view, 3> kSgdKeys{"momentum", "nesterov", "weight_decay"};
constexpr std::array<std::string_view, 4> kLarsKeys{"momentum", "trust_coefficient", "epsilon",
                                                    "weight_decay"};
constexpr std::array<std::string_view, 4> kLambKeys{"beta1", "beta2", "epsilon", "weight_decay"};

constexpr std::array kRows{
    OptimizerRow{.name = "sgd",
                 .summary = "stochastic gradient descent with heavy-ball or Nesterov momentum",
                 .formula = "d = g + wd w; v = mu v + d; w -= lr v (nesterov: w -= lr (d + mu v))",
                 .source =
                     "Sutskever et al., On the importance of initialization and momentum in deep "
                     "learning, ICML 2013",
                 .keys = kSgdKeys,
                 .make = make_sgd},
    OptimizerRow{
        .name = "lars",
        .summary = "SGD whose learning rate follows each layer's ratio of weight to gradient norm",
        .formula = "v = mu v + lr eta ||w|| / (||g|| + wd ||w|| + eps) (g + wd w); w -= v",
        .source = "You, Gitman, Ginsburg, Large Batch Training of Convolutional Networks, "
                  "arXiv 1708.03888",
        .keys = kLarsKeys,
        .make = make_lars},
    OptimizerRow{.name = "lamb",
                 .summary = "Adam whose update is scaled to each layer's weight norm",
                 .formula = "m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; m^ = m / (1 - b1^t); "
                            "v^ = v / (1 - b2^t); u = m^ / (sqrt v^ + eps) + wd w; "
                            "w -= lr ||w|| / ||u|| u",
                 .source =
                     "You et al., Large Batch Optimization for Deep Learning: Training BERT in 76 "
                     "minutes, arXiv 1904.00962",
                 .keys = kLambKeys,
                 .make = make_lamb},
};

}  // namespace

std::span<const OptimizerRow> optimizer_registry() { return kRows; }

std::unique_ptr<Optimizer> make_optimizer(const OptimizerSpec& spec,
                                          std::vector<Parameter> parameters,
                                          std::vector<ParamGroup> groups) {
  const OptimizerRow& row = optimizer_row(spec.name);
  check_spec(spec);
  if (groups.empty()) {
    groups.emplace_back();
  }
  return row.make(spec, std::move(parameters), std::move(groups));
}

}  // namespace gradwire
