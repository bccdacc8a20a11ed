#pragma once
// Pure data: which parameters travel together, how they are compressed and exchanged. Equal on all
// ranks, printable, made without looking at any value.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "gradwire/kernels/compress/compressor.h"

namespace gradwire {

using ParamId = uint32_t;
using BucketId = uint32_t;

/// One parameter, in the order of the model's forward pass; its id is its place in that order.
struct ParamInfo {
  std::string name;
  std::vector<size_t> shape;  ///< empty: a scalar
  size_t numel() const;
};

/// Elements of a bucket that share a compressor; its segments follow one another in the bucket.
struct PlanGroup {
  CompressorSpec spec;
  size_t offset = 0;  ///< first element in the bucket
  size_t numel = 0;
  std::vector<Segment> segments;
};

/// Parameters that travel in one message.
struct PlanBucket {
  size_t numel = 0;
  std::string exchange;  ///< a row of the exchange registry, shared by all groups
  std::vector<PlanGroup> groups;
};

struct PlanOptions {
  CompressorSpec spec{};
  std::string exchange = "auto";  ///< "auto": default_exchange(spec)
  size_t bucket_bytes =
      size_t{1} << 20;  ///< of dense gradient; a larger parameter is a bucket alone
  DType dtype = DType::kFloat32;
  /// Lossy specs narrower than 16 bits send 1-D parameters as bf16 in a group of their own.
  enum class Exempt1D { kAuto, kNever } exempt_1d = Exempt1D::kAuto;
  uint64_t seed = 0;  ///< of stochastic rounding
};

/// Buckets in the order they leave: the last parameters of the forward pass first.
struct Plan {
  DType dtype = DType::kFloat32;
  uint64_t seed = 0;
  std::vector<ParamInfo> parameters;
  std::vector<PlanBucket> buckets;

  struct Place {
    BucketId bucket = 0;
    size_t offset = 0;  ///< in the bucket, elements
  };
  std::vector<Place> places;  ///< of each parameter

  /// A table of the buckets, their groups, capacities and the parameters in them; the same text on
  /// all ranks, one fact a line.
  std::string describe() const;
  /// FNV-1a over describe().
  uint64_t fingerprint() const;
};

/// @throws InvalidArgument for no parameters, two of the same name, a parameter without elements,
/// an exchange that cannot carry the spec.
Plan make_plan(std::span<const ParamInfo> parameters, const PlanOptions& options);

}  // namespace gradwire
