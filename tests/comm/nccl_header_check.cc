// Compares every declaration of nccl_library.h with nccl.h, at compile time, where there is one
// (CMake: GRADWIRE_NCCL_INCLUDE_DIR).

#include "gradwire/comm/transport/nccl_library.h"

#if GRADWIRE_HAS_NCCL_H
#include <nccl.h>

#include <type_traits>

namespace gradwire::nccl_test {
namespace {

/// The type of ours that stands for one of NCCL's.
template <class T>
struct Ours {
  using type = T;
};
template <>
struct Ours<ncclResult_t> {
  using type = NcclResult;
};
template <>
struct Ours<ncclDataType_t> {
  using type = NcclType;
};
template <>
struct Ours<ncclRedOp_t> {
  using type = NcclReduction;
};
template <>
struct Ours<ncclUniqueId> {
  using type = NcclUniqueId;
};
template <>
struct Ours<ncclConfig_t> {
  using type = NcclConfig;
};
template <>
struct Ours<ncclComm> {
  using type = NcclCommHandle;
};
template <>
struct Ours<cudaStream_t> {
  using type = void*;
};
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
template <>
struct Ours<ncclWindow_t> {
  using type = void*;
};
template <>
struct Ours<ncclWindow_t*> {
  using type = void**;
};
#endif
template <class T>
  requires(!std::is_same_v<T*, cudaStream_t> && !std::is_function_v<T>
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
           && !std::is_same_v<T*, ncclWindow_t> && !std::is_same_v<T, ncclWindow_t>
#endif
           )
struct Ours<T*> {
  using type = typename Ours<T>::type*;
};
template <class T>
struct Ours<const T> {
  using type = const typename Ours<T>::type;
};
template <class R, class... A>
struct Ours<R (*)(A...)> {
  using type = typename Ours<R>::type (*)(typename Ours<A>::type...);
};

#define GRADWIRE_SAME(theirs, ours)                                                          \
  static_assert(                                                                             \
      std::is_same_v<Ours<decltype(&theirs)>::type, decltype(NcclFunctions::ours)>, #theirs)
GRADWIRE_SAME(ncclGetVersion, get_version);
GRADWIRE_SAME(ncclGetUniqueId, get_unique_id);
GRADWIRE_SAME(ncclGetErrorString, get_error_string);
GRADWIRE_SAME(ncclGetLastError, get_last_error);
GRADWIRE_SAME(ncclCommInitRankConfig, comm_init_rank_config);
GRADWIRE_SAME(ncclCommFinalize, comm_finalize);
GRADWIRE_SAME(ncclCommDestroy, comm_destroy);
GRADWIRE_SAME(ncclCommAbort, comm_abort);
GRADWIRE_SAME(ncclCommGetAsyncError, comm_get_async_error);
GRADWIRE_SAME(ncclGroupStart, group_start);
GRADWIRE_SAME(ncclGroupEnd, group_end);
GRADWIRE_SAME(ncclAllGather, all_gather);
GRADWIRE_SAME(ncclAllReduce, all_reduce);
GRADWIRE_SAME(ncclReduce, reduce);
GRADWIRE_SAME(ncclReduceScatter, reduce_scatter);
GRADWIRE_SAME(ncclBroadcast, broadcast);
GRADWIRE_SAME(ncclSend, send);
GRADWIRE_SAME(ncclRecv, recv);
GRADWIRE_SAME(ncclCommSplit, comm_split);
GRADWIRE_SAME(ncclCommRegister, comm_register);
GRADWIRE_SAME(ncclCommDeregister, comm_deregister);
GRADWIRE_SAME(ncclMemAlloc, mem_alloc);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 3)
GRADWIRE_SAME(ncclCommShrink, comm_shrink);
GRADWIRE_SAME(ncclCommWindowRegister, comm_window_register);
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 3)
GRADWIRE_SAME(ncclAlltoAll, all_to_all);
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 7)
GRADWIRE_SAME(ncclCommRevoke, comm_revoke);
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 29, 2)
GRADWIRE_SAME(ncclCommGrow, comm_grow);
#endif

#define GRADWIRE_VALUE(theirs, ours) \
  static_assert(static_cast<int>(theirs) == static_cast<int>(ours), #theirs)
GRADWIRE_VALUE(ncclSuccess, NcclResult::kSuccess);
GRADWIRE_VALUE(ncclUnhandledCudaError, NcclResult::kUnhandledCudaError);
GRADWIRE_VALUE(ncclSystemError, NcclResult::kSystemError);
GRADWIRE_VALUE(ncclInternalError, NcclResult::kInternalError);
GRADWIRE_VALUE(ncclInvalidArgument, NcclResult::kInvalidArgument);
GRADWIRE_VALUE(ncclInvalidUsage, NcclResult::kInvalidUsage);
GRADWIRE_VALUE(ncclRemoteError, NcclResult::kRemoteError);
GRADWIRE_VALUE(ncclInProgress, NcclResult::kInProgress);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 0)
GRADWIRE_VALUE(ncclTimeout, NcclResult::kTimeout);
#endif
GRADWIRE_VALUE(ncclUint8, NcclType::kUint8);
GRADWIRE_VALUE(ncclUint64, NcclType::kUint64);
GRADWIRE_VALUE(ncclFloat32, NcclType::kFloat32);
GRADWIRE_VALUE(ncclSum, NcclReduction::kSum);
GRADWIRE_VALUE(ncclMin, NcclReduction::kMin);
GRADWIRE_VALUE(NCCL_CONFIG_UNDEF_INT, kNcclUndefined);
static_assert(sizeof(ncclResult_t) == sizeof(NcclResult));
static_assert(sizeof(ncclDataType_t) == sizeof(NcclType));
static_assert(sizeof(ncclRedOp_t) == sizeof(NcclReduction));
static_assert(sizeof(ncclUniqueId) == sizeof(NcclUniqueId));
static_assert(alignof(ncclUniqueId) == alignof(NcclUniqueId));

#define GRADWIRE_FIELD(theirs, ours)                                                   \
  static_assert(offsetof(ncclConfig_t, theirs) == offsetof(NcclConfig, ours) &&        \
                    sizeof(ncclConfig_t::theirs) == sizeof(NcclConfig::ours),          \
                #theirs)
GRADWIRE_FIELD(size, size);
GRADWIRE_FIELD(magic, magic);
GRADWIRE_FIELD(version, version);
GRADWIRE_FIELD(blocking, blocking);
GRADWIRE_FIELD(cgaClusterSize, cga_cluster_size);
GRADWIRE_FIELD(minCTAs, min_ctas);
GRADWIRE_FIELD(maxCTAs, max_ctas);
GRADWIRE_FIELD(netName, net_name);
GRADWIRE_FIELD(splitShare, split_share);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 26, 0)
GRADWIRE_FIELD(trafficClass, traffic_class);
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
GRADWIRE_FIELD(commName, comm_name);
GRADWIRE_FIELD(collnetEnable, collnet_enable);
GRADWIRE_FIELD(CTAPolicy, cta_policy);
GRADWIRE_FIELD(shrinkShare, shrink_share);
GRADWIRE_FIELD(nvlsCTAs, nvls_ctas);
static_assert(sizeof(ncclConfig_t) >= sizeof(NcclConfig));
#else
static_assert(sizeof(ncclConfig_t) == offsetof(NcclConfig, comm_name));
#endif

constexpr ncclConfig_t kTheirDefaults = NCCL_CONFIG_INITIALIZER;
static_assert(kTheirDefaults.magic == NcclConfig{}.magic);

}  // namespace

int checked_header_version() { return NCCL_VERSION_CODE; }
const char* unchecked_reason() { return ""; }

}  // namespace gradwire::nccl_test

#else

namespace gradwire::nccl_test {

int checked_header_version();
const char* unchecked_reason();
int checked_header_version() { return 0; }
const char* unchecked_reason() {
  return "nccl.h or CUDA's headers were not found (pip install nvidia-nccl-cu13 brings the first; "
         "GRADWIRE_NCCL_ROOT names its folder nvidia/nccl)";
}

}  // namespace gradwire::nccl_test

#endif
