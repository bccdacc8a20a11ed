#pragma once
// What laws of optimizers run over.

#include <gtest/gtest.h>

#include "tests/optimizers/model.h"

namespace gradwire {

/// Every row whose steps need no prepare(), as it is, and rows whose options take another path.
inline std::vector<OptimizerSpec> all_specs() {
  std::vector<OptimizerSpec> specs;
  for (const OptimizerRow& row : optimizer_registry()) {
    if (row.exchanges == Exchanged::kGradients) {
      specs.push_back({.name = std::string(row.name), .weight_decay = 0.01});
    }
  }
  specs.push_back(parse_optimizer("sgd:nesterov=1"));
  specs.push_back(parse_optimizer("sgd:momentum=0"));
  for (const char* text :
       {"sgd:max_grad_norm=0.5", "adamw:max_grad_norm=0.5", "lars:max_grad_norm=2",
        "lars:decayed_norm=1,nesterov=1", "lamb:preset=lambc", "lamb:min_norm=1,max_norm=3",
        "sgd:state=8bit,min_8bit_size=1,nesterov=1", "adamw:state=8bit,min_8bit_size=1024",
        "lars:state=8bit,min_8bit_size=1", "lamb:state=8bit,min_8bit_size=5"}) {
    specs.push_back(parse_optimizer(text));
  }
  return specs;
}

class OptimizerLaws : public testing::TestWithParam<OptimizerSpec> {
 protected:
  std::unique_ptr<Optimizer> make(Model& model) const {
    return make_optimizer(GetParam(), model.parameters(3), model_groups());
  }
};

inline std::string name_of_spec(const testing::TestParamInfo<OptimizerSpec>& row) {
  std::string name = to_string(row.param);
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
  return name;
}

}  // namespace gradwire
