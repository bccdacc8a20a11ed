#include "gradwire/planner/negotiate.h"

#include <algorithm>
#include <bit>

#include "gradwire/kernels/core/error.h"

namespace gradwire::planner {
namespace {

void check_ranks(std::span<const ReadyBits> ranks) {
  check(!ranks.empty(), "negotiation: 0 ranks, expected at least 1");
  for (size_t r = 0; r < ranks.size(); ++r) {
    check(ranks[r].tensors() == ranks[0].tensors(), "negotiation: rank ", r, " has ",
          ranks[r].tensors(), " tensors, expected the ", ranks[0].tensors(), " of rank 0");
  }
}

/// Counts messages; the bytes of a rank are those it sends and receives.
class LinkLoad {
 public:
  explicit LinkLoad(size_t ranks) : bytes_(ranks), messages_(ranks) {}

  void send(size_t from, size_t to, uint64_t bytes) {
    bytes_[from] += bytes;
    bytes_[to] += bytes;
    ++messages_[from];
    ++messages_[to];
    ++traffic_.messages;
    traffic_.bytes += bytes;
  }
  void step() { ++traffic_.steps; }

  /// Where messages follow one another on a rank, its messages are the steps.
  NegotiationTraffic one_after_another() const {
    NegotiationTraffic traffic = side_by_side();
    traffic.steps = *std::ranges::max_element(messages_);
    return traffic;
  }
  NegotiationTraffic side_by_side() const {
    NegotiationTraffic traffic = traffic_;
    traffic.busiest_bytes = *std::ranges::max_element(bytes_);
    return traffic;
  }

 private:
  std::vector<uint64_t> bytes_;
  std::vector<size_t> messages_;
  NegotiationTraffic traffic_;
};

}  // namespace

void ReadyBits::set(size_t tensor) {
  check(tensor < tensors_, "ready bits: tensor ", tensor, ", expected one of ", tensors_);
  bytes_[tensor / 8] = static_cast<uint8_t>(bytes_[tensor / 8] | (1u << tensor % 8));
}

bool ReadyBits::test(size_t tensor) const {
  check(tensor < tensors_, "ready bits: tensor ", tensor, ", expected one of ", tensors_);
  return (bytes_[tensor / 8] >> tensor % 8 & 1u) != 0;
}

size_t ReadyBits::count() const {
  size_t ready = 0;
  for (const uint8_t byte : bytes_) {
    ready += static_cast<size_t>(std::popcount(byte));
  }
  return ready;
}

void ReadyBits::keep_common(const ReadyBits& other) {
  check(other.tensors_ == tensors_, "ready bits: of ", other.tensors_, " tensors, expected ",
        tensors_);
  for (size_t i = 0; i < bytes_.size(); ++i) {
    bytes_[i] = static_cast<uint8_t>(bytes_[i] & other.bytes_[i]);
  }
}

size_t readiness_bytes(size_t tensors) { return (tensors + 7) / 8; }

Negotiation negotiate_by_bits(std::span<const ReadyBits> ranks) {
  check_ranks(ranks);
  std::vector<ReadyBits> known(ranks.begin(), ranks.end());
  const uint64_t bytes = readiness_bytes(known[0].tensors());
  const size_t cube = std::bit_floor(known.size());
  LinkLoad line(known.size());
  if (cube < known.size()) {
    for (size_t r = cube; r < known.size(); ++r) {
      line.send(r, r - cube, bytes);
      known[r - cube].keep_common(known[r]);
    }
    line.step();
  }
  for (size_t distance = 1; distance < cube; distance *= 2) {
    const std::vector<ReadyBits> before(known.begin(),
                                        known.begin() + static_cast<std::ptrdiff_t>(cube));
    for (size_t r = 0; r < cube; ++r) {
      line.send(r, r ^ distance, bytes);
      known[r ^ distance].keep_common(before[r]);
    }
    line.step();
  }
  if (cube < known.size()) {
    for (size_t r = cube; r < known.size(); ++r) {
      line.send(r - cube, r, bytes);
      known[r] = known[r - cube];
    }
    line.step();
  }
  const bool alike = std::ranges::all_of(known, [&](const ReadyBits& k) { return k == known[0]; });
  check(alike, "negotiation: ranks disagree, expected the same vector everywhere");
  return {known[0], line.side_by_side()};
}

Negotiation negotiate_by_master(std::span<const ReadyBits> ranks, size_t message_bytes) {
  check_ranks(ranks);
  check(message_bytes > 0, "negotiation: messages of 0 bytes, expected at least 1");
  Negotiation found{ranks[0], {}};
  LinkLoad line(ranks.size());
  for (size_t r = 1; r < ranks.size(); ++r) {
    for (size_t tensor = 0; tensor < ranks[r].tensors(); ++tensor) {
      if (ranks[r].test(tensor)) {
        line.send(r, 0, message_bytes);
      }
    }
    found.ready.keep_common(ranks[r]);
  }
  for (size_t r = 1; r < ranks.size(); ++r) {
    for (size_t tensor = 0; tensor < found.ready.tensors(); ++tensor) {
      if (found.ready.test(tensor)) {
        line.send(0, r, message_bytes);
      }
    }
  }
  found.traffic = line.one_after_another();
  return found;
}

}  // namespace gradwire::planner
