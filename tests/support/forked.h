#pragma once
// What a forked child of this process makes of the objects it has inherited.

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <functional>
#include <stdexcept>
#include <string>

namespace gradwire::test {

/// What `body` returns in a forked child, or how it failed there. A child that has not ended after
/// half a minute can only hang: it is killed.
inline std::string in_a_fork(const std::function<std::string()>& body) {
  int ends[2];
  if (pipe(ends) != 0) {
    throw std::runtime_error("pipe failed");
  }
  const pid_t child = fork();
  if (child == 0) {
    std::string words;
    try {
      words = body();
    } catch (const std::exception& error) {
      words = std::string("the child failed: ") + error.what();
    }
    const bool written =
        write(ends[1], words.data(), words.size()) == static_cast<ssize_t>(words.size());
    _exit(written ? 0 : 3);
  }
  ::close(ends[1]);
  std::string words;
  char bytes[1024];
  for (;;) {
    pollfd polled{ends[0], POLLIN, 0};
    const int ready = poll(&polled, 1, 30000);
    const ssize_t count = ready == 1 ? read(ends[0], bytes, sizeof(bytes)) : 0;
    if (ready != 1) {
      kill(child, SIGKILL);
      words = "the child hangs";
    }
    if (count <= 0) {
      break;
    }
    words.append(bytes, static_cast<size_t>(count));
  }
  ::close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return status == 0 || words == "the child hangs" ? words : "the child ended by itself";
}

/// In a child: what an object of its parent's is to say.
inline std::string refusal_in_a_fork(const std::string& what) {
  return what + ": made in process " + std::to_string(getppid()) +
         ", which a fork does not carry over to " + std::to_string(getpid()) +
         "; expected an object made in the process that uses it";
}

}  // namespace gradwire::test
