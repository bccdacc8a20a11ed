#pragma once
// The one thread of this process that calls MPI, and MPI's beginning and end. Part of
// mpi_plugin.cc; not installed as an interface.

#include <dlfcn.h>
#include <mpi.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gradwire/comm/internal/plugin_process.h"
#include "gradwire/comm/internal/within.h"

using std::chrono::milliseconds;
using std::chrono::steady_clock;

inline std::string mpi_error_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return text;
}

inline void require_mpi(int code, const char* call) {
  if (code != MPI_SUCCESS) {
    throw std::runtime_error(std::string(call) + ": " + mpi_error_text(code));
  }
}

/// Serves tasks and one `progress` function until MPI ends. Lives as long as the process.
class MpiThread {
 public:
  /// Called on the thread again and again; says whether anything moved.
  struct Served {
    std::function<bool()> progress;
    /// Whether some caller waits: then the thread looks more often.
    std::function<bool()> awaited;
    /// MPI ends; returns when nothing of ours is under way any more, or after a second.
    std::function<void(const char* why)> end;
    /// Whether a group has failed, so that not all ranks may come to the end.
    std::function<bool()> failed;
  };

  /// Starts MPI on the thread, unless the application has. Blocks until then.
  /// @throws InvalidOptions when MPI cannot be used, std::runtime_error when it fails or not all
  /// ranks come in time.
  void start(Served served, int64_t timeout_ms) {
    const auto deadline = steady_clock::now() + milliseconds(timeout_ms);
    std::unique_lock lock(mutex_);
    timeout_ = milliseconds(timeout_ms);
    if (stage_ == Stage::kNew) {
      stage_ = Stage::kStarting;
      served_ = std::move(served);
      process_ = getpid();
      std::thread([this] { run(); }).detach();  // MPI_Init may hold it when the process ends
    }
    if (!changed_.wait_until(lock, deadline, [this] { return stage_ != Stage::kStarting; })) {
      throw std::runtime_error("not all ranks called MPI_Init or joined " +
                               gradwire::within(milliseconds(timeout_ms)));
    }
    if (process_ != getpid()) {
      throw InvalidOptions("this process was forked from one that uses MPI");
    }
    if (!refused_.empty()) {
      throw InvalidOptions(refused_);
    }
    if (stage_ == Stage::kEnded) {
      throw std::runtime_error(failure_.empty() ? "MPI was finalised already" : failure_);
    }
  }

  /// Makes the thread look now.
  void ring() {
    {
      std::lock_guard lock(mutex_);
      rung_ = true;
    }
    bell_.notify_one();
  }

  MPI_Comm communicator() const { return communicator_; }
  int rank() const { return rank_; }
  int size() const { return size_; }

 private:
  static constexpr milliseconds kShortestEnd{10000};
  enum class Stage { kNew, kStarting, kServing, kEnded };

  void run() {
    // Never put back: the thread ends with MPI. A write to a dead peer must not end the process.
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
    prctl(PR_SET_NAME, "gw-mpi");
    prctl(PR_SET_TIMERSLACK, 1000ul);  // the pauses below are shorter than the usual 50 us
    try {
      begin();
      set_stage(Stage::kServing);
      serve();
    } catch (const InvalidOptions& error) {
      refused_ = error.what();
    } catch (const std::exception& error) {
      failure_ = error.what();
      served_.end(failure_.c_str());
    }
    set_stage(Stage::kEnded);
  }

  void set_stage(Stage stage) {
    {
      std::lock_guard lock(mutex_);
      stage_ = stage;
    }
    changed_.notify_all();
  }

  void begin() {
    int initialised = 0, finalised = 0, provided = 0;
    MPI_Initialized(&initialised);
    MPI_Finalized(&finalised);
    if (finalised != 0) {
      throw InvalidOptions("MPI was finalised already");
    }
    if (initialised == 0) {
      share_symbols();
      require_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided),
                  "MPI_Init_thread");
      ours_ = true;
    } else {
      MPI_Query_thread(&provided);
      if (provided != MPI_THREAD_MULTIPLE) {
        throw InvalidOptions(
            "the application initialised MPI without MPI_THREAD_MULTIPLE, which is needed because "
            "a thread of gradwire calls MPI too");
      }
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    MPI_Request request = MPI_REQUEST_NULL;
    require_mpi(MPI_Comm_idup(MPI_COMM_WORLD, &communicator_, &request), "MPI_Comm_idup");
    for (int done = 0; done == 0;) {
      require_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Comm_idup");
      if (done == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    }
    MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN);
    // Attributes of MPI_COMM_SELF are deleted first when MPI_Finalize is called, by anyone.
    int key = MPI_KEYVAL_INVALID;
    require_mpi(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &before_finalize, &key, this),
                "MPI_Comm_create_keyval");
    require_mpi(MPI_Comm_set_attr(MPI_COMM_SELF, key, this), "MPI_Comm_set_attr");
    if (ours_) {
      std::atexit([] { instance().end("the process ends"); });
    }
  }

  /// Open MPI's components expect its symbols in the global scope, where a plug-in's libraries are
  /// not.
  static void share_symbols() {
    Dl_info library{};
    if (dladdr(reinterpret_cast<void*>(&MPI_Init_thread), &library) == 0 ||
        dlopen(library.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD) == nullptr) {
      throw std::runtime_error("cannot make the symbols of the MPI library global");
    }
  }

  void serve() {
    auto moved_at = steady_clock::now();
    std::unique_lock lock(mutex_);
    while (!ending_) {
      lock.unlock();
      const bool moved = served_.progress();
      const auto now = steady_clock::now();
      if (moved) {
        moved_at = now;
      }
      const bool awaited = served_.awaited();
      lock.lock();
      if (moved) {
        continue;
      }
      // MPI has no wait with a deadline: look again after a sixteenth of the time without news.
      using std::chrono::microseconds;
      const auto pause = std::chrono::duration_cast<microseconds>(now - moved_at) / 16;
      const microseconds longest(!awaited ? 5000 : pause < milliseconds(5) ? 100 : 500);
      bell_.wait_for(lock, std::clamp(pause, microseconds(5), longest),
                     [this] { return rung_ || ending_; });
      if (rung_) {
        moved_at = steady_clock::now();
      }
      rung_ = false;
    }
    const std::string why = why_;
    lock.unlock();
    served_.end(why.c_str());
    if (ours_) {
      finalize();
    }
  }

  /// Waits for the other ranks, as MPI does, but not for ever where a group has failed: without
  /// MPI_Finalize the launcher ends the job.
  void finalize() {
    const auto deadline = steady_clock::now() + std::max(timeout_, kShortestEnd);
    MPI_Request request = MPI_REQUEST_NULL;
    int everyone = MPI_Ibarrier(communicator_, &request) == MPI_SUCCESS ? 0 : -1;
    while (everyone == 0 && !(served_.failed() && steady_clock::now() > deadline)) {
      if (MPI_Test(&request, &everyone, MPI_STATUS_IGNORE) != MPI_SUCCESS) {
        everyone = -1;
      }
      served_.progress();  // what others still send to groups that are gone here
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    if (everyone > 0) {
      MPI_Finalize();
    }
  }

  /// From another thread: ends ours and waits for it.
  void end(const char* why) {
    if (process_ != getpid()) {
      return;
    }
    std::unique_lock lock(mutex_);
    if (stage_ == Stage::kServing) {
      ending_ = true;
      why_ = why;
      bell_.notify_one();
      changed_.wait(lock, [this] { return stage_ == Stage::kEnded; });
    }
  }

  static int before_finalize(MPI_Comm, int, void* self, void*) {
    auto& thread = *static_cast<MpiThread*>(self);
    if (!thread.ours_) {  // else it is our thread that calls
      thread.end("the application called MPI_Finalize");
    }
    return MPI_SUCCESS;
  }

 public:
  /// Never destroyed: the thread outlives static objects.
  static MpiThread& instance() {
    static auto* const thread = new MpiThread;
    return *thread;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_, bell_;
  Stage stage_ = Stage::kNew;
  Served served_;
  bool rung_ = false;
  bool ending_ = false;
  bool ours_ = false;
  std::string why_, refused_, failure_;
  milliseconds timeout_{0};
  pid_t process_ = 0;
  MPI_Comm communicator_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
};
