#pragma once
// How every operation splits its work: by chunks, whatever the number of threads.

#include <algorithm>
#include <functional>

#include "gradwire/kernels/core/isa.h"
#include "gradwire/kernels/core/thread_pool.h"

namespace gradwire::cpu {

/// Calls body(chunk) once for each chunk in [0, count), in any order, from the pool's threads.
/// Chunks are handed out in runs, so that small ones do not drown in bookkeeping; stores past the
/// caches are finished after each run.
template <class Body>
void for_each_chunk(ThreadPool& pool, size_t count, const Body& body) {
  constexpr size_t kRun = 16;
  const auto run = [&](size_t index) {
    const size_t end = std::min(count, (index + 1) * kRun);
    for (size_t chunk = index * kRun; chunk < end; ++chunk) {
      body(chunk);
    }
    finish_streaming();
  };
  pool.parallel_for((count + kRun - 1) / kRun, std::cref(run));  // cref: nothing is allocated
}

}  // namespace gradwire::cpu
