#include "gradwire/comm/subgroups.h"

#include "gradwire/kernels/core/error.h"

namespace gradwire {

Transport& SubGroups::part(std::string_view name, int color) {
  auto found = parts_.find(name);
  if (found == parts_.end()) {
    found = parts_.emplace(std::string(name), Part{color, transport_.split(color)}).first;
  }
  check(found->second.color == color, "subgroups: color of rank ", transport_.rank(), " in '", name,
        "' is ", color, ", must be ", found->second.color, " as it was");
  return *found->second.transport;
}

TrafficCounters SubGroups::counters() const {
  TrafficCounters sum;
  for (const auto& [name, part] : parts_) {
    const TrafficCounters counters = part.transport->counters();
    sum.bytes_sent += counters.bytes_sent;
    sum.bytes_received += counters.bytes_received;
    sum.frames_sent += counters.frames_sent;
  }
  return sum;
}

}  // namespace gradwire
