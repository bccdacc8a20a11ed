#pragma once
// The factories behind the registry's rows; each is defined in its optimizer's own file. They are
// given a checked spec and at least one group.

#include "gradwire/optimizers/optimizer.h"

namespace gradwire {

std::unique_ptr<Optimizer> make_sgd(const OptimizerSpec& spec, std::vector<Parameter> parameters,
                                    std::vector<ParamGroup> groups);
std::unique_ptr<Optimizer> make_lars(const OptimizerSpec& spec, std::vector<Parameter> parameters,
                                     std::vector<ParamGroup> groups);
std::unique_ptr<Optimizer> make_adam(const OptimizerSpec& spec, std::vector<Parameter> parameters,
                                     std::vector<ParamGroup> groups);
std::unique_ptr<Optimizer> make_onebit(const OptimizerSpec& spec, std::vector<Parameter> parameters,
                                       std::vector<ParamGroup> groups);
std::unique_ptr<Optimizer> make_outer(const OptimizerSpec& spec, std::vector<Parameter> parameters,
                                      std::vector<ParamGroup> groups);
/// Any of them, with parameters in a GPU's memory.
std::unique_ptr<Optimizer> make_cuda_optimizer(const OptimizerSpec& spec,
                                               std::vector<Parameter> parameters,
                                               std::vector<ParamGroup> groups);

}  // namespace gradwire
