#pragma once
// Ranks as processes of their own over Gloo, for the tests that kill and stop them.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/comm/transport_ranks.h"

namespace gradwire::transport_test {

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

  /// Stops a rank; returns when it stands still.
  void stop(int rank) const {
    send(rank, SIGSTOP);
    waitpid(pids_[static_cast<size_t>(rank)], nullptr, WUNTRACED);
  }

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
                             const std::function<void(const std::string&)>& say,
                             AllReduce algorithm = AllReduce::kRankOrder) {
    const auto stream = make_inline_stream();
    Workspace workspace;
    Context context{*stream, workspace};
    std::vector<float> values(2 << 20, 0.0f);
    for (int step = 0;; ++step) {
      transport.all_reduce_sum(values, {1, "bucket 0", algorithm}, context);
      stream->wait();
      if (step == 1) {
        say("running");
      }
    }
  }

  TemporaryFolder folder_;
};

}  // namespace gradwire::transport_test
