#pragma once
// Exchanges in flight: each has a group of ranks and a queue of its own.

#include <memory>
#include <span>
#include <vector>

#include "gradwire/comm/internal/worker.h"
#include "gradwire/comm/subgroups.h"
#include "gradwire/comm/transport.h"

namespace gradwire {

/// One exchange in flight. The first lane uses the caller's transport, the others one split from
/// it: their calls need no order among each other. Bucket b travels in lane b mod lanes.
struct Lane {
  std::unique_ptr<Transport> own;  // none: the caller's
  Transport* transport = nullptr;
  std::unique_ptr<SubGroups> groups;  // parts of it, shared by the lane's buckets
  std::unique_ptr<Worker> worker;
};

/// Collective: `count` of them.
std::vector<Lane> make_lanes(Transport& over, int count, const std::shared_ptr<ThreadPool>& pool);

uint64_t frames_sent(std::span<const Lane> lanes);

}  // namespace gradwire
