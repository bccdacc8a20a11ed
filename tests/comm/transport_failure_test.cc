// What ranks see when they disagree, come late, give up or are told to stop: an error on every
// rank, naming a rank, and the same one ever after.

#include <atomic>
#include <chrono>

#include "tests/comm/transport_failures.h"

namespace gradwire::transport_test {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

TEST_P(Failures, RanksThatDisagreeOnTheFingerprintAreTold) {
  const auto errors = fail([](Rank self) {
    std::vector<std::byte> mine(1000), all(3000);
    std::vector<size_t> lengths(3);
    const CallTag tag{self.rank == 2 ? uint64_t{0xBAD} : uint64_t{0x600D}, "bucket 3"};
    self.transport.all_gather(mine.size(), mine, {all, 1000, lengths}, tag, self.context);
    self.context.stream.wait();
  });
  const std::string tail = ": ranks disagree on shape, dtype or spec";
  // Whoever looks first: ranks 0 and 1 see rank 2's, rank 2 sees one of theirs.
  const bool seen_by_others =
      errors[0] + errors[1] != "" &&
      (errors[0] + errors[1])
              .find("all_gather of bucket 3: rank 2 sent fingerprint 0xbad, expected 0x600d" +
                    tail) != std::string::npos;
  const bool seen_by_two =
      errors[2].find("sent fingerprint 0x600d, expected 0xbad" + tail) != std::string::npos;
  EXPECT_TRUE(seen_by_others || seen_by_two) << errors[0] << "\n" << errors[1] << "\n" << errors[2];
}

TEST_P(Failures, RanksThatCallDifferentVerbsAreTold) {
  const auto errors = fail([](Rank self) {
    std::vector<std::byte> all(300);
    std::vector<size_t> lengths(3);
    if (self.rank == 1) {
      self.transport.barrier({7, "the start"}, self.context);
    } else {
      self.transport.all_gather(100, std::span(all).first(100), {all, 100, lengths},
                                {7, "the start"}, self.context);
    }
    self.context.stream.wait();
  });
  one_says(errors, ": ranks disagree on the order of calls");
}

TEST_P(Failures, SendingMoreThanTheReceiverExpectsIsAnErrorNotAnOverrun) {
  for (const size_t excess : {size_t{1}, 64 * size_t{1024}, 3 * kMiB}) {
    SCOPED_TRACE(excess);
    const auto errors = fail([excess](Rank self) {
      const size_t capacity = 1000, own = self.rank == 1 ? capacity + excess : capacity;
      std::vector<std::byte> mine(own), all(3 * own), guarded(3 * capacity + 64, std::byte{0x77});
      std::vector<size_t> lengths(3);
      if (self.rank == 1) {
        self.transport.all_gather(own, mine, {all, own, lengths}, {7, "bucket 0"}, self.context);
      } else {
        self.transport.all_gather(own, mine,
                                  {std::span(guarded).first(3 * capacity), capacity, lengths},
                                  {7, "bucket 0"}, self.context);
      }
      try {
        self.context.stream.wait();
      } catch (const TransportError&) {
        if (self.rank != 1) {
          EXPECT_EQ(guarded[3 * capacity], std::byte{0x77});
          EXPECT_EQ(guarded[capacity], std::byte{0x77}) << "rank 1's part was written";
        }
        throw;
      }
    });
    const std::string more = std::to_string(1000 + excess);
    one_says(errors, "rank 1 sent up to " + more + " bytes, expected up to 1000",
             "sent up to 1000 bytes, expected up to " + more);  // whoever sees it first
  }
}

TEST_P(Failures, RanksThatReduceDifferentCountsAreTold) {
  const auto errors = fail([](Rank self) {
    std::vector<float> values(self.rank == 0 ? 900 : 903);
    self.transport.all_reduce_sum(values, {7, "values"}, self.context);
    self.context.stream.wait();
  });
  one_says(errors, "bytes, expected ");
}

TEST_P(Failures, ReceivingLessThanTheBufferIsAnErrorWhereSizesMustAgree) {
  const auto errors = fail([](Rank self) {
    std::vector<std::byte> bytes(self.rank == 0 ? 100 : 200);
    self.transport.broadcast(bytes, 0, {7, "parameters"}, self.context);
    self.context.stream.wait();
  });
  one_says(errors, "broadcast of parameters: rank 0 sent 100 bytes, expected 200");
}

TEST_P(Failures, ALengthAboveCapacityFailsTheCallerAndFreesTheOthers) {
  const auto errors = run_ranks(GetParam(), 3, {}, [](Rank self) {
    std::vector<std::byte> mine(2000), all(3000);
    std::vector<size_t> lengths(3);
    const size_t length = self.rank == 2 ? 1001 : 1000;
    self.transport.all_gather(length, mine, {all, 1000, lengths}, {}, self.context);
    self.context.stream.wait();
  });
  EXPECT_NE(errors[2].find("length is 1001, capacity is 1000"), std::string::npos) << errors[2];
  EXPECT_NE(errors[0].find("rank"), std::string::npos) << errors[0];
  EXPECT_NE(errors[1].find("rank"), std::string::npos) << errors[1];
}

TEST_P(Failures, ARankThatNeverCallsIsNamedAtTheDeadline) {
  const auto start = std::chrono::steady_clock::now();
  const auto errors = fail_without_rank_one([](Rank self) {
    self.transport.barrier({3, "step 5"}, self.context);
    self.context.stream.wait();
  });
  EXPECT_GE(std::chrono::steady_clock::now() - start, kPatience);
  const std::string both = errors[0] + errors[2];
  EXPECT_NE(both.find("barrier of step 5: rank 1 stayed silent past the deadline"),
            std::string::npos)
      << both;
}

TEST_P(Failures, ALengthForAnotherRankAboveCapacityIsRefusedWhereItIsGiven) {
  const auto errors = run_ranks(GetParam(), 3, {}, [](Rank self) {
    std::vector<std::byte> send(12000), receive(12000);
    std::vector<size_t> lengths(3, 4000), received(3);
    lengths[static_cast<size_t>((self.rank + 1) % 3)] = self.rank == 2 ? 4001 : 4000;
    self.transport.all_to_all({send, 4000, lengths}, {receive, 4000, received}, {},
                              self.context);
    self.context.stream.wait();
  });
  EXPECT_NE(errors[2].find("length is 4001, capacity is 4000"), std::string::npos) << errors[2];
  EXPECT_NE(errors[0].find("rank"), std::string::npos) << errors[0];
}

TEST_P(Failures, ADeadlineInOneGroupEndsAnotherThatIsBusy) {
  TransportOptions options;
  options.timeout = milliseconds(300);
  for (int round = 0; round < 4; ++round) {
    const auto errors = run_ranks(GetParam(), 2, options, [](Rank self) {
      const auto silent = self.transport.split(0), busy = self.transport.split(0);
      const auto stream = make_cpu_stream();
      Workspace workspace;
      Context there{*stream, workspace};
      std::string busy_error;
      std::thread other([&] {
        std::vector<float> values(60000);
        try {
          for (;;) {
            busy->all_reduce_sum(values, {2, "the busy group"}, there);
            stream->wait();
          }
        } catch (const TransportError& error) {
          busy_error = error.what();
        }
      });
      try {
        if (self.rank == 0) {
          silent->barrier({1, "the silent group"}, self.context);
          self.context.stream.wait();
        }
      } catch (...) {
        other.join();
        EXPECT_NE(busy_error.find("rank"), std::string::npos) << busy_error;
        throw;
      }
      other.join();
      EXPECT_NE(busy_error.find("rank"), std::string::npos) << busy_error;
    });
    EXPECT_NE(errors[0].find("rank 1 stayed silent past the deadline"), std::string::npos)
        << errors[0];
  }
}

TEST_P(Failures, AbortFromAnotherThreadWakesEveryone) {
  // Rank 0 waits for rank 1 in vain; a thread of rank 2 that is in no call at all gives up.
  const auto group = make_group(GetParam(), 3, {});
  std::atomic<bool> about_to_wait{false};
  const auto errors = run_threads(3, [&](int r) {
    Transport& transport = *group[static_cast<size_t>(r)];
    const auto stream = make_cpu_stream();
    Workspace workspace;
    Context context{*stream, workspace};
    if (r == 0) {
      std::vector<float> values(3 * kMiB);
      transport.all_reduce_sum(values, {1, "a gradient"}, context);
      about_to_wait = true;
      stream->wait();
      return;
    }
    while (!about_to_wait) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    if (r == 2) {
      transport.abort("the user pressed stop");
    }
    transport.barrier({1, "late"}, context);
    stream->wait();
  });
  EXPECT_EQ(errors[2], "the user pressed stop");
  for (const int r : {0, 1}) {
    const std::string& error = errors[static_cast<size_t>(r)];
    EXPECT_NE(error, "");
    EXPECT_EQ(error.find("stayed silent"), std::string::npos)
        << "it waited for its deadline: " << error;
  }
}

TEST_P(Failures, AbortWakesACallOfItsOwnRank) {
  // Rank 0 aborts its own call; ranks 1 and 2 are in none, and find out later. The deadline is so
  // far away that a call which waits for it ends with the test's own time limit.
  TransportOptions options;
  options.timeout = std::chrono::hours(1);
  const auto group = make_group(GetParam(), 3, options);
  std::atomic<bool> over{false};
  const auto errors = run_threads(3, [&](int r) {
    Transport& transport = *group[static_cast<size_t>(r)];
    const auto stream = make_cpu_stream();
    Workspace workspace;
    Context context{*stream, workspace};
    std::vector<float> values(3 * kMiB);
    while (r != 0 && !over) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    transport.all_reduce_sum(values, {1, "a gradient"}, context);
    if (r == 0) {
      std::this_thread::sleep_for(milliseconds(50));  // most often it waits by now
      transport.abort("the user pressed stop");
    }
    try {
      stream->wait();
    } catch (...) {
      over = true;
      throw;
    }
  });
  EXPECT_EQ(errors[0], "the user pressed stop");
  EXPECT_NE(errors[1], "");
  EXPECT_NE(errors[2], "");
}

TEST_P(Failures, ARankThatLeavesIsNamed) {
  auto group = make_group(GetParam(), 3, {});
  const auto errors = run_threads(3, [&](int r) {
    auto& transport = group[static_cast<size_t>(r)];
    const auto stream = make_inline_stream();
    Workspace workspace;
    Context context{*stream, workspace};
    transport->barrier({}, context);
    stream->wait();
    if (r == 1) {
      transport.reset();
      return;
    }
    transport->barrier({1, "step 2"}, context);
    stream->wait();
  });
  EXPECT_EQ(errors[1], "");
  EXPECT_NE((errors[0] + errors[2]).find("barrier of step 2: rank 1 "), std::string::npos)
      << errors[0] << "\n"
      << errors[2];
  for (const int r : {0, 2}) {
    const std::string& error = errors[static_cast<size_t>(r)];
    EXPECT_NE(error, "");
    EXPECT_EQ(error.find("stayed silent"), std::string::npos)
        << "it waited for its deadline: " << error;
  }
}

TEST_P(Failures, BuffersThatDoNotFitAreRefusedBeforeAnythingMoves) {
  expect_all_fine(run_ranks(GetParam(), 2, {}, [](Rank self) {
    std::vector<std::byte> bytes(100);
    std::vector<size_t> one(1), two(2);
    std::vector<float> values(10), out(4);
    EXPECT_THROW(self.transport.all_gather(1, bytes, {bytes, 10, one}, {}, self.context),
                 InvalidArgument);
    EXPECT_THROW(self.transport.all_gather(1, bytes, {bytes, 51, two}, {}, self.context),
                 InvalidArgument);
    EXPECT_THROW(self.transport.reduce_scatter(values, out, {}, self.context), InvalidArgument);
    EXPECT_THROW(self.transport.broadcast(bytes, 2, {}, self.context), InvalidArgument);
    EXPECT_THROW(self.transport.split(-1), InvalidArgument);
    self.transport.barrier({}, self.context);  // and the group still works
    self.context.stream.wait();
  }));
}

INSTANTIATE_TEST_SUITE_P(AllTransports, Failures, testing::ValuesIn(kinds()),
                         [](const auto& p) { return p.param; });

// 4 * 2^62 begins anew at 0 in 64 bits, which any buffer has room for.
TEST(TransportCapacity, OfPartsThatNoMemoryHoldsIsRefusedBeforeAnythingMoves) {
  const auto group = make_in_process_group(4);
  const auto stream = make_inline_stream();
  Workspace workspace;
  Context context{*stream, workspace};
  std::vector<std::byte> bytes(64);
  std::vector<size_t> lengths(4, 8);
  const Parts parts{bytes, size_t{1} << 62, lengths};
  const auto expect_refused = [](const char* verb, const auto& call) {
    try {
      call();
      FAIL() << verb << " took it";
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(std::string(error.what()),
                concat(verb, ": 64 bytes and 4 lengths for 4 parts of 4611686018427387904 bytes"));
    }
  };
  expect_refused("all_gather", [&] {
    group[0]->all_gather(lengths[0], std::span(bytes).first(8), parts, {1, "bucket 0"}, context);
  });
  expect_refused("all_to_all",
                 [&] { group[0]->all_to_all(parts, parts, {1, "bucket 0"}, context); });
  EXPECT_THROW(group[0]->gather_words("eight...", size_t{1} << 62, {1, "words"}, context),
               DeviceError);
}

TEST(TransportRegistry, NamesWhatItKnows) {
  try {
    make_transport("carrier_pigeon", {});
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "transport: unknown name 'carrier_pigeon', known: in_process, gloo, mpi, nccl");
  }
}

TEST(TransportRegistry, ChecksRankAndWorldSize) {
  EXPECT_THROW(make_transport("in_process", {.rank = 1, .world_size = 1}), InvalidArgument);
  EXPECT_THROW(make_transport("in_process", {.rank = 0, .world_size = 2}), InvalidArgument);
  EXPECT_THROW(make_transport("in_process", {.rank = 0, .world_size = 0}), InvalidArgument);
  EXPECT_THROW(make_in_process_group(0), InvalidArgument);
  EXPECT_EQ(make_transport("in_process", {})->world_size(), 1);
}

TEST(TransportRegistry, SaysWhereItLookedForThePlugIn) {
  TransportOptions options;
  options.plugin_path = "/nowhere/libgradwire_gloo.so";
  try {
    make_transport("gloo", options);
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(
        error.what(),
        "plug-in: not found, looked for /nowhere/libgradwire_gloo.so; expected what the "
        "target gradwire_gloo makes: where it lies elsewhere, as beside a program that links "
        "gradwire statically, give its path or folder as plugin_path (find_package's "
        "gradwire_PLUGIN_DIR)");
  }
}

}  // namespace
}  // namespace gradwire::transport_test
