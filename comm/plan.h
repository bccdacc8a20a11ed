#pragma once
// Pure data: which parameters travel together, how they are compressed and exchanged. Equal on all
// ranks, printable, made without looking at any value.

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "gradwire/comm/exchange.h"
#include "gradwire/kernels/compress/compressor.h"
#include "gradwire/kernels/compress/feedback.h"

namespace gradwire {

using ParamId = uint32_t;
using BucketId = uint32_t;

/// One parameter, in the order of the model's forward pass; its id is its place in that order. One of
/// two and more dimensions is a matrix with as many rows as the first says: a convolution is one of
/// its outputs by the rest.
struct ParamInfo {
  std::string name;
  std::vector<size_t> shape;  ///< empty: a scalar
  size_t numel() const;       ///< the largest number there is where the product does not fit
};

/// Elements of a bucket that share a compressor; its segments follow one another in the bucket.
struct PlanGroup {
  CompressorSpec spec;
  size_t offset = 0;  ///< of the bucket's elements, the group's first
  size_t numel = 0;
  std::vector<Segment> segments;
};

/// Parameters that travel in one message.
struct PlanBucket {
  size_t numel = 0;
  std::string exchange;  ///< a row of the exchange registry, shared by all groups
  std::vector<PlanGroup> groups;
};

/// Some parameters and the spec they travel with: those that fit all that it says.
struct SpecRule {
  static constexpr size_t kAny = std::numeric_limits<size_t>::max();

  CompressorSpec spec = no_compression();
  std::string name = "*";  ///< each `*` stands for any characters, or none
  size_t least_ndim = 0, most_ndim = kAny;    ///< extents of the shape; a scalar has none
  size_t least_numel = 0, most_numel = kAny;  ///< elements

  bool fits(const ParamInfo& parameter) const;
};

struct PlanOptions {
  CompressorSpec spec = no_compression();
  /// The first rule that fits a parameter decides its spec; of those that fit none, `spec` and
  /// `exempt_1d` do. Parameters of one bucket and one spec are one group.
  std::vector<SpecRule> rules = {};
  /// "auto": default_exchange(spec) or, in a bucket of which that cannot carry all groups, the first
  /// of those of its groups' specs that can.
  std::string exchange = "auto";
  /// What Reducer::replan() may choose where the exchange is "auto".
  MeanBits mean = MeanBits::kOfRankOrder;
  size_t bucket_bytes =
      size_t{1} << 20;  ///< of dense gradient; a larger parameter is a bucket alone
  /// Of dense gradient in the bucket that leaves last, the first parameters of the forward pass,
  /// whose exchange nothing hides: at least one parameter. 0: as bucket_bytes.
  size_t last_bucket_bytes = 0;
  /// Which parameters travel together, in the order the buckets leave (merge_gradients() makes them
  /// from measurements): every parameter once. Empty: filled to bucket_bytes from the last
  /// parameter.
  std::vector<std::vector<ParamId>> buckets = {};
  /// Of each of those buckets, in place of `exchange`. Empty: the same for all.
  std::vector<std::string> exchanges = {};
  DType dtype = DType::kFloat32;
  /// Lossy specs narrower than 16 bits send 1-D parameters as bf16 in a group of their own.
  enum class Exempt1D { kAuto, kNever } exempt_1d = Exempt1D::kAuto;
  uint64_t seed = 0;  ///< of stochastic rounding and of randomk's choice
  /// Ranks with neighbouring numbers that share a node, for the hierarchical exchange.
  int ranks_per_node = 1;
  ResidualMemory residual_memory = ResidualMemory::kDevice;
};

/// Buckets in the order they leave, on every rank: the last parameters of the forward pass first,
/// unless PlanOptions::buckets says otherwise.
struct Plan {
  DType dtype = DType::kFloat32;
  uint64_t seed = 0;
  int ranks_per_node = 1;
  ResidualMemory residual_memory = ResidualMemory::kDevice;
  std::vector<ParamInfo> parameters;
  std::vector<PlanBucket> buckets;

  struct Place {
    BucketId bucket = 0;
    size_t offset = 0;  ///< elements of the bucket before it, which need not lie next to it
  };
  std::vector<Place> places;  ///< of each parameter

  /// A table of the buckets, their groups, capacities and the parameters in them, and the memory that
  /// a rank keeps between steps; says where a mean is not the rank-order sum. The same text on all
  /// ranks, one fact a line.
  std::string describe() const;
  /// FNV-1a over describe() as it is with residuals in the device's memory: where they lie changes
  /// neither a message nor a checkpoint.
  uint64_t fingerprint() const;
};

/// @throws InvalidArgument for no parameters, two of the same name, a parameter without elements
/// or with more than 2^31,
/// an exchange that cannot carry a group, a rule that nothing could fit, buckets that do not hold
/// every parameter once.
Plan make_plan(std::span<const ParamInfo> parameters, const PlanOptions& options);

}  // namespace gradwire
