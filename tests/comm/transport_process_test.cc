// Ranks as real processes over Gloo: what survivors see when one is killed, stopped, exits, or
// never comes.

#include <fstream>

#include "tests/comm/transport_processes.h"

namespace gradwire::transport_test {
namespace {

constexpr AllReduce kAlgorithms[] = {AllReduce::kRankOrder, AllReduce::kRing,
                                     AllReduce::kRabenseifner};

TEST_F(GlooProcesses, AKilledRankFailsAllSurvivorsLongBeforeTheDeadline) {
  const int size = 4;
  for (const AllReduce algorithm : kAlgorithms) {
    const TemporaryFolder folder;
    Processes processes(size, [&](int rank, const auto& say) {
      auto options = options_of(rank, size, milliseconds(60000));
      options.store = "file:" + folder.path();
      const auto transport = make_transport("gloo", options);
      try {
        reduce_forever(*transport, say, algorithm);
      } catch (const TransportError& error) {
        say(error.what());
        pause();  // a survivor that ends could be taken for the one that died first
      }
    });
    for (int r = 0; r < size; ++r) {
      ASSERT_EQ(processes.line_of(r), "running");
    }
    processes.send(2, SIGKILL);
    for (const int survivor : {0, 1, 3}) {
      const std::string error = processes.line_of(survivor);
      EXPECT_NE(error.find(" of bucket 0: rank "), std::string::npos) << error;
      EXPECT_NE(error.find("rank 2 died"), std::string::npos)
          << "rank " << survivor << " names another: " << error;
    }
  }
}

TEST_F(GlooProcesses, AStoppedRankFailsAllSurvivorsAtTheDeadline) {
  const int size = 3;
  for (const AllReduce algorithm : kAlgorithms) {
    const TemporaryFolder folder;
    Processes processes(size, [&](int rank, const auto& say) {
      auto options = options_of(rank, size, milliseconds(3500));
      options.store = "file:" + folder.path();
      const auto transport = make_transport("gloo", options);
      reduce_forever(*transport, say, algorithm);
    });
    for (int r = 0; r < size; ++r) {
      ASSERT_EQ(processes.line_of(r), "running");
    }
    processes.send(1, SIGSTOP);
    const std::string errors[2] = {processes.line_of(0), processes.line_of(2)};
    EXPECT_NE((errors[0] + errors[1]).find("rank 1 stayed silent past the deadline"),
              std::string::npos)
        << errors[0] << "\n"
        << errors[1];
    for (const std::string& error : errors) {
      EXPECT_NE(error.find(" of bucket 0: rank "), std::string::npos) << error;
    }
    processes.send(1, SIGCONT);  // it wakes up in a group that is over
    EXPECT_NE(processes.line_of(1).find(" of bucket 0: rank "), std::string::npos);
  }
}

TEST_F(GlooProcesses, ARankThatExitsEarlyIsNoticed) {
  const int size = 3;
  Processes processes(size, [&](int rank, const auto& say) {
    const auto transport = make_transport("gloo", options_of(rank, size, milliseconds(60000)));
    if (rank == 0) {
      _exit(0);  // without destroying anything
    }
    reduce_forever(*transport, say);
  });
  for (const int survivor : {1, 2}) {
    const std::string error = processes.line_of(survivor);
    EXPECT_NE(error.find("all_reduce_sum of bucket 0: rank "), std::string::npos) << error;
  }
}

TEST_F(GlooProcesses, FinishedRanksMayLeaveWhileOthersAreStillWorking) {
  const int size = 4;
  for (int round = 0; round < 3; ++round) {
    Processes processes(size, [&](int rank, const auto&) {
      auto options = options_of(rank, size, milliseconds(60000));
      const auto transport = make_transport("gloo", options);
      const auto stream = make_inline_stream();
      Workspace workspace;
      Context context{*stream, workspace};
      std::vector<float> values(300000, 1.0f);
      transport->all_reduce_sum(values, {1, "bucket 0"}, context);
      stream->wait();
      for (const float value : values) {
        check(value == 4.0f, "sum is ", value);
      }
    });
    for (int r = 0; r < size; ++r) {
      EXPECT_EQ(processes.line_of(r), "fine");
    }
  }
}

// Each leaves at once, while others are still inside the barrier or saying their farewells, on
// whose connections it may have bytes that nobody will read any more.
TEST_F(GlooProcesses, RanksMayLeaveRightAfterTheirLastCall) {
  const int size = 10;
  for (int round = 0; round < 6; ++round) {
    const TemporaryFolder folder;
    Processes processes(size, [&](int rank, const auto& say) {
      auto options = options_of(rank, size, milliseconds(60000));
      options.store = "file:" + folder.path();
      {
        const auto transport = make_transport("gloo", options);
        const auto stream = make_inline_stream();
        Workspace workspace;
        Context context{*stream, workspace};
        transport->barrier({0, "the end"}, context);
        stream->wait();
      }
      say("left");
    });
    for (int r = 0; r < size; ++r) {
      ASSERT_EQ(processes.line_of(r), "left") << "rank " << r << " in round " << round;
    }
  }
}

/// Ranks of which the last one stands still while the others close.
class GlooClosing : public GlooProcesses {
 protected:
  static constexpr int kSize = 3;

  // Closing waits a minute at most, also where it should not wait.
  void SetUp() override {
    GlooProcesses::SetUp();
    alarm(45);
  }
  void TearDown() override { alarm(0); }

  Processes processes(milliseconds timeout) {
    return Processes(kSize, [this, timeout](int rank, const auto& say) {
      {
        const auto transport = make_transport("gloo", options_of(rank, kSize, timeout));
        const auto stream = make_inline_stream();
        Workspace workspace;
        Context context{*stream, workspace};
        transport->barrier({0, "the end"}, context);
        stream->wait();
        say("idle");
        while (rank + 1 == kSize || !std::filesystem::exists(close_)) {
          std::this_thread::sleep_for(milliseconds(1));
        }
        say("closing");
      }
      say("closed");
    });
  }
  void stop_the_last_and_close_the_others(Processes& ranks) {
    for (int r = 0; r < kSize; ++r) {
      ASSERT_EQ(ranks.line_of(r), "idle");
    }
    ranks.stop(kSize - 1);
    std::ofstream(close_) << "now";
    for (int r = 0; r + 1 < kSize; ++r) {
      ASSERT_EQ(ranks.line_of(r), "closing");
    }
  }
  static void expect_closed(Processes& ranks) {
    for (int r = 0; r + 1 < kSize; ++r) {
      EXPECT_EQ(ranks.line_of(r), "closed");
    }
  }

 private:
  const TemporaryFolder signs_;
  const std::string close_ = signs_.path() + "/close";
};

TEST_F(GlooClosing, WaitsForASilentRankNoLongerThanTheTimeout) {
  Processes ranks = processes(milliseconds(1500));
  stop_the_last_and_close_the_others(ranks);
  expect_closed(ranks);
}

TEST_F(GlooClosing, DoesNotWaitForARankThatDies) {
  Processes ranks = processes(milliseconds(3600000));
  stop_the_last_and_close_the_others(ranks);
  std::this_thread::sleep_for(milliseconds(200));  // for them to wait for it already
  ranks.send(kSize - 1, SIGKILL);
  expect_closed(ranks);
}

TEST_F(GlooProcesses, RanksThatNeverAppearAreNamed) {
  const int size = 4;  // of which ranks 1 and 3 stay away
  for (const std::string& store :
       {"file:" + folder_.path(), "tcp:127.0.0.1:" + std::to_string(TakenPort().port())}) {
    SCOPED_TRACE(store);
    Processes processes(3, [&](int rank, const auto&) {
      if (rank == 1) {
        return;
      }
      auto options = options_of(rank, size, milliseconds(1500));
      options.store = store;
      make_transport("gloo", options);
    });
    for (const int rank : {0, 2}) {
      const std::string error = processes.line_of(rank);
      EXPECT_NE(error.find("2 of 4 ranks "), std::string::npos) << error;
      EXPECT_NE(error.find(": rank 1, 3"), std::string::npos) << error;
    }
  }
}

TEST_F(GlooProcesses, MeetOverTcp) {
  const int size = 3;
  const std::string store = "tcp:127.0.0.1:" + std::to_string(TakenPort().port());
  Processes processes(size, [&](int rank, const auto&) {
    auto options = options_of(rank, size, milliseconds(60000));
    options.store = store;
    options.network_interface.clear();  // the one that routes to the store
    const auto transport = make_transport("gloo", options);
    const auto stream = make_inline_stream();
    Workspace workspace;
    Context context{*stream, workspace};
    std::vector<float> values(1000, static_cast<float>(rank));
    transport->all_reduce_sum(values, {}, context);
    stream->wait();
    check(values == std::vector<float>(1000, 3.0f), "wrong sum");
  });
  for (int r = 0; r < size; ++r) {
    EXPECT_EQ(processes.line_of(r), "fine");
  }
}

}  // namespace
}  // namespace gradwire::transport_test
