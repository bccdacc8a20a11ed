#pragma once
// Which gradients travel together, how each bucket is compressed, exchanged and over how many
// streams: the plan whose last exchange ends first.

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace gradwire::planner {

/// A gradient in the order backward makes them.
struct ReadyGradient {
  std::string name;
  size_t numel = 0;
  double ready_s = 0;  ///< since backward began; never falls along the list
};

/// One way to send a bucket, and its prices by the elements of the bucket.
///
/// The model (one compute resource, one line): encoders of a bucket run where backward runs and
/// delay it, `shift` being what they have taken so far; then decoding and the exchange follow one
/// another on the line.
///   shift' = shift + encode(m)
///   end'   = max(end, ready + shift') + decode(m) + exchange(m)
struct BucketOption {
  std::string name;        ///< for tables: "topk:1%, two_shot, 2 streams"
  std::string compressor;  ///< a spec; "none" is what the plan without compression consists of
  std::string exchange;
  int streams = 1;
  double loss = 0;  ///< how much of the gradient it drops, in any unit; 0: nothing. See tolerance
  std::function<double(size_t numel)> encode_s = {};    ///< empty: 0
  std::function<double(size_t numel)> decode_s = {};    ///< empty: 0
  std::function<double(size_t numel)> exchange_s = {};  ///< needed
};

struct BucketSearch {
  /// Elements at which a bucket is closed, tried in turn; 1 is a bucket per gradient. Empty: 1,
  /// from 256 Ki to 192 Mi elements (1 MiB to 768 MiB of float32) in steps of at most a half, the
  /// 25 MiB that DDP has by default, and all in one.
  std::vector<size_t> caps = {};
  /// Labels kept per gradient by the dynamic program; 0: all, which is exact.
  size_t beam = 64;
  size_t most_gradients = 0;  ///< of a bucket, in the dynamic program; 0: any number
  /// Of the plans that end within (1 + tolerance) times the earliest end the one that loses least.
  double tolerance = 0;
};

struct PlannedBucket {
  size_t begin = 0, end = 0;  ///< gradients [begin, end) of the list
  size_t numel = 0;
  size_t option = 0;   ///< of the list of options
  double ready_s = 0;  ///< when its last gradient is there, with the encoders' delay
  double start_s = 0;  ///< when the line takes it
  double end_s = 0;
};

/// A plan that was considered, and by how much it lost.
struct PlanCandidate {
  std::string name;     ///< "none, fused (cap 4 Mi elements)", "dynamic program", ...
  double end_s = 0;     ///< predicted end of communication
  double behind_s = 0;  ///< of the earliest
  double loss = 0;      ///< mean over elements
  std::vector<PlannedBucket> buckets = {};  ///< in the order they leave, without times
};

struct BucketPlan {
  std::vector<PlannedBucket> buckets = {};  ///< in the order they leave
  double end_s = 0;           ///< predicted end of communication, since backward began
  double backward_end_s = 0;  ///< of backward alone: end_s less this is exposed
  double encode_s = 0;        ///< what encoders take of the compute resource
  double loss = 0;
  size_t chosen = 0;                           ///< of the candidates
  std::vector<PlanCandidate> candidates = {};  ///< by predicted end, earliest first
  /// Whether the dynamic program kept every label: then no partition into contiguous buckets with
  /// these options ends earlier.
  bool exact = false;

  /// What was chosen and which candidates lost by how much, a line each.
  std::string explain() const;
};

/// The end of these buckets, which must be contiguous and cover the list; fills in their times.
/// @throws InvalidArgument otherwise.
double price_buckets(std::span<const ReadyGradient> gradients,
                     std::span<const BucketOption> options, std::vector<PlannedBucket>& buckets);

/// Searches two ways and takes the minimum of all that either finds.
/// Sweep: for each cap, each option alone for all buckets (so that "none" fused and, where it is an
/// option, "bf16" fused are always among the candidates); and from "none", from the best option of
/// these and from the best of each bucket by itself, changed bucket by bucket, largest first, while
/// the end comes earlier.
/// Dynamic program over contiguous buckets x options: labels (shift, end) of which none is later in
/// both than another; beyond `beam` half of them the earliest, half spread over the rest.
/// Of equal ends the candidate that is named first; the uniform ones are named first, "none" first
/// of all. Time: about n^2 / 2 x options x beam of label steps for n gradients.
/// @throws InvalidArgument for no gradients, no option with compressor "none", an option without
/// price, a time that falls along the list, an empty gradient, a price that is negative or no
/// number.
BucketPlan plan_buckets(std::span<const ReadyGradient> gradients,
                        std::span<const BucketOption> options, const BucketSearch& search = {});

}  // namespace gradwire::planner
