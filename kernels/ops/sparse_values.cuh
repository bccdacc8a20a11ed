#pragma once
// Runs of values on a GPU, as payloads that send some elements of a chunk store them: floats of 32
// or 16 bits, or codes of 8 to 1 bits that share one bf16 scale, which the payload keeps elsewhere.
// run_element.h and signs.h say what a value becomes, in the CPU's order.

#include "gradwire/kernels/ops/block.cuh"
#include "gradwire/kernels/ops/launch_checks.cuh"
#include "gradwire/kernels/ops/memory_access.cuh"
#include "gradwire/kernels/ops/payload_header.h"
#include "gradwire/kernels/ops/rounding.cuh"
#include "gradwire/kernels/ops/run_element.h"
#include "gradwire/kernels/ops/sparse_format.h"

namespace gradwire::cuda {

inline constexpr uint32_t kInfinityBrain = 0x7F80;  // as bfloat16

/// What values take: floats, or codes of so many bits and a scale per chunk.
enum class SparseStorage : uint8_t { kFloat32, kFloat16, kBFloat16, kEight, kFour, kTwo, kOne };

template <SparseStorage kStorage>
inline constexpr uint32_t kValueBits = kStorage == SparseStorage::kFloat32 ? 32
                                       : kStorage == SparseStorage::kEight ? 8
                                       : kStorage == SparseStorage::kFour  ? 4
                                       : kStorage == SparseStorage::kTwo   ? 2
                                       : kStorage == SparseStorage::kOne   ? 1
                                                                           : 16;
template <SparseStorage kStorage>
inline constexpr bool kHasRunScale = kValueBits<kStorage> <= 8;

constexpr SparseStorage storage_of(SparseValues values) {
  switch (values) {
    case SparseValues::kFloat32:
      return SparseStorage::kFloat32;
    case SparseValues::kFloat16:
      return SparseStorage::kFloat16;
    case SparseValues::kBFloat16:
      return SparseStorage::kBFloat16;
    case SparseValues::kInt4:
      return SparseStorage::kFour;
    case SparseValues::kInt2:
      return SparseStorage::kTwo;
    case SparseValues::kSign:
      return SparseStorage::kOne;
    default:
      return SparseStorage::kEight;
  }
}

/// What codes of eight bits are; all others are integers.
constexpr CodeFormat code_format_of(SparseValues values) {
  return values == SparseValues::kE4M3         ? CodeFormat::kE4M3
         : values == SparseValues::kE5M2       ? CodeFormat::kE5M2
         : values == SparseValues::kPowerOfTwo ? CodeFormat::kPowerOfTwo
                                               : CodeFormat::kInteger;
}

/// How values become codes; of floats nothing of it counts.
struct ValueCodes {
  CodeFormat format;  // of eight bits
  int32_t levels;
  bool by_chance;
  RoundingSource source;
};

/// Who draws must, and who cannot must not. `levels` as in SparseFormat; null: to nearest.
inline ValueCodes value_codes(const char* op, SparseValues values, int levels,
                              const RoundingSource* stochastic) {
  const bool by_chance = stochastic != nullptr;
  const bool integer = values == SparseValues::kInt8 || values == SparseValues::kInt4 ||
                       values == SparseValues::kInt2;
  const SparseStorage storage = storage_of(values);
  const bool has_codes = storage == SparseStorage::kEight || storage == SparseStorage::kFour ||
                         storage == SparseStorage::kTwo;
  check(levels == 0 || (integer && by_chance), op, ": levels is ", levels,
        ", must be 0 but for integers that are rounded stochastically");
  check(levels >= 0 &&
            (levels == 0 || levels <= cpu::largest_code(storage == SparseStorage::kEight  ? 8
                                                        : storage == SparseStorage::kFour ? 4
                                                                                          : 2)),
        op, ": levels is ", levels, ", must be a code of the values");
  check(!by_chance || has_codes, op,
        ": stochastic is given, must be null: the values are not "
        "rounded to codes of 8, 4 or 2 bits");
  check(by_chance || values != SparseValues::kPowerOfTwo, op,
        ": stochastic is null, must be given for powers of two");
  check(!by_chance || (!stochastic->segments.empty() && stochastic->step != nullptr), op,
        ": the rounding source has no segments or no step, must have both");
  return {code_format_of(values), levels, by_chance, by_chance ? *stochastic : RoundingSource{}};
}

/// Calls f.operator()<storage>() with the compile-time value.
template <class F>
void dispatch_storage(const char* op, SparseValues values, F&& f) {
  check(values <= SparseValues::kPowerOfTwo, op, ": values is ", static_cast<int>(values),
        ", must be 0 to ", static_cast<int>(SparseValues::kPowerOfTwo));
  switch (storage_of(values)) {
    case SparseStorage::kFloat32:
      return f.template operator()<SparseStorage::kFloat32>();
    case SparseStorage::kFloat16:
      return f.template operator()<SparseStorage::kFloat16>();
    case SparseStorage::kBFloat16:
      return f.template operator()<SparseStorage::kBFloat16>();
    case SparseStorage::kEight:
      return f.template operator()<SparseStorage::kEight>();
    case SparseStorage::kFour:
      return f.template operator()<SparseStorage::kFour>();
    case SparseStorage::kTwo:
      return f.template operator()<SparseStorage::kTwo>();
    case SparseStorage::kOne:
      return f.template operator()<SparseStorage::kOne>();
  }
}

/// Elements of chunk `chunk` of `numel` elements.
__device__ __forceinline__ uint32_t chunk_numel(uint64_t numel, uint64_t chunk) {
  const uint64_t left = numel - chunk * kChunk;
  return static_cast<uint32_t>(left < kChunk ? left : kChunk);
}

/// One warp: the sum of |x| * factor in the order of signs.h; in lane 0.
__device__ __forceinline__ float sum_run(const float* x, uint32_t count, float factor) {
  float sum = 0.0f;
#pragma unroll 1
  for (uint32_t at = lane_index(); at < count; at += kWarp) {
    sum += fabsf(x[at]) * factor;
  }
  return warp_sum(sum);
}

/// One warp: cpu::mean_magnitude(); in lane 0.
__device__ inline float mean_of_run(const float* x, uint32_t count) {
  const float numel = static_cast<float>(count > 0 ? count : 1);
  const float sum = __shfl_sync(kAllLanes, sum_run(x, count, 1.0f), 0);
  if (sum <= std::numeric_limits<float>::max()) {
    return sum / numel;
  }
  const float mean = sum_run(x, count, 0x1p-12f) / numel * 0x1p12f;
  return mean <= std::numeric_limits<float>::max() ? mean : std::numeric_limits<float>::max();
}

/// One warp: cpu::norm(); in lane 0. `largest`: the bits of max|x|.
__device__ inline float norm_of_run(const float* x, uint32_t count, uint32_t largest) {
  const float factor = square_factor(largest);
  float squares = 0.0f;
#pragma unroll 1
  for (uint32_t begin = 0; begin < count; begin += kWarp * kPerThread) {
    float t[kPerThread];
#pragma unroll
    for (int i = 0; i < kPerThread; ++i) {
      const uint32_t at = begin + lane_index() * kPerThread + static_cast<uint32_t>(i);
      t[i] = at < count ? x[at] * factor : 0.0f;
      t[i] *= t[i];
    }
    squares += warp_sum(((t[0] + t[4]) + (t[2] + t[6])) + ((t[1] + t[5]) + (t[3] + t[7])));
  }
  return __uint_as_float(norm_bits(squares, factor));
}

/// A run that is written: `count` finite values in shared memory, of which `largest` are the bits
/// of the largest magnitude.
struct ValueRunMemory {
  const float* values;
  uint32_t count;
  uint32_t largest;
  std::byte* scale;  // where there is one
  std::byte* out;
};

/// All threads of a block, behind a barrier. Value i has the random number of the group's element
/// element_of(i), and leave(i, decoded) hears what it decodes to.
template <SparseStorage kStorage, class ElementOf, class Leave>
__device__ __forceinline__ void write_values(const ValueRunMemory& run, const ValueCodes& codes,
                                             const ElementOf& element_of, const Leave& leave) {
  constexpr uint32_t kBits = kValueBits<kStorage>;
  if constexpr (kHasRunScale<kStorage>) {
    constexpr bool kSigns = kStorage == SparseStorage::kOne;
    const CodeFormat format = kBits == 8 ? codes.format : CodeFormat::kInteger;
    const int32_t limit = run_limit(kBits, codes.levels);
    float maximum = __uint_as_float(run.largest);
    if (kSigns || codes.levels > 0) {  // the same for all threads
      GRADWIRE_SHARED(of_run, float);
      if (warp_index() == 0) {
        const float found = kSigns ? mean_of_run(run.values, run.count)
                                   : norm_of_run(run.values, run.count, run.largest);
        if (lane_index() == 0) {
          of_run = found;
        }
      }
      __syncthreads();
      maximum = of_run;
    }
    const bfloat16 stored =
        kSigns ? from_float<bfloat16>(maximum) : run_scale(format, limit, maximum);
    const float scale = to_float(stored);
    if (threadIdx.x == 0) {
      store_word(run.scale, stored.bits);
    }
    constexpr uint32_t kPerByte = 8 / kBits;
    for (uint32_t byte = threadIdx.x; byte * kPerByte < run.count; byte += blockDim.x) {
      uint32_t packed = 0;
#pragma unroll 1
      for (uint32_t i = 0; i < kPerByte && byte * kPerByte + i < run.count; ++i) {
        const uint32_t at = byte * kPerByte + i;
        int32_t code;
        if constexpr (kSigns) {
          code = stored.bits != 0 && run.values[at] < 0.0f ? 1 : 0;
          leave(at, code != 0 ? -scale : scale);
        } else {
          code = codes.by_chance ? run_code_by_chance(format, limit, run.values[at], scale,
                                                      draw_half(codes.source, element_of(at)))
                                 : run_code(format, limit, run.values[at], scale);
          leave(at, code_value_of(format, code, scale));
        }
        packed |= (static_cast<uint32_t>(code) & ((1u << kBits) - 1)) << (i * kBits);
      }
      run.out[byte] = static_cast<std::byte>(packed);
    }
  } else {
    using T = std::conditional_t<
        kStorage == SparseStorage::kFloat32, float,
        std::conditional_t<kStorage == SparseStorage::kFloat16, float16, bfloat16>>;
    for (uint32_t at = threadIdx.x; at < run.count; at += blockDim.x) {
      store_float<T, Memory::kPayload>(run.out, at, run.values[at]);
      leave(at, to_float(from_float<T>(run.values[at])));
    }
  }
}

/// Entry `at` of a run; `codes` of eight bits are what it says.
template <SparseStorage kStorage>
__device__ __forceinline__ float unpack_value(const std::byte* values, uint32_t at, float scale,
                                              CodeFormat codes) {
  if constexpr (kStorage == SparseStorage::kFloat32) {
    return load_float<float, Memory::kPayload>(values, at);
  } else if constexpr (kStorage == SparseStorage::kFloat16) {
    return load_float<float16, Memory::kPayload>(values, at);
  } else if constexpr (kStorage == SparseStorage::kBFloat16) {
    return load_float<bfloat16, Memory::kPayload>(values, at);
  } else if constexpr (kStorage == SparseStorage::kEight) {
    return code_value_of(codes, static_cast<int8_t>(values[at]), scale);
  } else {
    constexpr uint32_t kBits = kValueBits<kStorage>;
    constexpr uint32_t kPerByte = 8 / kBits;
    const uint32_t code = static_cast<uint32_t>(values[at / kPerByte]) >> (at % kPerByte * kBits);
    if constexpr (kStorage == SparseStorage::kOne) {
      return __uint_as_float(__float_as_uint(scale) | (code & 1u) << 31);
    } else {
      return code_value(static_cast<int32_t>(code << (32 - kBits)) >> (32 - kBits), scale);
    }
  }
}

}  // namespace gradwire::cuda
