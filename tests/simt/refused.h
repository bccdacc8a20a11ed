#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "gradwire/kernels/core/error.h"

namespace gradwire::testing {

/// The call throws InvalidArgument and says `what`.
inline void expect_refused(const std::string& what, const std::function<void()>& call) {
  try {
    call();
    FAIL() << "accepted, must say: " << what;
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
  }
}

}  // namespace gradwire::testing
