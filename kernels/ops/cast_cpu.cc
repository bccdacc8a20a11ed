#include "gradwire/kernels/ops/cast.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

#include "gradwire/kernels/core/clones.h"
#include "gradwire/kernels/ops/elementwise.h"
#include "gradwire/kernels/ops/internal/cast_avx2.h"
#include "gradwire/kernels/ops/internal/streaming.h"

namespace gradwire::cpu {
namespace {

// std::byte pointers and memcpy: the vectoriser turns each into one unaligned load or store.
template <class T>
T load(const std::byte* from, size_t index) {
  T value;
  std::memcpy(&value, from + index * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void store(std::byte* to, size_t index, T value) {
  std::memcpy(to + index * sizeof(T), &value, sizeof(T));
}

/// to_float(float16) without branches: both halves of the range are computed and one is chosen.
inline float widen_half(uint16_t half) {
  const uint32_t magnitude = half & 0x7FFFu;
  const float subnormal = static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f;
  const uint32_t exponent_shift = magnitude >= 0x7C00u ? 0x70000000u : 0x38000000u;
  const uint32_t normal = (magnitude << 13) + exponent_shift;
  const uint32_t bits = magnitude < 0x400u ? std::bit_cast<uint32_t>(subnormal) : normal;
  return std::bit_cast<float>(bits | (static_cast<uint32_t>(half & 0x8000u) << 16));
}

/// to_float16 without branches, in the same way.
inline uint16_t narrow_half(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  const float shifted = std::bit_cast<float>(magnitude < 0x38800000u ? magnitude : 0u) + 0.5f;
  const uint32_t subnormal = std::bit_cast<uint32_t>(shifted) - 0x3F000000u;
  const uint32_t normal = (magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t saturated = magnitude > 0x7F800000u ? 0x7E00u : 0x7C00u;
  uint32_t half = magnitude < 0x38800000u ? subnormal : normal;
  half = magnitude >= 0x477FE000u ? 0x7BFFu : half;
  half = magnitude >= 0x7F800000u ? saturated : half;
  return static_cast<uint16_t>(half | ((bits >> 16) & 0x8000u));
}

/// to_bfloat16 without branches.
inline uint16_t narrow_brain(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  uint32_t brain = (magnitude + 0x7FFFu + ((magnitude >> 16) & 1u)) >> 16;
  brain = magnitude >= 0x7F7F0000u && magnitude < 0x7F800000u ? 0x7F7Fu : brain;
  brain = magnitude > 0x7F800000u ? (magnitude >> 16) | 0x40u : brain;
  return static_cast<uint16_t>(brain | ((bits >> 16) & 0x8000u));
}

GRADWIRE_CLONES void widen_halves(const std::byte* source, float* out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    out[i] = widen_half(load<uint16_t>(source, i));
  }
}

GRADWIRE_CLONES void widen_brains(const std::byte* source, float* out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    out[i] = std::bit_cast<float>(static_cast<uint32_t>(load<uint16_t>(source, i)) << 16);
  }
}

GRADWIRE_CLONES void narrow_halves(const float* source, std::byte* out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    store(out, i, narrow_half(source[i]));
  }
}

GRADWIRE_CLONES void narrow_brains(const float* source, std::byte* out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    store(out, i, narrow_brain(source[i]));
  }
}

GRADWIRE_CLONES bool finite_floats(const float* x, size_t count) {
  int32_t largest = 0;  // signed: magnitudes fit, and more ISAs have a signed maximum
  for (size_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<int32_t>(x[i]) & 0x7FFFFFFF);
  }
  return largest < 0x7F800000;
}

struct Narrowed {
  size_t count;  // elements done
  bool finite;
};

/// As many elements as a form with intrinsics takes: 0 where there is none.
Narrowed narrow_runs(std::span<const float> source, DType dtype, Caching caching, std::byte* out) {
#ifdef GRADWIRE_X86
  if (isa() >= Isa::kAvx2) {
    const size_t count = source.size() / kCastRun * kCastRun;
    const bool streaming = caching == Caching::kStreaming;
    switch (dtype) {
      case DType::kFloat32:
        return {count, copy_floats_avx2(source.data(), count, streaming, out)};
      case DType::kFloat16:
        return {count, narrow_halves_avx2(source.data(), count, streaming, out)};
      case DType::kBFloat16:
        return {count, narrow_brains_avx2(source.data(), count, streaming, out)};
    }
  }
#endif
  (void)source, (void)dtype, (void)caching, (void)out;
  return {0, true};
}

void narrow_plain(std::span<const float> source, DType dtype, std::byte* out) {
  switch (dtype) {
    case DType::kFloat32:
      std::memcpy(out, source.data(), source.size_bytes());
      break;
    case DType::kFloat16:
      narrow_halves(source.data(), out, source.size());
      break;
    case DType::kBFloat16:
      narrow_brains(source.data(), out, source.size());
      break;
  }
}

}  // namespace

void widen(ConstTensorView source, std::span<float> out) {
  assert(source.numel == out.size());
  const auto* bytes = static_cast<const std::byte*>(source.data);
  if (out.empty()) {
    return;
  }
  size_t done = 0;
  switch (source.dtype) {
    case DType::kFloat32:
      std::memcpy(out.data(), bytes, out.size_bytes());
      break;
    case DType::kFloat16:
#ifdef GRADWIRE_X86
      if (isa() >= Isa::kAvx2) {
        done = out.size() / kCastRun * kCastRun;
        widen_halves_avx2(bytes, done, out.data());
      }
#endif
      widen_halves(bytes + 2 * done, out.data() + done, out.size() - done);
      break;
    case DType::kBFloat16:
      widen_brains(bytes, out.data(), out.size());
      break;
  }
}

bool narrow_finite(std::span<const float> source, TensorView out, Caching caching) {
  assert(source.size() == out.numel);
  auto* bytes = static_cast<std::byte*>(out.data);
  if (source.empty()) {
    return true;
  }
  const size_t size = size_of(out.dtype);
  // Elements up to the first line go plainly; where none begins a line, all go through the caches.
  size_t head = 0;
  if (caching == Caching::kStreaming && isa() >= Isa::kAvx2) {
    head = head_of_line(bytes, size, source.size());
    if (head == source.size()) {
      caching = Caching::kNormal;
      head = 0;
    }
  }
  narrow_plain(source.first(head), out.dtype, bytes);
  const Narrowed runs =
      narrow_runs(source.subspan(head), out.dtype, caching, bytes + size * head);
  const size_t done = head + runs.count;
  const std::span<const float> rest = source.subspan(done);
  narrow_plain(rest, out.dtype, bytes + size * done);
  const bool finite = finite_floats(source.data(), head) && finite_floats(rest.data(), rest.size());
  return finite && runs.finite;
}

void narrow(std::span<const float> source, TensorView out) {
  narrow_finite(source, out, Caching::kNormal);
}

bool narrow_sum(ConstTensorView g, std::span<const float> e, const NarrowedSum& to,
                Caching caching) {
  constexpr size_t kMost = 4096;
  assert(g.numel <= kMost && e.size() == g.numel && to.left.size() == g.numel);
  assert(to.out.numel == g.numel && to.out.dtype != DType::kFloat32);
  bool finite = true;
  const auto plainly = [&](size_t begin, size_t count) {
    if (count == 0) {
      return;
    }
    alignas(64) float values[kMost];
    const std::span<float> x(values, count);
    const std::span<float> left = to.left.subspan(begin, count);
    const TensorView out = to.out.subview(begin, count);
    widen(g.subview(begin, count), x);
    add(x, e.subspan(begin, count), x);
    finite = narrow_finite(x, out, Caching::kNormal) && finite;
    widen(out, left);
    subtract(x, left, left);
  };
  size_t done = 0;
#ifdef GRADWIRE_X86
  if (isa() >= Isa::kAvx2) {
    const bool streaming = caching == Caching::kStreaming;
    if (streaming) {
      prefetch_end(to.left);
      done = head_of_line(to.left.data(), sizeof(float), to.left.size());
      plainly(0, done);
    }
    const size_t count = (g.numel - done) / kCastRun * kCastRun;
    const auto* const from = static_cast<const std::byte*>(g.data);
    auto* const out = static_cast<std::byte*>(to.out.data);
    const bool runs = narrow_sum_avx2({.g = from + size_of(g.dtype) * done,
                                       .dtype = g.dtype,
                                       .e = e.data() + done,
                                       .out = out + size_of(to.out.dtype) * done,
                                       .sent = to.out.dtype,
                                       .left = to.left.data() + done,
                                       .count = count,
                                       .streaming = streaming});
    finite = finite && runs;
    done += count;
  }
#endif
  (void)caching;
  plainly(done, g.numel - done);
  return finite;
}

bool sum_widened(std::span<const ConstTensorView> parts, float factor, std::span<float> out,
                 Caching caching) {
  constexpr size_t kMost = 4096;
  constexpr size_t kMostParts = 64;
  assert(out.size() <= kMost);
  bool finite = true;
  const auto plainly = [&](size_t begin, size_t count) {
    if (count == 0) {
      return;
    }
    const std::span<float> sum = out.subspan(begin, count);
    alignas(64) float values[kMost];
    const std::span<float> widened(values, count);
    std::ranges::fill(sum, 0.0f);
    for (const ConstTensorView& part : parts) {
      widen(part.subview(begin, count), widened);
      add(sum, widened, sum);
    }
    multiply(sum, factor, sum);
    finite = all_finite(sum) && finite;
  };
  size_t done = 0;
#ifdef GRADWIRE_X86
  if (isa() >= Isa::kAvx2 && !parts.empty() && parts.size() <= kMostParts) {
    const bool streaming = caching == Caching::kStreaming;
    const size_t head = streaming ? head_of_line(out.data(), sizeof(float), out.size()) : 0;
    plainly(0, head);
    const size_t whole = (out.size() - head) / 64 * 64;
    const std::byte* from[kMostParts];
    for (size_t i = 0; i < parts.size(); ++i) {
      from[i] = static_cast<const std::byte*>(parts[i].data) + head * size_of(parts[i].dtype);
    }
    finite = sum_widened_avx2({from, parts.size()}, parts[0].dtype, factor, streaming,
                              out.subspan(head, whole)) &&
             finite;
    done = head + whole;
  }
#endif
  plainly(done, out.size() - done);
  return finite;
}

}  // namespace gradwire::cpu
