#pragma once
// A stand-in for libnccl.so.2 whose ranks are threads and whose collectives run on the queues of
// fake_gpu.h. It behaves like the library where that is unkind: calls return before anything is on
// the stream, mismatched calls never end, a destroyed communicator must be whole, sums are made in
// another order than by rank.

#include <atomic>
#include <functional>

#include "gradwire/comm/transport/nccl_library.h"

namespace gradwire::test {

/// What went on, and what is to go wrong.
struct FakeNccl {
  std::atomic<int> alive{0};      ///< communicators
  std::atomic<int> finalized{0}, destroyed{0}, aborted{0}, registered{0};
  std::atomic<int> misuses{0};    ///< calls the library would answer with undefined behaviour
  std::atomic<int> last_max_ctas{0};

  std::atomic<bool> never_ready{false};      ///< joining stays in progress
  std::atomic<int> init_result{0};           ///< of ncclCommInitRankConfig, an ncclResult_t
  std::atomic<int> call_result{0};           ///< of rank 0's next collective
  std::atomic<int> async_error{0};           ///< of rank async_error_rank's communicators
  std::atomic<int> async_error_rank{-1};
  std::atomic<int> abort_ms{0};              ///< how long ncclCommAbort takes

  void reset();
};
FakeNccl& fake_nccl();

/// Symbols by name, as dlsym has them.
void* fake_nccl_symbol(const char* name);
/// The library that has them all.
NcclLibrary make_fake_nccl();

}  // namespace gradwire::test
