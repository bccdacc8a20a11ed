#pragma once
// The machines a step runs on: how many, how connected, how even; and what an exchange costs there.

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "gradwire/planner/buckets.h"
#include "gradwire/planner/link.h"

namespace gradwire::planner {

/// How much longer than the profile says things take on one worker; 1: as long.
struct Worker {
  double compute = 1;  ///< forward, backward, codecs, updates
  double input = 1;    ///< loading a batch, copying it
  double link = 1;     ///< alpha and seconds per byte: an exchange goes as fast as its slowest link
};

/// How payloads meet: values that add up on the way (all-reduce), or every payload to every worker.
enum class Combine : uint8_t { kSum, kGather };

struct Cluster {
  size_t workers = 1;
  /// Workers that share a machine and its link; workers must be a multiple of it, or fit into one.
  size_t gpus_per_node = 1;
  /// Between machines: of its messages, those of exchange "ring" or "gather" where it has tables.
  LinkCost inter{.name = "inter", .alpha_s = 0, .bytes_per_s = 1.25e9};
  /// Inside one; without effect where gpus_per_node is 1.
  LinkCost intra{.name = "intra", .alpha_s = 2e-6, .bytes_per_s = 1.2e10};
  size_t streams = 2;            ///< of the multi-stream schedule; the others have one
  std::vector<Worker> uneven{};  ///< empty, or one per worker
  /// Standard deviation of a worker's computing time over its mean, drawn anew for each step
  /// (log-normal), so that a synchronous step waits for the slowest draw.
  double jitter = 0;
  size_t draws = 16;  ///< steps that are drawn where jitter is not 0
  uint64_t seed = 1;
  /// Measured seconds of an exchange over one stream by its bytes; in the place of the formulas
  /// over inter and intra, which then have no effect.
  ExchangeSeconds measured{};
};

/// @throws InvalidArgument for no workers, links of no bandwidth, shares out of range, ...
void validate(const Cluster& cluster);

/// The parts of an exchange's time: what it takes whoever else is there, and what it takes of the
/// network at its full rate, which exchanges at the same time share.
struct ExchangeCost {
  double fixed_s = 0;
  double shared_s = 0;
};

/// Of one exchange in which every worker contributes `bytes`. Zero for one worker.
///
/// kSum, a ring over P workers: 2(P-1) messages of a P-th of the bytes. With L > 1 workers
/// per machine and N machines, in two levels: reduce-scatter and all-gather inside ((L-1)/L bytes
/// each), and between them rings over N, which together send 2(N-1)/N bytes over a machine's link.
/// kGather: P-1 messages to each; L(P-L) of them over a machine's link.
ExchangeCost exchange_cost(const Cluster& cluster, double bytes, Combine combine = Combine::kSum);

/// The most of inter's rate that one stream gets, in (0, 1].
double stream_share(const Cluster& cluster);

/// One exchange alone over one stream.
double exchange_seconds(const Cluster& cluster, double bytes, Combine combine = Combine::kSum);

/// How uneven the workers of draw number `draw` are: those that can hold a step up, the slowest at
/// computing first. A worker that another one is not faster than anywhere never decides and is left
/// out, so that thousands of workers cost what a few do, with the same result.
std::vector<Worker> deciding_workers(const Cluster& cluster, size_t draw);

}  // namespace gradwire::planner
