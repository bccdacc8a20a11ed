#pragma once
// What happened to each bucket of a step: bytes and microseconds, hidden behind backward or
// exposed.

#include <cstdint>
#include <string>
#include <vector>

#include "gradwire/comm/plan.h"

namespace gradwire {

/// Times in microseconds since the Reducer was made (steady clock). On a GPU those at which the host
/// enqueued, and none of codecs.
struct BucketTrace {
  BucketId bucket = 0;
  int64_t ready_us = 0;       ///< its last gradient appeared
  int64_t begin_us = 0;       ///< compression began
  int64_t compressed_us = 0;  ///< compression ended
  int64_t exchange_us = 0;    ///< the exchange began: its stream was free
  int64_t end_us = 0;         ///< the mean was in place
  int64_t transfer_us = 0;    ///< of [exchange, end]: inside the transport
  int64_t codec_us = 0;       ///< compress + slice + merge + decompress
  int64_t hidden_us = 0;      ///< of [begin, compressed] and [exchange, end]: before wait()
  int64_t exposed_us = 0;     ///< of the same: while the caller was in wait()
  int stream = 0;             ///< which of the exchanges in flight carried it
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
  uint64_t predicted_bytes_sent = 0;
};

/// The rounds of a step in which ranks agreed on which buckets were ready (LaunchOrder::kAgreed).
struct RoundTrace {
  uint32_t rounds = 0;  ///< the same on all ranks
  uint64_t bytes_sent = 0;
  uint64_t bytes_received = 0;
};

struct StepTrace {
  uint64_t step = 0;           ///< counts calls of wait()
  int64_t first_ready_us = 0;  ///< the first grad_ready of the step
  int64_t wait_begin_us = 0;
  int64_t wait_end_us = 0;
  bool committed = false;  ///< on a GPU false: nobody knows yet
  std::vector<BucketTrace> buckets{};
  RoundTrace agreement{};

  int64_t exposed_us() const { return wait_end_us - wait_begin_us; }
  int64_t codec_us() const;
  int64_t transfer_us() const;
  uint64_t bytes_sent() const;  ///< of buckets and of the rounds
  uint64_t bytes_received() const;
};

/// The last kept steps, oldest first.
class Trace {
 public:
  explicit Trace(size_t keep_steps = 64) : keep_steps_(keep_steps) {}
  void add(const StepTrace& step);
  const std::vector<StepTrace>& steps() const { return steps_; }
  const StepTrace& last() const;  ///< @throws InvalidArgument before the first step

  /// Chrome/Perfetto "traceEvents" JSON: one track for the caller, one for compression, one for each
  /// stream of exchanges; `rank` becomes the process id.
  std::string to_chrome_json(int rank) const;

 private:
  size_t keep_steps_;
  std::vector<StepTrace> steps_;
};

}  // namespace gradwire
