#pragma once
// Ranks as threads of one process.

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/comm/transport.h"

namespace gradwire::test {

/// How one rank's thread ended.
struct RankEnd {
  std::exception_ptr error;  ///< null: it returned
  std::string message;       ///< of the error; "" when it returned

  template <class E>
  bool threw() const {
    if (!error) {
      return false;
    }
    try {
      std::rethrow_exception(error);
    } catch (const E&) {
      return true;
    } catch (...) {
      return false;
    }
  }
};

/// What an error says; never "", which stands for none: a check whose message is the very text that it
/// looks into fails without a word.
inline std::string words_of(const std::exception& error) {
  const std::string words = error.what();
  return words.empty() ? "an error that says nothing" : words;
}

/// Runs `body(rank)` on a thread per rank and returns how each ended. A rank that has not ended
/// after `deadline` can only be a deadlock: says which ranks hang and aborts the program.
inline std::vector<RankEnd> run_threads(int world_size, const std::function<void(int)>& body,
                                        std::chrono::seconds deadline = std::chrono::seconds(100)) {
  const auto count = static_cast<size_t>(world_size);
  std::vector<RankEnd> ends(count);
  std::vector<bool> ended(count, false);
  size_t running = count;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::thread> threads;
  for (size_t r = 0; r < count; ++r) {
    threads.emplace_back([&, r] {
      RankEnd end;
      try {
        body(static_cast<int>(r));
      } catch (const std::exception& error) {
        end = {std::current_exception(), words_of(error)};
      }
      std::lock_guard lock(mutex);
      ends[r] = std::move(end);
      ended[r] = true;
      --running;
      changed.notify_one();
    });
  }
  {
    std::unique_lock lock(mutex);
    if (!changed.wait_for(lock, deadline, [&] { return running == 0; })) {
      for (size_t r = 0; r < count; ++r) {
        if (!ended[r]) {
          std::fprintf(stderr, "rank %zu has not ended\n", r);
        }
      }
      std::abort();
    }
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return ends;
}

/// The same over a new in-process group: `body(transport)` per rank. Transports live until every
/// rank has ended.
inline std::vector<RankEnd> run_ranks(int world_size, const std::function<void(Transport&)>& body,
                                      const TransportOptions& options = {}) {
  const auto group = make_in_process_group(world_size, options);
  return run_threads(world_size, [&](int r) { body(*group[static_cast<size_t>(r)]); });
}

/// The first message of any rank, "" when all returned.
inline std::string first_message(const std::vector<RankEnd>& ends) {
  for (const RankEnd& end : ends) {
    if (end.error) {
      return end.message;
    }
  }
  return "";
}

}  // namespace gradwire::test
