#pragma once
// Gradients to choose elements of: what several ranks hold in one step, g + e.

#include <cstddef>
#include <string>
#include <vector>

namespace selection {

struct Gradients {
  std::string name;
  std::vector<std::vector<float>> of_rank;  ///< of equal sizes

  size_t numel() const { return of_rank.front().size(); }
};

/// The data folder's MLP of 64-1024-1024-10 or alike (1.1 million parameters on scikit-learn's
/// digits), trained for `steps` steps by topk:1% with error feedback: gradient + residual then.
/// @throws gradwire::InvalidArgument where load_folder() does.
Gradients of_training(const std::string& folder, size_t ranks, size_t steps);

/// Cubes of normal numbers: half of each one's variance is common to all ranks.
Gradients heavy_tailed(size_t numel, size_t ranks);

/// Rows of 64, of which each rank's batch touches 2%, by Zipf's law; the others are zero.
Gradients embedding(size_t rows, size_t ranks);

}  // namespace selection
