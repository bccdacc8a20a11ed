#pragma once
// A Transport over somebody else's collectives: a table of functions that move bytes. A control
// group of our own beside it says what such an engine cannot: who died, who gave up, who is late.

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/comm/transport.h"

namespace gradwire {

/// What an engine does for a group of ranks. Each function blocks until it is done, gives up at the
/// deadline the engine was made with, and reports a failure by any std::exception; after one it has
/// let go of the buffers it was given. All ranks call the same functions in the same order with
/// sizes that match: the transport sees to it. Calls for one table come one at a time, from any
/// thread. Buffers are CPU memory; those to send are only read.
struct Carrier {
  int rank = 0;
  int world_size = 1;
  /// Rank r's `mine` arrives as part r of `all`, whose parts have mine.size() bytes.
  std::function<void(std::span<const std::byte> mine, std::span<std::byte> all)> all_gather;
  /// Parts lie one after another in rank order: send_lengths[d] bytes go to rank d,
  /// receive_lengths[s] come from rank s; this rank's own part too.
  struct AllToAll {
    std::span<const std::byte> send;
    std::span<const size_t> send_lengths;
    std::span<std::byte> receive;
    std::span<const size_t> receive_lengths;
  };
  std::function<void(const AllToAll&)> all_to_all;
  std::function<void(std::span<std::byte> bytes, int root)> broadcast;
  /// Every rank of this table calls it with the same groups, each a list of ranks of this table,
  /// ascending; returns the table of the group this rank is in.
  std::function<Carrier(const std::vector<std::vector<int>>& groups)> split;
  /// May be empty. The world has failed while a call of this table runs: makes it give up, if the
  /// engine can do that. From any thread.
  std::function<void()> interrupt;
  /// Closes this rank's connections, so that calls of other ranks that wait for it fail now. Called
  /// once, from any thread, while no other function runs.
  std::function<void()> close;
};

struct CarrierOptions {
  /// How long a peer may stay silent inside one call: what the engine was made with.
  std::chrono::milliseconds timeout{30000};
  /// Numeric address of this machine at which rank 0's part of the control group listens; read on
  /// rank 0 alone.
  std::string control_host = "127.0.0.1";
};

/// Collective and blocking: joins the control group. `name` is a literal. How an all-gather runs is
/// the engine's choice; all_reduce_sum adds in rank order and refuses any other. Counters: a call
/// hands the engine 64 bytes for each other rank, and then, with m floats, s of them in this rank's
/// shard: all_gather (P-1) max length; all_to_all the lengths for others; reduce_scatter 4 (m - s);
/// all_reduce_sum 4 (m - s) + 4 (P-1) ceil(m / P); broadcast (P-1) n from the root.
/// @throws TransportError naming the ranks that did not come.
std::unique_ptr<Transport> make_carrier_transport(std::string_view name, Carrier carrier,
                                                  const CarrierOptions& options);

}  // namespace gradwire
