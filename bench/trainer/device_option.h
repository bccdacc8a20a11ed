#pragma once
// --device: where a rank computes, and what does not go with a GPU.

#include <optional>
#include <string>
#include <string_view>

namespace trainer {

struct Options;

struct DeviceOption {
  std::string text = "cpu";  ///< as on the command line
  bool gpu = false;
  std::optional<int> index = std::nullopt;  ///< of the GPU; nothing: rank mod the machine's GPUs
};

/// "cpu", "cuda" or "cuda:N". @throws std::runtime_error with the value and what was expected.
DeviceOption parse_device(std::string_view text);

/// Refuses what a GPU's Reducer does not carry, then a machine without a GPU, and puts this rank's
/// GPU into TransportOptions::nccl. @throws BadArguments naming the option.
void complete_device(Options& options);

}  // namespace trainer
