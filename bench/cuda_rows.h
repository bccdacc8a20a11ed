#pragma once
// The rows of cuda_bench: what runs, on which memory, for how many bytes.

#include <string>
#include <vector>

#include "bench/cuda_timing.h"

namespace gradwire::bench {

/// Gradients, residuals and room for results of all sets, filled with normal numbers.
class Arena {
 public:
  Arena(size_t numel, Stream& stream);
  size_t numel() const { return numel_; }
  std::span<float> g(int set) const { return array(set, 0); }
  std::span<float> e(int set) const { return array(set, 1); }
  std::span<float> e_next(int set) const { return array(set, 2); }

 private:
  std::span<float> array(int set, size_t which) const {
    return memory_[static_cast<size_t>(set) * 3 + which].as<float>();
  }
  size_t numel_;
  std::vector<Buffer> memory_;
};

/// Something to time: a row without its milliseconds, and how to get them.
struct Case {
  Row row;
  /// Makes what the work needs; the row's bytes may be completed. @throws what does not work here.
  std::function<Work(Row&)> prepare;
  Launch launch = Launch::kGraph;
};

/// gradwire's operations, then their peers.
std::vector<Case> cases(const Arena& arena, Stream& stream);

/// Bytes per second of the fastest device copy, by cudaMemcpyAsync and by a kernel.
double copy_rate(const Arena& arena, Stream& stream, Timer& timer);

}  // namespace gradwire::bench
