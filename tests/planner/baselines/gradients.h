#pragma once
// The tensors of tests/planner/data/espresso, as lists of gradients.

#include <cstdint>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "gradwire/kernels/core/error.h"
#include "gradwire/planner/bucket_plan.h"

namespace gradwire::planner::testing {

struct TensorGap {
  std::string name;
  size_t numel = 0;
  int64_t gap_us = 0;  ///< since the gradient before
};

inline std::vector<TensorGap> read_tensor_gaps(const std::string& model) {
  const std::string path = concat(GRADWIRE_PLANNER_DATA, "/espresso/", model, ".csv");
  std::ifstream in(path);
  std::vector<TensorGap> tensors;
  std::string line;
  for (std::getline(in, line); std::getline(in, line);) {
    std::istringstream cells(line);
    std::string order, name, numel, gap;
    std::getline(cells, order, ',');
    std::getline(cells, name, ',');
    std::getline(cells, numel, ',');
    std::getline(cells, gap, ',');
    tensors.push_back({name, std::stoull(numel), std::stoll(gap)});
  }
  if (tensors.empty()) {
    throw std::runtime_error("no tensors in " + path);
  }
  return tensors;
}

inline std::vector<ReadyGradient> ready_gradients(const std::vector<TensorGap>& tensors) {
  std::vector<ReadyGradient> gradients;
  int64_t ready_us = 0;
  for (const TensorGap& tensor : tensors) {
    ready_us += tensor.gap_us;
    gradients.push_back({tensor.name, tensor.numel, static_cast<double>(ready_us) * 1e-6});
  }
  return gradients;
}

}  // namespace gradwire::planner::testing
