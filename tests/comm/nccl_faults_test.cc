// What ranks of the NCCL transport see when a rank is missing, late, gives up or leaves, and when
// the library reports an error: one reason on every rank, communicators aborted and never destroyed.

#include <chrono>

#include "tests/comm/nccl_ranks.h"

namespace gradwire::transport_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

class NcclFaults : public testing::Test {
 protected:
  void SetUp() override { fake_nccl().reset(); }
  void TearDown() override {
    EXPECT_EQ(fake_nccl().alive, 0) << "communicators are left";
    EXPECT_EQ(fake_nccl().misuses, 0);
  }

  /// Every rank fails with `text`, and again at its next call.
  static void expect_failure(int size, const NcclGroup& group, const std::string& text,
                             const std::function<void(NcclRank)>& body) {
    const auto errors = run_nccl_ranks(size, group, [&](NcclRank self) {
      std::string first;
      try {
        body(self);
        // Whoever was not concerned hears of it at a later call.
        const auto until = steady_clock::now() + std::chrono::seconds(10);
        while (steady_clock::now() < until) {
          self.barrier("a later call");
        }
      } catch (const TransportError& error) {
        first = error.what();
      }
      try {
        self.barrier();
        ADD_FAILURE() << "rank " << self.rank << " went on after " << first;
      } catch (const TransportError& error) {
        EXPECT_EQ(error.what(), first);
      }
      throw TransportError(first);
    });
    for (size_t r = 0; r < errors.size(); ++r) {
      EXPECT_NE(errors[r].find(text), std::string::npos) << "rank " << r << ": " << errors[r];
      EXPECT_NE(errors[r].find("rank "), std::string::npos) << errors[r];
    }
    EXPECT_EQ(fake_nccl().destroyed, 0) << "destroyed after a failure";
  }
};

TEST_F(NcclFaults, ARankThatNeverCallsIsNamedAtTheDeadline) {
  const milliseconds timeout(400);
  std::atomic<int> told{0};
  const auto start = steady_clock::now();  // of whichever rank's deadline comes first
  expect_failure(3, {.timeout = timeout},
                 "rank 1 stayed silent past the deadline",
                 [&](NcclRank self) {
                   if (self.rank == 1) {
                     while (told < 2) {
                       std::this_thread::sleep_for(milliseconds(1));
                     }
                     return;
                   }
                   try {
                     self.barrier("step 5");
                   } catch (const TransportError& error) {
                     EXPECT_EQ(error.peer(), 1);
                     EXPECT_STREQ(error.what(),
                                  "barrier of step 5: rank 1 stayed silent past the deadline");
                     EXPECT_GE(steady_clock::now() - start, timeout);
                     ++told;
                     throw;
                   }
                 });
}

TEST_F(NcclFaults, ADeadlineIsKept) {
  const auto begin = steady_clock::now();
  const auto errors = run_nccl_ranks(2, {.timeout = milliseconds(300)}, [&](NcclRank self) {
    if (self.rank == 1) {
      std::this_thread::sleep_for(milliseconds(1200));
      self.transport->throw_if_failed();
      return;
    }
    const auto start = steady_clock::now();
    EXPECT_THROW(self.barrier("a call"), TransportError);
    EXPECT_LT(steady_clock::now() - start, milliseconds(300 + 500));
  });
  EXPECT_NE(errors[1], "");
  EXPECT_LT(steady_clock::now() - begin, milliseconds(20000));
}

TEST_F(NcclFaults, AnAbortReachesTheStreamsOfAll) {
  expect_failure(3, {}, "the user pressed stop", [](NcclRank self) {
    OnGpu<float> values(1000);
    if (self.rank == 2) {
      std::this_thread::sleep_for(milliseconds(30));  // most often the others wait by now
      self.transport->abort("rank 2: the user pressed stop");
      return;
    }
    self.transport->all_reduce_sum(values.span(), {1, "a gradient"}, self.context);
    self.wait();
  });
}

TEST_F(NcclFaults, WhatTheLibraryNoticesIsToldInItsWords) {
  // Whether the watchdog asks first or the next call.
  expect_failure(2, {}, ": remote process exited or there was a network error (ncclResult_t 6): "
                        "socket: connection closed by remote peer",
                 [](NcclRank self) {
                   self.barrier();
                   if (self.rank == 1) {
                     fake_nccl().async_error = 6;
                     fake_nccl().async_error_rank = 1;
                   }
                 });
}

TEST_F(NcclFaults, ACallThatTheLibraryRefusesEndsTheGroup) {
  expect_failure(2, {}, "rank 0: all_reduce_sum of bucket 3: internal error (ncclResult_t 3)",
                 [](NcclRank self) {
                   OnGpu<float> values(10);
                   self.barrier();
                   if (self.rank == 0) {
                     fake_nccl().call_result = 3;
                     self.transport->all_reduce_sum(values.span(), {0, "bucket 3"}, self.context);
                   }
                 });
}

TEST_F(NcclFaults, JoiningThatFailsIsToldInTheLibrarysWords) {
  fake_nccl().init_result = 1;
  for (const std::string& error : run_nccl_ranks(2, {}, [](NcclRank) { FAIL(); })) {
    EXPECT_NE(error.find("joining 2 ranks: unhandled cuda error (ncclResult_t 1): Cuda failure 35"),
              std::string::npos)
        << error;
  }
}

TEST_F(NcclFaults, JoiningThatNeverEndsEndsAtTheDeadline) {
  fake_nccl().never_ready = true;
  const auto start = steady_clock::now();
  for (const std::string& error :
       run_nccl_ranks(2, {.timeout = milliseconds(1500)}, [](NcclRank) { FAIL(); })) {
    EXPECT_NE(error, "");
    EXPECT_NE(error.find("rank"), std::string::npos) << error;
  }
  EXPECT_LT(steady_clock::now() - start, milliseconds(1500 + 5000));
  EXPECT_EQ(fake_nccl().aborted, 2);
}

TEST_F(NcclFaults, ALengthAboveTheStrideFailsTheCallerAndFreesTheOthers) {
  const auto errors = run_nccl_ranks(3, {}, [](NcclRank self) {
    OnGpu<std::byte> all(300);
    std::vector<size_t> lengths(3);
    const size_t length = self.rank == 2 ? 101 : 100;
    self.transport->all_gather(length, all.bytes().first(100), {all.bytes(), 100, lengths}, {},
                               self.context);
    self.wait();
  });
  EXPECT_EQ(errors[2], "all_gather: length is 101, capacity is 100");
  EXPECT_NE(errors[0].find("rank 2: all_gather: length is 101"), std::string::npos) << errors[0];
  EXPECT_NE(errors[1].find("rank 2: all_gather: length is 101"), std::string::npos) << errors[1];
}

TEST_F(NcclFaults, ARankThatLeavesIsNamed) {
  const auto errors = run_nccl_ranks(3, {}, [](NcclRank self) {
    self.barrier();
    if (self.rank == 2) {
      self.transport.reset();
      return;
    }
    for (;;) {
      self.barrier("a later call");
    }
  });
  EXPECT_EQ(errors[2], "");
  for (const int r : {0, 1}) {
    EXPECT_NE(errors[static_cast<size_t>(r)].find("barrier of a later call: rank 2 left the group"),
              std::string::npos)
        << errors[static_cast<size_t>(r)];
  }
}

TEST_F(NcclFaults, TagsThatDifferAreFoundWhereEveryCallIsCompared) {
  expect_failure(3, {.options = {.compare = NcclOptions::Compare::kEveryCall}},
                 "all_reduce_sum of bucket 3: call 1: ranks disagree on shape, dtype or spec",
                 [](NcclRank self) {
                   OnGpu<float> values(10);
                   const uint64_t fingerprint = self.rank == 1 ? 0xBAD : 0x600D;
                   self.transport->all_reduce_sum(values.span(), {fingerprint, "bucket 3"},
                                                  self.context);
                   self.wait();
                 });
}

TEST_F(NcclFaults, RanksThatCallDifferentVerbsEndAtTheDeadline) {
  expect_failure(2, {.timeout = milliseconds(300)},
                 "heard nothing until the deadline, though all ranks are in the call", [](NcclRank self) {
                   OnGpu<float> values(10);
                   if (self.rank == 0) {
                     self.transport->all_reduce_sum(values.span(), {0, "one"}, self.context);
                   } else {
                     self.transport->broadcast(values.bytes(), 0, {0, "another"}, self.context);
                   }
                   self.wait();
                 });
}

TEST_F(NcclFaults, AGroupMadeBySplitFailsWithItsWorld) {
  expect_failure(4, {.timeout = milliseconds(400)},
                 "rank 3 stayed silent past the deadline", [](NcclRank self) {
                   const auto half = self.transport->split(self.rank % 2);
                   if (self.rank == 1) {
                     half->barrier({0, "the half"}, self.context);
                     self.wait();
                   }
                   for (;;) {
                     self.transport->throw_if_failed();
                     std::this_thread::sleep_for(milliseconds(1));
                   }
                 });
}

TEST_F(NcclFaults, AnAbortThatTakesItsTimeKeepsNobodyWaiting) {
  fake_nccl().abort_ms = 700;
  const auto errors = run_nccl_ranks(2, {}, [](NcclRank self) {
    self.barrier();
    if (self.rank == 0) {
      const auto start = steady_clock::now();
      self.transport->abort("rank 0: stop");
      EXPECT_THROW(self.transport->barrier({}, self.context), TransportError);
      EXPECT_LT(steady_clock::now() - start, milliseconds(600));
    }
  });
  EXPECT_EQ(errors[0], "");
}

TEST_F(NcclFaults, RanksWithDifferentLibrariesAreTold) {
  const NcclLibrary library = make_fake_nccl();
  NcclLibrary newer = library;
  newer.version = 23007;
  const TemporaryFolder folder;
  for (const std::string& error : run_threads(2, [&](int r) {
         TransportOptions options;
         options.rank = r;
         options.world_size = 2;
         options.store = "file:" + folder.path();
         make_nccl_transport(r == 0 ? library : newer, options);
       })) {
    EXPECT_EQ(error, "nccl: rank 1 has NCCL 2.30.7, rank 0 has 2.28.9, must be the same");
  }
}

}  // namespace
}  // namespace gradwire::transport_test
