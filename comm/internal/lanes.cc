#include "gradwire/comm/internal/lanes.h"

namespace gradwire {

std::vector<Lane> make_lanes(Transport& over, int count, const std::shared_ptr<ThreadPool>& pool) {
  std::vector<Lane> lanes;
  for (int s = 0; s < count; ++s) {
    Lane& lane = lanes.emplace_back();
    lane.own = s == 0 ? nullptr : over.split(0);
    lane.transport = s == 0 ? &over : lane.own.get();
    lane.groups = std::make_unique<SubGroups>(*lane.transport);
    lane.worker =
        std::make_unique<Worker>(over.traits().device, pool, concat("gw-exchange-", s));
  }
  return lanes;
}

uint64_t frames_sent(std::span<const Lane> lanes) {
  uint64_t frames = 0;
  for (const Lane& lane : lanes) {
    frames += lane.transport->counters().frames_sent + lane.groups->frames_sent();
  }
  return frames;
}

}  // namespace gradwire
