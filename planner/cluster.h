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

/// Which way payloads meet; exchange_cost() has what each costs.
enum class Pattern : uint8_t {
  kRing,             ///< "ring": values add up around a ring
  kTree,             ///< "tree": up a binary tree, and down again
  kRabenseifner,     ///< "rabenseifner": recursive halving, and doubling
  kTwoShot,          ///< "two_shot": slices to their owners, sums to all
  kGather,           ///< "gather": every payload to every worker, which decompresses all of them
  kParameterServer,  ///< "parameter_server": to servers, and back
};
inline constexpr size_t kPatterns = 6;

std::string_view name_of(Pattern pattern);
/// @throws InvalidArgument for an unknown name; lists the known ones.
Pattern pattern_named(std::string_view name);

struct Cluster {
  size_t workers = 1;
  /// Workers that share a machine and its link; workers must be a multiple of it, or fit into one.
  size_t gpus_per_node = 1;
  Pattern pattern = Pattern::kRing;
  size_t servers =
      1;  ///< of kParameterServer; machines of their own, each with a part of all bytes
  /// Between machines: of its messages, those of the pattern's name where it has tables.
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
  /// Cores of a machine over the workers on it, which their exchanges (cpu_seconds() of the links,
  /// or the profile's) share with what they compute; 0: there are enough. Workers of a machine do
  /// the same at the same time, so that each has its part.
  double cores_per_worker = 0;
  double threads = 1;  ///< with which a worker computes; each keeps a core busy where it has one
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
  double cpu_s = 0;  ///< of a worker's processor, while it goes on
};

/// Of one exchange in which every worker contributes B bytes. Zero for one worker. P workers, L of
/// them in each of N machines; messages one after another over a machine's link, frames left out:
///   ring              2 (N-1) of B / N
///   tree              2 ceil(log2 N) of B
///   rabenseifner      Q = 2^floor(log2 N): 2 log2 Q of B (Q-1)/Q / log2 Q; two more of B if N > Q
///   two_shot          2 (P-L) starts, each of its L workers sends B / P: L B / P
///   gather            P-L starts, each of its L workers sends B: L B
///   parameter_server  2 max(P, K L) of B / K: the line of one of K servers, or that of a machine
/// With L > 1 the first three run in two levels: a ring's reduce-scatter and all-gather inside, 2
/// (L-1) messages of B / L, around what is between machines. Inside, two_shot sends 2 (L-1)
/// messages of B / P and gather L-1 of B; a parameter server has nothing inside.
///
/// cpu_s is of the messages that one worker sends: those above, of which the first three have an
/// L-th of the bytes on each worker of a machine; to K servers 2 K of B / K.
ExchangeCost exchange_cost(const Cluster& cluster, double bytes);

/// The most of inter's rate that one stream gets, in (0, 1].
double stream_share(const Cluster& cluster);

/// One exchange alone over one stream.
double exchange_seconds(const Cluster& cluster, double bytes);

/// How uneven the workers of draw number `draw` are: those that can hold a step up, the slowest at
/// computing first. A worker that another one is not faster than anywhere never decides and is left
/// out, so that thousands of workers cost what a few do, with the same result.
std::vector<Worker> deciding_workers(const Cluster& cluster, size_t draw);

}  // namespace gradwire::planner
