// Ranks as real processes over Gloo: what survivors see when one is killed, stopped, exits, or
// never comes.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/comm/transport_ranks.h"

namespace gradwire::transport_test {
namespace {

using std::chrono::milliseconds;

/// Child processes, one per rank, each with a pipe to say things through. Killed at the end.
class Processes {
 public:
  /// Forks `count` ranks; each runs `body(rank, say)`, says its error if there is one, and exits.
  Processes(int count,
            const std::function<void(int, const std::function<void(const std::string&)>&)>& body) {
    for (int r = 0; r < count; ++r) {
      int ends[2];
      if (pipe(ends) != 0) {
        throw std::runtime_error("pipe failed");
      }
      const pid_t pid = fork();
      if (pid == 0) {
        ::close(ends[0]);
        const auto say = [&ends](const std::string& line) {
          const std::string text = line + "\n";
          if (write(ends[1], text.data(), text.size()) < 0) {
            _exit(3);
          }
        };
        try {
          body(r, say);
          say("fine");
        } catch (const std::exception& error) {
          say(error.what());
        }
        _exit(0);
      }
      ::close(ends[1]);
      pids_.push_back(pid);
      pipes_.push_back(ends[0]);
      unread_.emplace_back();
    }
  }
  ~Processes() {
    for (size_t r = 0; r < pids_.size(); ++r) {
      send(static_cast<int>(r), SIGKILL);
      waitpid(pids_[r], nullptr, 0);
      ::close(pipes_[r]);
    }
  }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  void send(int rank, int signal) const { kill(pids_[static_cast<size_t>(rank)], signal); }

  /// The next line of a rank; "" when it is gone.
  std::string line_of(int rank) {
    std::string& unread = unread_[static_cast<size_t>(rank)];
    for (;;) {
      if (const size_t end = unread.find('\n'); end != std::string::npos) {
        const std::string line = unread.substr(0, end);
        unread.erase(0, end + 1);
        return line;
      }
      char bytes[1024];
      const ssize_t count = read(pipes_[static_cast<size_t>(rank)], bytes, sizeof(bytes));
      if (count <= 0) {
        return {};
      }
      unread.append(bytes, static_cast<size_t>(count));
    }
  }

 private:
  std::vector<pid_t> pids_;
  std::vector<int> pipes_;
  std::vector<std::string> unread_;
};

class GlooProcesses : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = unavailable("gloo"); !why.empty()) {
      GTEST_SKIP() << why;
    }
  }

  TransportOptions options_of(int rank, int size, milliseconds timeout) const {
    TransportOptions options;
    options.rank = rank;
    options.world_size = size;
    options.timeout = timeout;
    options.store = "file:" + folder_.path();
    options.network_interface = "lo";
    return options;
  }

  /// Reduces a gradient of 8 MB again and again; says "running" after the second time.
  static void reduce_forever(Transport& transport,
                             const std::function<void(const std::string&)>& say) {
    const auto stream = make_inline_stream();
    Workspace workspace;
    Context context{*stream, workspace};
    std::vector<float> values(2 << 20, 0.0f);
    for (int step = 0;; ++step) {
      transport.all_reduce_sum(values, {1, "bucket 0"}, context);
      stream->wait();
      if (step == 1) {
        say("running");
      }
    }
  }

  TemporaryFolder folder_;
};

TEST_F(GlooProcesses, AKilledRankFailsAllSurvivorsLongBeforeTheDeadline) {
  const int size = 4;
  Processes processes(size, [&](int rank, const auto& say) {
    const auto transport = make_transport("gloo", options_of(rank, size, milliseconds(60000)));
    reduce_forever(*transport, say);
  });
  for (int r = 0; r < size; ++r) {
    ASSERT_EQ(processes.line_of(r), "running");
  }
  processes.send(2, SIGKILL);
  for (const int survivor : {0, 1, 3}) {
    const std::string error = processes.line_of(survivor);
    EXPECT_NE(error.find("all_reduce_sum of bucket 0: rank "), std::string::npos) << error;
    EXPECT_NE(error.find(" died or closed the connection"), std::string::npos) << error;
  }
}

TEST_F(GlooProcesses, AStoppedRankFailsAllSurvivorsAtTheDeadline) {
  const int size = 3;
  Processes processes(size, [&](int rank, const auto& say) {
    auto options = options_of(rank, size, milliseconds(3000));
    const auto transport = make_transport("gloo", options);
    reduce_forever(*transport, say);
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
    EXPECT_NE(error.find("all_reduce_sum of bucket 0: rank "), std::string::npos) << error;
  }
  processes.send(1, SIGCONT);  // it wakes up in a group that is over
  EXPECT_NE(processes.line_of(1).find("all_reduce_sum of bucket 0: rank "), std::string::npos);
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
