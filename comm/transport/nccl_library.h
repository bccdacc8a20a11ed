#pragma once
// NCCL, opened at run time: the types and functions of its C interface that are used here, under
// names of our own, and what the library that was found can do. Nothing of NCCL or CUDA is needed to
// compile; tests/comm/nccl_header_check.cc compares every line with nccl.h where there is one.

#include <climits>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace gradwire {

/// ncclResult_t.
enum class NcclResult : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
  kTimeout = 8,
};
/// ncclDataType_t and ncclRedOp_t, as far as they are used.
enum class NcclType : unsigned int { kUint8 = 1, kUint64 = 5, kFloat32 = 7 };
enum class NcclReduction : unsigned int { kSum = 0, kMin = 3 };

/// ncclComm_t is a pointer to one of these.
struct NcclCommHandle;

/// ncclUniqueId.
struct NcclUniqueId {
  char internal[128];
};

inline constexpr int kNcclUndefined = INT_MIN;  ///< a field of NcclConfig left to the library

/// ncclConfig_t as NCCL 2.27 has it. The structure only ever grew at its end, and the library reads
/// the `size` bytes and the fields of `version` that the caller states: this prefix is valid for all
/// later ones, and a shorter one (make_nccl_config) for earlier ones.
struct NcclConfig {
  size_t size = 0;
  unsigned int magic = 0xcafebeef;
  unsigned int version = 0;
  int blocking = kNcclUndefined;
  int cga_cluster_size = kNcclUndefined;
  int min_ctas = kNcclUndefined;
  int max_ctas = kNcclUndefined;
  const char* net_name = nullptr;
  int split_share = kNcclUndefined;    ///< since 2.18
  int traffic_class = kNcclUndefined;  ///< since 2.26
  const char* comm_name = nullptr;     ///< from here since 2.27
  int collnet_enable = kNcclUndefined;
  int cta_policy = kNcclUndefined;
  int shrink_share = kNcclUndefined;
  int nvls_ctas = kNcclUndefined;
};

/// A configuration that a library of this version (as ncclGetVersion has it, e.g. 22809) accepts:
/// non-blocking, everything else left to the library.
NcclConfig make_nccl_config(int library_version);

/// The functions, each null where the library has none. `void*` streams are cudaStream_t.
struct NcclFunctions {
  NcclResult (*get_version)(int*) = nullptr;
  NcclResult (*get_unique_id)(NcclUniqueId*) = nullptr;
  const char* (*get_error_string)(NcclResult) = nullptr;
  const char* (*get_last_error)(NcclCommHandle*) = nullptr;
  NcclResult (*comm_init_rank_config)(NcclCommHandle**, int, NcclUniqueId, int,
                                      NcclConfig*) = nullptr;
  NcclResult (*comm_finalize)(NcclCommHandle*) = nullptr;
  NcclResult (*comm_destroy)(NcclCommHandle*) = nullptr;
  NcclResult (*comm_abort)(NcclCommHandle*) = nullptr;
  NcclResult (*comm_get_async_error)(NcclCommHandle*, NcclResult*) = nullptr;
  NcclResult (*group_start)() = nullptr;
  NcclResult (*group_end)() = nullptr;
  NcclResult (*all_gather)(const void*, void*, size_t, NcclType, NcclCommHandle*,
                           void* stream) = nullptr;
  NcclResult (*all_reduce)(const void*, void*, size_t, NcclType, NcclReduction, NcclCommHandle*,
                           void* stream) = nullptr;
  NcclResult (*reduce)(const void*, void*, size_t, NcclType, NcclReduction, int root,
                       NcclCommHandle*, void* stream) = nullptr;
  NcclResult (*reduce_scatter)(const void*, void*, size_t, NcclType, NcclReduction,
                               NcclCommHandle*, void* stream) = nullptr;
  NcclResult (*broadcast)(const void*, void*, size_t, NcclType, int root, NcclCommHandle*,
                          void* stream) = nullptr;
  NcclResult (*send)(const void*, size_t, NcclType, int peer, NcclCommHandle*,
                     void* stream) = nullptr;
  NcclResult (*recv)(void*, size_t, NcclType, int peer, NcclCommHandle*, void* stream) = nullptr;

  // Optional; used where they are.
  NcclResult (*all_to_all)(const void*, void*, size_t, NcclType, NcclCommHandle*,
                           void* stream) = nullptr;
  NcclResult (*comm_register)(NcclCommHandle*, void*, size_t, void** handle) = nullptr;
  NcclResult (*comm_deregister)(NcclCommHandle*, void* handle) = nullptr;
  NcclResult (*comm_revoke)(NcclCommHandle*, int flags) = nullptr;

  // Optional; their presence is reported, nothing calls them yet.
  NcclResult (*comm_split)(NcclCommHandle*, int color, int key, NcclCommHandle**,
                           NcclConfig*) = nullptr;
  NcclResult (*comm_shrink)(NcclCommHandle*, int* excluded, int count, NcclCommHandle**,
                            NcclConfig*, int flags) = nullptr;
  NcclResult (*comm_grow)(NcclCommHandle*, int ranks, const NcclUniqueId*, int rank,
                          NcclCommHandle**, NcclConfig*) = nullptr;
  NcclResult (*comm_window_register)(NcclCommHandle*, void*, size_t, void** window,
                                     int flags) = nullptr;
  NcclResult (*mem_alloc)(void**, size_t) = nullptr;
};

/// Calls `visit(symbol, member pointer, since)` for each function. `since` is the version that
/// brought an optional one, 0 for those without which nothing works.
template <class Visitor>
void for_each_nccl_function(Visitor&& visit) {
  using F = NcclFunctions;
  visit("ncclGetVersion", &F::get_version, 0);
  visit("ncclGetUniqueId", &F::get_unique_id, 0);
  visit("ncclGetErrorString", &F::get_error_string, 0);
  visit("ncclGetLastError", &F::get_last_error, 0);
  visit("ncclCommInitRankConfig", &F::comm_init_rank_config, 0);
  visit("ncclCommFinalize", &F::comm_finalize, 0);
  visit("ncclCommDestroy", &F::comm_destroy, 0);
  visit("ncclCommAbort", &F::comm_abort, 0);
  visit("ncclCommGetAsyncError", &F::comm_get_async_error, 0);
  visit("ncclGroupStart", &F::group_start, 0);
  visit("ncclGroupEnd", &F::group_end, 0);
  visit("ncclAllGather", &F::all_gather, 0);
  visit("ncclAllReduce", &F::all_reduce, 0);
  visit("ncclReduce", &F::reduce, 0);
  visit("ncclReduceScatter", &F::reduce_scatter, 0);
  visit("ncclBroadcast", &F::broadcast, 0);
  visit("ncclSend", &F::send, 0);
  visit("ncclRecv", &F::recv, 0);
  visit("ncclAlltoAll", &F::all_to_all, 22803);
  visit("ncclCommSplit", &F::comm_split, 21801);
  visit("ncclCommRegister", &F::comm_register, 21901);
  visit("ncclCommDeregister", &F::comm_deregister, 21901);
  visit("ncclCommRevoke", &F::comm_revoke, 22807);
  visit("ncclCommShrink", &F::comm_shrink, 22703);
  visit("ncclCommGrow", &F::comm_grow, 22902);
  visit("ncclCommWindowRegister", &F::comm_window_register, 22703);
  visit("ncclMemAlloc", &F::mem_alloc, 21901);
}

/// What was found.
struct NcclLibrary {
  NcclFunctions functions;
  int version = 0;                        ///< as ncclGetVersion has it: 22809 is 2.28.9
  std::string path;                       ///< what was opened
  std::vector<std::string_view> has;      ///< optional symbols that are there
  std::vector<std::string_view> has_not;  ///< and those that are not

  /// "NCCL 2.28.9 (libnccl.so.2), without ncclCommGrow".
  std::string describe() const;
};

/// "2.28.9".
std::string nccl_version_text(int version);

/// The library whose symbols `symbol` finds (null: has none of that name); `path` is for messages.
/// @throws InvalidArgument naming the symbols that are missing and the version, or the version when
/// it is older than the oldest whose configuration is known here (2.19).
NcclLibrary probe_nccl(const std::function<void*(const char*)>& symbol, std::string path);

/// Opens `path`, or libnccl.so.2 by the loader's rules when it is empty; a folder stands for
/// libnccl.so.2 or lib/libnccl.so.2 in it (what pip installs as nvidia/nccl). Stays open until the
/// process ends; the same path is opened once. @throws InvalidArgument as probe_nccl(), or with the
/// loader's reason.
const NcclLibrary& open_nccl(const std::string& path);

}  // namespace gradwire
