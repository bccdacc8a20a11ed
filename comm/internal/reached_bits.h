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

  /// Whether some rank reached it in the last step that has exchanged. On a GPU it waits for `stream`.
  bool by_any(ParamId p, Stream* stream);

 private:
  const size_t parameters_, own_;
  const Device device_;
  Messages messages_;
  std::vector<std::byte> mine_;
  std::vector<std::byte> on_host_;  // beside a GPU: all messages of the step; or empty
};

}  // namespace gradwire
