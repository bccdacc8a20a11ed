#pragma once
// Verbs that are more than one call of NCCL's, and the configuration of a communicator. Part of
// nccl.cc.

#include "gradwire/comm/transport.h"
#include "gradwire/comm/transport/nccl_library.h"

namespace gradwire {

/// Where a call goes.
struct NcclTarget {
  const NcclFunctions& nccl;
  NcclCommHandle* comm;
  void* stream;
};
struct NcclPlace {
  int rank = 0;
  int size = 1;
};

inline NcclConfig nccl_config_of(const NcclLibrary& library, const NcclOptions& options) {
  NcclConfig config = make_nccl_config(library.version);
  if (options.min_ctas > 0) {
    config.min_ctas = options.min_ctas;
  }
  if (options.max_ctas > 0) {
    config.max_ctas = options.max_ctas;
  }
  if (options.traffic_class >= 0) {
    check(library.version >= 22600, "nccl: traffic_class is ", options.traffic_class,
          ", which needs NCCL 2.26, found ", library.describe());
    config.traffic_class = options.traffic_class;
  }
  return config;
}

/// The first result of a group that says more than that it was taken.
inline NcclResult first_failure(NcclResult earlier, NcclResult later) {
  const bool failed = earlier != NcclResult::kSuccess && earlier != NcclResult::kInProgress;
  return failed ? earlier : later;
}

/// By ncclAlltoAll where there is one, else by a send and a receive per rank.
inline NcclResult exchange_parts(const NcclTarget& to, const Parts& send, const Parts& receive) {
  const size_t stride = send.stride;
  if (to.nccl.all_to_all != nullptr) {
    return to.nccl.all_to_all(send.bytes.data(), receive.bytes.data(), stride, NcclType::kUint8,
                              to.comm, to.stream);
  }
  NcclResult result = NcclResult::kSuccess;
  for (int r = 0; r < static_cast<int>(send.lengths.size()); ++r) {
    const size_t at = static_cast<size_t>(r) * stride;
    result = first_failure(result, to.nccl.send(send.bytes.data() + at, stride, NcclType::kUint8,
                                                r, to.comm, to.stream));
    result = first_failure(result, to.nccl.recv(receive.bytes.data() + at, stride,
                                                NcclType::kUint8, r, to.comm, to.stream));
  }
  return result;
}

/// NCCL scatters equal shards; others are one reduction to each owner, in one group.
inline NcclResult scatter_sums(const NcclTarget& to, std::span<const float> values,
                               std::span<float> out, NcclPlace place) {
  if (values.size() % static_cast<size_t>(place.size) == 0) {
    return to.nccl.reduce_scatter(values.data(), out.data(), out.size(), NcclType::kFloat32,
                                  NcclReduction::kSum, to.comm, to.stream);
  }
  NcclResult result = NcclResult::kSuccess;
  for (int r = 0; r < place.size; ++r) {
    const size_t begin = shard_begin(values.size(), place.size, r);
    const size_t count = shard_begin(values.size(), place.size, r + 1) - begin;
    if (count > 0) {
      result = first_failure(
          result, to.nccl.reduce(values.data() + begin, r == place.rank ? out.data() : nullptr,
                                 count, NcclType::kFloat32, NcclReduction::kSum, r, to.comm,
                                 to.stream));
    }
  }
  return result;
}

}  // namespace gradwire
