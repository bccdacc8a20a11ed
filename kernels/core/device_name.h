#pragma once

#include <string>

#include "gradwire/kernels/core/tensor.h"

namespace gradwire {

/// "the CPU" or "GPU 1", for messages.
inline std::string name_of(Device device) {
  return device.type == DeviceType::kCpu ? "the CPU" : concat("GPU ", device.index);
}

}  // namespace gradwire
