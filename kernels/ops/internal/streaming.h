#pragma once
// Writing past the caches where arrays do not begin lines of 64 bytes, as those of NumPy.

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>

#include "gradwire/kernels/core/isa.h"
#include "gradwire/kernels/ops/elementwise.h"

namespace gradwire::cpu {

inline constexpr size_t kLineBytes = 64;
inline constexpr size_t kStreamedStep = 512;  // elements
inline constexpr size_t kMostStreamed = 64;   // parts summed a step at a time

inline bool begins_line(const void* p) { return reinterpret_cast<uintptr_t>(p) % kLineBytes == 0; }

/// Elements of `count` before the first that begins a line: all where none does.
inline size_t head_of_line(const void* p, size_t element_bytes, size_t count) {
  const size_t off = reinterpret_cast<uintptr_t>(p) % kLineBytes;
  return off % element_bytes != 0
             ? count
             : std::min(count, (kLineBytes - off) % kLineBytes / element_bytes);
}

/// Fills `out`, at most 4096 elements, by write(begin, to, streaming): `to` becomes what belongs in
/// `out` from `begin` on. That is all of `out` at once, or, where it should be streamed but does
/// not begin a line, `step` elements of a buffer, whose lines go past the caches as they fill up:
/// stores past the caches have to alternate with loads.
template <class Write>
void write_lines(std::span<float> out, bool streaming, size_t step, const Write& write) {
  constexpr size_t kMost = 4096;
  assert(out.size() <= kMost);
  if (!streaming || isa() == Isa::kPlain || begins_line(out.data())) {
    write(size_t{0}, out, streaming);
    return;
  }
  prefetch_end(out);
  alignas(kLineBytes) float memory[kMost];
  const std::span<float> buffer(memory, out.size());
  size_t copied = 0;
  for (size_t begin = 0; begin < out.size(); begin += step) {
    const size_t end = std::min(out.size(), begin + step);
    write(begin, buffer.subspan(begin, end - begin), false);
    const size_t started = reinterpret_cast<uintptr_t>(&out[end - 1] + 1) % kLineBytes;
    const size_t whole = end == out.size() ? end : end - started / sizeof(float);
    copy_past_caches(buffer.subspan(copied, whole - copied), out.subspan(copied, whole - copied));
    copied = whole;
  }
}

}  // namespace gradwire::cpu
