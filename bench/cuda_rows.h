#pragma once
// The rows of cuda_bench: what runs, on which memory, for how many bytes.

#include <string>
#include <vector>

#include "bench/cuda_timing.h"

namespace gradwire::bench {

/// Gradients, residuals and room for results of all sets, filled with normal numbers; each array
/// begins `offset` bytes behind a multiple of 256.
class Arena {
 public:
  Arena(size_t numel, Stream& stream, size_t offset = 0);
  size_t numel() const { return numel_; }
  std::span<float> g(int set) const { return array(set, 0); }
  std::span<float> e(int set) const { return array(set, 1); }
  std::span<float> e_next(int set) const { return array(set, 2); }

 private:
  std::span<float> array(int set, size_t which) const {
    std::byte* const begin = memory_[static_cast<size_t>(set) * 3 + which].data() + offset_;
    return {reinterpret_cast<float*>(begin), numel_};
  }
  size_t numel_, offset_;
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

/// One of each way to read and write elements, to be measured in memory that no 16-byte access
/// reaches as a whole.
bool is_of_every_alignment(const Row& row);

/// Bytes per second of the fastest device copy, by cudaMemcpyAsync and by a kernel. The arena
/// begins on a multiple of 16 bytes.
double copy_rate(const Arena& arena, Stream& stream, Timer& timer);

}  // namespace gradwire::bench
