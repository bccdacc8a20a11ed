#pragma once
// Rounds in which ranks find out which buckets are ready on all of them.

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "gradwire/comm/exchange/message.h"
#include "gradwire/comm/internal/ready_bits.h"
#include "gradwire/comm/internal/worker.h"
#include "gradwire/comm/trace.h"
#include "gradwire/comm/transport.h"

namespace gradwire {

/// Tells all ranks which buckets are ready on this one, on a thread and in a group of its own. A
/// round is one all-gather of a bit for each bucket; what their AND has in addition to that of the
/// rounds before leaves, in plan order: so the order of leaving is the same on every rank. A rank
/// begins a round when it has news, and joins those of others as ReadyBits::next_of() says: as long
/// as some rank has nothing waiting, the others are inside of the next round before it has news;
/// only where buckets of all ranks wait for another one do they look without news, 0.25 ms behind
/// the last round and then after half as long again each time, until one brings news. So a rank
/// that never becomes ready, dead or alive, is silent past the transport's deadline in the end.
class ReadyRounds {
 public:
  /// Both are called on the thread of the rounds.
  struct Callbacks {
    std::function<void(BucketId)> leave;  ///< the bucket is ready everywhere
    /// Once: a round failed with `what`. `missing` as of ReadyBits.
    std::function<void(std::string_view missing, std::string_view what, int peer)> fail;
  };

  /// `transport` is of this alone.
  ReadyRounds(std::unique_ptr<Transport> transport, const std::shared_ptr<ThreadPool>& pool,
              Callbacks callbacks);
  /// Ends them; a round that waits for others must have been aborted.
  ~ReadyRounds() { stop(); }

  /// Between steps, and before the first one.
  void begin_step(size_t buckets);
  /// Bucket `b` is ready on this rank. Once a step; the first one begins the rounds, which go on
  /// until all buckets have left.
  void tell(BucketId b);
  /// Behind what tell() began.
  void enqueue(Task task) { worker_.stream->enqueue(std::move(task)); }
  /// Blocks until the rounds, and what was enqueued behind them, are over.
  void wait() { worker_.stream->wait(); }
  /// From any thread, for good: no further round begins.
  void stop();

  /// Of the step so far. Behind wait().
  const RoundTrace& trace() const { return trace_; }

 private:
  void run();
  void run_rounds();
  /// Blocks until the next round may begin, and takes what this rank has to tell in it. False:
  /// there shall be none.
  bool await_turn(NextRound next);
  void run_round();

  std::unique_ptr<Transport> transport_;
  const Callbacks callbacks_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<std::byte> own_bits_;
  bool begun_ = false;  // in this step
  bool news_ = false;   // own_bits_ have changed since they were taken
  bool stopped_ = false;

  // Of the rounds' thread while they run.
  ReadyBits bits_{0, 0};
  Messages messages_{0, 0};
  std::chrono::microseconds pause_{};
  RoundTrace trace_;
  Worker worker_;  // last: its thread uses the others
};

}  // namespace gradwire
