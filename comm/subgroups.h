#pragma once
// Parts of a group that exchange among themselves: pairs of a tree, the ranks of a node, the ranks
// with the same place in their nodes.

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "gradwire/comm/transport.h"

namespace gradwire {

/// Transports over parts of a group, made once each and shared by the exchanges of all its buckets,
/// which run one after another. Not thread-safe.
class SubGroups {
 public:
  /// `transport` outlives this.
  explicit SubGroups(Transport& transport) : transport_(transport) {}

  Transport& whole() const { return transport_; }

  /// This rank's part in the partition called `name`, in which it has this color (>= 0). Collective
  /// where the partition is new: all ranks ask for the same partitions in the same order.
  /// @throws InvalidArgument where it exists with another color; TransportError.
  Transport& part(std::string_view name, int color);

  /// The sums of all parts' counters.
  TrafficCounters counters() const;
  uint64_t frames_sent() const { return counters().frames_sent; }

 private:
  struct Part {
    int color;
    std::unique_ptr<Transport> transport;
  };
  Transport& transport_;
  std::map<std::string, Part, std::less<>> parts_;
};

}  // namespace gradwire
