#pragma once
// The draw of draw.h by a thread block. Fisher and Yates swap one pair after another; but what ends
// up at place j is known from which steps took the same place before: step i moves what lies at i
// to its target. So targets are drawn side by side, one warp notes in order which step had a target
// last, 32 at a time, and every place then follows the notes back on its own.

#include "gradwire/kernels/core/philox.h"
#include "gradwire/kernels/ops/block.cuh"
#include "gradwire/kernels/ops/payload_header.h"

namespace gradwire::cuda {

/// Shared memory of a draw.
struct DrawRoom {
  uint16_t chosen[kChunk];  ///< the result
  uint16_t last[kChunk];    ///< the last step that moved something to a place, or kNoStep
};

inline constexpr uint32_t kNoStep = 0xFFFF;
inline constexpr uint32_t kMoved = 0x8000;  // beside a step: what that one moved there

/// One warp: notes who moved what, in order of the steps.
__device__ inline void note_moves(uint32_t count, DrawRoom& room) {
  for (uint32_t begin = 0; begin < count; begin += kWarp) {
    const uint32_t step = begin + lane_index();
    const uint32_t end = begin + kWarp < count ? begin + kWarp : count;
    uint32_t target = 0;
    uint32_t before = kNoStep;
    bool notes = false;
    if (step < count) {
      target = room.chosen[step];
      before = room.last[target];
      notes = target != step;  // what stays moves nothing
      for (uint32_t other = begin; other < end; ++other) {
        const bool same = room.chosen[other] == target && other != target;
        before = same && other < step ? other : before;
        notes = notes && !(same && other > step);
      }
    }
    __syncwarp();
    if (notes) {
      room.last[target] = static_cast<uint16_t>(step);
    }
    if (before != kNoStep) {
      room.chosen[step] = static_cast<uint16_t>(before | kMoved);
    }
    __syncwarp();
  }
}

/// room.chosen[0, count) = what cpu::draw_in_chunk() gives. All threads of a block; ends behind a
/// barrier.
__device__ inline void draw_in_chunk(uint32_t draw, uint32_t chunk, uint32_t numel, uint32_t count,
                                     DrawRoom& room) {
  for (uint32_t i = threadIdx.x; i < numel; i += blockDim.x) {
    room.last[i] = static_cast<uint16_t>(kNoStep);
  }
  for (uint32_t first = threadIdx.x * 4; first < count; first += blockDim.x * 4) {
    const PhiloxCounter drawn = philox({{first / 4, chunk, 0, 0}}, draw);
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t step = first + i;
      if (step < count) {
        const uint64_t ahead = uint64_t{drawn.word[i]} * (numel - step) >> 32;
        room.chosen[step] = static_cast<uint16_t>(step + ahead);
      }
    }
  }
  __syncthreads();
  if (warp_index() == 0) {
    note_moves(count, room);
  }
  __syncthreads();
  for (uint32_t step = threadIdx.x; step < count; step += blockDim.x) {
    uint32_t at = room.chosen[step];
    if ((at & kMoved) != 0) {
      at &= ~kMoved;
      while (room.last[at] != kNoStep) {
        at = room.last[at];
      }
      room.chosen[step] = static_cast<uint16_t>(at);
    }
  }
  __syncthreads();
}

}  // namespace gradwire::cuda
