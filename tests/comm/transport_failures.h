#pragma once
// Ranks that must fail, all of them and with one error.

#include <atomic>
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

  /// Of fail_without_rank_one(); for joining, too: gloo needs its time to connect.
  static constexpr milliseconds kPatience{1000};

  /// Runs `body` on ranks 0 and 2 of three, while rank 1 is there and calls nothing until both have
  /// failed; every rank must fail.
  std::vector<std::string> fail_without_rank_one(const std::function<void(Rank)>& body) const {
    TransportOptions options;
    options.timeout = kPatience;
    std::atomic<int> failed{0};
    const auto errors = run_ranks(GetParam(), 3, options, [&](Rank self) {
      if (self.rank == 1) {
        while (failed < 2) {
          std::this_thread::sleep_for(milliseconds(1));
        }
        self.transport.barrier({}, self.context);
        self.context.stream.wait();
        return;
      }
      try {
        body(self);
      } catch (...) {
        ++failed;
        throw;
      }
      ++failed;
    });
    for (const std::string& error : errors) {
      EXPECT_NE(error, "");
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
