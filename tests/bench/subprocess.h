#pragma once
// A child process whose output goes to files, and which never outlives the test.

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace subprocess {

using Seconds = std::chrono::duration<double>;

inline std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

class Process {
 public:
  /// Standard output and error are written to `log`.out and `log`.err.
  Process(const std::vector<std::string>& command, const std::string& log) : log_(log) {
    std::vector<char*> arguments;
    for (const std::string& argument : command) {
      arguments.push_back(const_cast<char*>(argument.c_str()));
    }
    arguments.push_back(nullptr);
    // Opened here, not in the child: a log of an earlier run must be gone when this returns.
    const int out = create(log + ".out"), err = create(log + ".err");
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      dup2(out, STDOUT_FILENO);
      dup2(err, STDERR_FILENO);
      execv(arguments[0], arguments.data());
      _exit(127);
    }
    close(out);
    close(err);
    if (pid_ < 0) {
      throw std::runtime_error("fork failed");
    }
  }
  ~Process() {
    if (!status_.has_value()) {
      send(SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void send(int signal) const { kill(pid_, signal); }
  std::string output() const { return read_file(log_ + ".out"); }
  std::string errors() const { return read_file(log_ + ".err"); }

  /// The exit code (-signal when killed by one), or nothing when it still runs after `limit`.
  std::optional<int> wait(Seconds limit) {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    while (!status_.has_value()) {
      int status = 0;
      if (waitpid(pid_, &status, WNOHANG) == pid_) {
        status_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
      } else if (std::chrono::steady_clock::now() > deadline) {
        return std::nullopt;
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    }
    return status_;
  }

 private:
  static int create(const std::string& path) {
    const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0) {
      throw std::runtime_error("cannot create " + path);
    }
    return file;
  }

  std::string log_;
  pid_t pid_ = -1;
  std::optional<int> status_;
};

}  // namespace subprocess
