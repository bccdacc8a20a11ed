#pragma once
// A parameter's state as floats, whether memory holds these or codes of 8 bits (state_code.h):
// eight elements a thread, so that a warp has a block of codes, or one element.

#include "gradwire/kernels/ops/block.cuh"
#include "gradwire/kernels/ops/memory_access.cuh"
#include "gradwire/optimizers/state_code.h"
#include "gradwire/optimizers/step_cuda.h"

namespace gradwire::cuda {

static_assert(kWarp * kPerThread == kCodeBlock);

/// Of eight elements from `first`; zeros behind the parameter's end.
template <bool kCodes, bool kSigned>
class StateOfEight {
 public:
  __device__ __forceinline__ StateOfEight(const StepItem& item, int place, size_t first) {
    load_floats<float>(as_bytes(item.state[place]), first, item.numel, x_);
  }
  __device__ __forceinline__ float operator[](int k) const { return x_[k]; }

 private:
  float x_[kPerThread];
};

/// Decoded as they are used: floats of all would not fit into the registers.
template <bool kSigned>
class StateOfEight<true, kSigned> {
 public:
  __device__ __forceinline__ StateOfEight(const StepItem& item, int place, size_t first) {
    float scale = 0.0f;
    if (first < item.numel) {
      codes_ = load_aligned<uint2>(reinterpret_cast<std::byte*>(item.codes[place] + first));
      scale = item.scales[place][first / kCodeBlock];
    }
    base_ = code_base<kSigned>(scale);
  }
  __device__ __forceinline__ float operator[](int k) const {
    return decoded_state<kSigned>((k < 4 ? codes_.x : codes_.y) >> (k % 4 * 8) & 0xFFu, base_);
  }

 private:
  uint2 codes_{};
  uint32_t base_;
};

/// With kCodes whatever the parameter has.
template <bool kCodes, bool kSigned>
__device__ __forceinline__ float state_at(const StepItem& item, int place, size_t i) {
  if (!kCodes || item.codes[place] == nullptr) {
    return item.state[place][i];
  }
  return decoded_state<kSigned>(item.codes[place][i],
                                code_base<kSigned>(item.scales[place][i / kCodeBlock]));
}

/// Of eight elements from `first`, whatever the parameter has.
template <bool kSigned>
__device__ __forceinline__ void load_state(const StepItem& item, int place, size_t first,
                                           float (&x)[kPerThread]) {
  if (item.codes[place] == nullptr) {
    load_floats<float>(as_bytes(item.state[place]), first, item.numel, x);
    return;
  }
  const StateOfEight<true, kSigned> codes(item, place, first);
#pragma unroll
  for (int k = 0; k < kPerThread; ++k) {
    x[k] = codes[k];
  }
}

template <bool kCodes>
__device__ __forceinline__ PhiloxCounter state_draws(const StepItem& item, const ItemStep& step,
                                                     size_t first) {
  return kCodes ? code_draws(item.draw_key, step.steps, first) : PhiloxCounter{};
}

/// By all threads of a warp. What is behind the parameter's end is 0, and is written as far as the
/// eight elements of a thread that has some of its own.
template <bool kCodes, bool kSigned>
__device__ __forceinline__ void store_state(const StepItem& item, int place, size_t first,
                                            const float (&x)[kPerThread],
                                            const PhiloxCounter& draws) {
  if constexpr (!kCodes) {
    store_floats<float>(as_bytes(item.state[place]), first, item.numel, x);
    return;
  }
  uint32_t largest = 0;
#pragma unroll
  for (int k = 0; k < kPerThread; ++k) {
    const uint32_t magnitude = __float_as_uint(x[k]) & 0x7FFFFFFFu;
    largest = largest < magnitude ? magnitude : largest;
  }
#pragma unroll
  for (int width = kWarp / 2; width > 0; width /= 2) {
    const uint32_t other = __shfl_xor_sync(kAllLanes, largest, width);
    largest = largest < other ? other : largest;
  }
  const float scale = scale_of_codes(largest);
  const uint32_t base = code_base<kSigned>(scale);
  uint8_t codes[kPerThread];
#pragma unroll
  for (int k = 0; k < kPerThread; ++k) {
    const uint32_t draw = draws.word[k / 2] >> (k % 2 * 16) & 0xFFFFu;
    codes[k] = static_cast<uint8_t>(encoded_state<kSigned>(x[k], base, draw));
  }
  if (first < item.numel) {
    uint2 word;
    memcpy(&word, codes, sizeof word);
    store_aligned(reinterpret_cast<std::byte*>(item.codes[place] + first), word);
  }
  if (lane_index() == 0) {
    item.scales[place][first / kCodeBlock] = scale;
  }
}

}  // namespace gradwire::cuda
