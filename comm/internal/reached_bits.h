#pragma once
// Which parameters no rank reached in a step.

#include <span>
#include <vector>

#include "gradwire/comm/exchange/message.h"
#include "gradwire/comm/internal/lanes.h"
#include "gradwire/comm/plan.h"

namespace gradwire {

/// Ranks tell each other of their parameters by one small message a step, which lies where the
/// transport's messages do.
class ReachedBits {
 public:
  ReachedBits(const Transport& transport, size_t parameters);

  /// In a task of the lane's worker. `reached`: of each parameter, whether this rank did.
  void exchange(std::span<const uint8_t> reached, Lane& lane);

  /// The exchange has ended: by_any() speaks of it from now on. On a GPU it has been enqueued.
  void conclude();
  bool is_concluded() const { return !any_.empty(); }

  /// Whether some rank reached it in the step that was concluded last. On a GPU it waits for
  /// `stream`.
  bool by_any(ParamId p, Stream* stream);

 private:
  const size_t parameters_, own_;
  const Device device_;
  Messages messages_;
  void add_up(std::span<const std::byte> all);

  std::vector<std::byte> mine_;
  std::vector<std::byte> any_;  // a bit for each parameter; empty before a step was concluded
  bool on_gpu_alone_ = false;   // any_ is of a step before
};

}  // namespace gradwire
