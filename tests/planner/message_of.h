#pragma once
// What a refused call says.

#include <functional>
#include <string>

#include "gradwire/kernels/core/error.h"

namespace gradwire::planner {

/// The message of the InvalidArgument that `call` throws.
inline std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace gradwire::planner
