#include "gradwire/kernels/ops/elementwise.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstddef>

#include "gradwire/kernels/core/clones.h"
#include "gradwire/kernels/core/isa.h"
#include "gradwire/kernels/ops/internal/streaming.h"

#ifdef GRADWIRE_X86
#include <immintrin.h>
#endif

namespace gradwire::cpu {
namespace {

GRADWIRE_CLONES void add_loop(const float* a, const float* b, float* out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    out[i] = a[i] + b[i];
  }
}

GRADWIRE_CLONES void subtract_loop(const float* a, const float* b, float* out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    out[i] = a[i] - b[i];
  }
}

GRADWIRE_CLONES void add_scaled_loop(const float* a, float factor, const float* b, float* out,
                                     size_t count) {
  for (size_t i = 0; i < count; ++i) {
    out[i] = a[i] + factor * b[i];
  }
}

GRADWIRE_CLONES void multiply_loop(const float* a, float factor, float* out, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    out[i] = factor * a[i];
  }
}

#ifdef GRADWIRE_X86
/// Whole lines of 16; @returns how many elements they are. `finite` becomes false where a product is
/// not.
GRADWIRE_AVX2 size_t multiply_lines(float* a, float factor, float* out, size_t count,
                                    bool& finite) {
  const __m256 factors = _mm256_set1_ps(factor);
  const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
  __m256i most = _mm256_setzero_si256();
  const size_t whole = count / 16 * 16;
  for (size_t i = 0; i < whole; i += 16) {
    const __m256 low = _mm256_mul_ps(factors, _mm256_loadu_ps(a + i));
    const __m256 high = _mm256_mul_ps(factors, _mm256_loadu_ps(a + i + 8));
    _mm256_storeu_ps(a + i, _mm256_setzero_ps());
    _mm256_storeu_ps(a + i + 8, _mm256_setzero_ps());
    _mm256_stream_ps(out + i, low);
    _mm256_stream_ps(out + i + 8, high);
    most = _mm256_max_epi32(most, _mm256_and_si256(_mm256_castps_si256(low), magnitude));
    most = _mm256_max_epi32(most, _mm256_and_si256(_mm256_castps_si256(high), magnitude));
  }
  const __m256i bad = _mm256_cmpgt_epi32(most, _mm256_set1_epi32(kFiniteBits));
  finite = finite && _mm256_testz_si256(bad, bad) != 0;
  return whole;
}

GRADWIRE_AVX2 size_t copy_lines(const float* a, float* out, size_t count) {
  const size_t whole = count / 16 * 16;
  for (size_t i = 0; i < whole; i += 16) {
    _mm256_stream_ps(out + i, _mm256_loadu_ps(a + i));
    _mm256_stream_ps(out + i + 8, _mm256_loadu_ps(a + i + 8));
  }
  return whole;
}
#endif

GRADWIRE_CLONES void put_back_loop(const float* sum, const float* decoded, float scale,
                                   float* residual, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    residual[i] += sum[i] - decoded[i] / scale;
  }
}

GRADWIRE_CLONES uint32_t max_magnitude_loop(const float* x, size_t count) {
  int32_t largest = 0;  // signed: magnitudes fit, and more ISAs have a signed maximum
  for (size_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<int32_t>(x[i]) & 0x7FFFFFFF);
  }
  return static_cast<uint32_t>(largest);
}

}  // namespace

void add(std::span<const float> a, std::span<const float> b, std::span<float> out) {
  assert(a.size() == out.size() && b.size() == out.size());
  add_loop(a.data(), b.data(), out.data(), out.size());
}

void subtract(std::span<const float> a, std::span<const float> b, std::span<float> out) {
  assert(a.size() == out.size() && b.size() == out.size());
  subtract_loop(a.data(), b.data(), out.data(), out.size());
}

void add_scaled(std::span<const float> a, float factor, std::span<const float> b,
                std::span<float> out) {
  assert(a.size() == out.size() && b.size() == out.size());
  add_scaled_loop(a.data(), factor, b.data(), out.data(), out.size());
}

void multiply(std::span<const float> a, float factor, std::span<float> out) {
  assert(a.size() == out.size());
  multiply_loop(a.data(), factor, out.data(), out.size());
}

bool multiply_and_clear(std::span<float> a, float factor, std::span<float> out) {
  assert(a.size() == out.size());
  bool finite = true;
  const auto plainly = [&](size_t begin, size_t end) {
    multiply_loop(a.data() + begin, factor, out.data() + begin, end - begin);
    finite = max_magnitude_loop(out.data() + begin, end - begin) <= kFiniteBits && finite;
    std::fill(a.begin() + static_cast<ptrdiff_t>(begin), a.begin() + static_cast<ptrdiff_t>(end),
              0.0f);
  };
  size_t done = 0;
#ifdef GRADWIRE_X86
  if (isa() != Isa::kPlain) {
    done = head_of_line(out.data(), sizeof(float), out.size());
    plainly(0, done);
    done += multiply_lines(a.data() + done, factor, out.data() + done, out.size() - done, finite);
  }
#endif
  plainly(done, out.size());
  return finite;
}

void copy_past_caches(std::span<const float> a, std::span<float> out) {
  assert(a.size() == out.size());
  size_t done = 0;
#ifdef GRADWIRE_X86
  if (isa() != Isa::kPlain) {
    const size_t head = head_of_line(out.data(), sizeof(float), out.size());
    std::copy_n(a.begin(), head, out.begin());
    done = head + copy_lines(a.data() + head, out.data() + head, out.size() - head);
  }
#endif
  std::ranges::copy(a.subspan(done), out.begin() + static_cast<ptrdiff_t>(done));
}

void put_back(std::span<const float> sum, std::span<const float> decoded, float scale,
              std::span<float> residual) {
  assert(sum.size() == residual.size() && decoded.size() == residual.size());
  put_back_loop(sum.data(), decoded.data(), scale, residual.data(), residual.size());
}

uint32_t max_magnitude_bits(std::span<const float> x) {
  return max_magnitude_loop(x.data(), x.size());
}

}  // namespace gradwire::cpu
