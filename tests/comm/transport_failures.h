#pragma once
// Ranks that must fail, all of them and with one error.

#include <chrono>

#include "tests/comm/transport_ranks.h"

namespace gradwire::transport_test {

using std::chrono::milliseconds;

class Failures : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (const std::string why = unavailable(GetParam()); !why.empty()) {
      GTEST_SKIP() << why;
    }
  }

  /// Runs `body` on three ranks; every rank must fail, with the same error at a second call.
  std::vector<std::string> fail(const std::function<void(Rank)>& body,
                                milliseconds timeout = milliseconds(20000)) const {
    TransportOptions options;
    options.timeout = timeout;
    const auto errors = run_ranks(GetParam(), 3, options, [&](Rank self) {
      std::string first;
      try {
        body(self);
        // A rank that was served before the others failed finds out at its next call.
        self.transport.barrier({0, "the next call"}, self.context);
        self.context.stream.wait();
      } catch (const TransportError& error) {
        first = error.what();
      }
      ASSERT_NE(first, "") << "rank " << self.rank << " did not fail";
      try {
        self.transport.barrier({}, self.context);
        self.context.stream.wait();
        FAIL() << "rank " << self.rank << " went on after: " << first;
      } catch (const TransportError& error) {
        EXPECT_EQ(error.what(), first) << "the first failure is kept";
      }
      throw TransportError(first);
    });
    for (size_t r = 0; r < errors.size(); ++r) {
      EXPECT_NE(errors[r].find("rank "), std::string::npos)
          << "rank " << r << " names nobody: " << errors[r];
    }
    return errors;
  }

  /// Some rank says one of the texts.
  static bool one_says(const std::vector<std::string>& errors, const std::string& text,
                       const std::string& or_text = "\n") {
    for (const std::string& error : errors) {
      if (error.find(text) != std::string::npos || error.find(or_text) != std::string::npos) {
        return true;
      }
    }
    std::string all;
    for (const std::string& error : errors) {
      all += "\n  " + error;
    }
    ADD_FAILURE() << "none says '" << text << "':" << all;
    return false;
  }
};

}  // namespace gradwire::transport_test
