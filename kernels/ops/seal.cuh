#pragma once
// The end of every kernel that writes a payload.

#include "gradwire/kernels/ops/block.cuh"
#include "gradwire/kernels/ops/memory_access.cuh"
#include "gradwire/kernels/ops/seal.h"

namespace gradwire::cuda {

/// One thread: writes `header`, with the flag of non-finite values where `flags` has it.
__device__ __forceinline__ void write_header(std::byte* out, PayloadHeader header, uint32_t flags) {
  header.flags = static_cast<uint8_t>(header.flags | (flags & kStatusNonFinite));
  uint32_t words[sizeof header / 4];
  memcpy(words, &header, sizeof header);
#pragma unroll
  for (unsigned i = 0; i < sizeof header / 4; ++i) {
    store_word(out + 4 * i, words[i]);
  }
}

/// One thread: takes the call's flags, which go into the step's status too.
__device__ __forceinline__ uint32_t take_flags(const Seal& seal) {
  const uint32_t flags = atomicExch(&seal.call->flags, 0u);
  if (flags != 0) {
    atomicOr(seal.status, flags);
  }
  return flags;
}

/// One thread: 32 zero bytes, a header that every reader refuses.
__device__ __forceinline__ void write_refused_header(std::byte* out) {
#pragma unroll
  for (unsigned i = 0; i < sizeof(PayloadHeader) / 4; ++i) {
    store_word(out + 4 * i, 0u);
  }
}

/// One thread: the header of a payload that is whole. After a fault it is refused: what was made
/// from a part that failed, or from residuals that no commit moves any more, must reach nobody.
__device__ __forceinline__ void write_sealed_header(const Seal& seal, const PayloadHeader& header,
                                                    uint32_t flags) {
  if ((atomicOr(seal.status, 0u) & kStatusMalformed) != 0) {
    write_refused_header(seal.out);
  } else {
    write_header(seal.out, header, flags);
  }
}

/// Every thread of every block calls this last, after its own atomicOr() into call->flags: the last
/// block writes the header and leaves the call's words zero.
__device__ __forceinline__ void seal_payload(const Seal& seal) {
  if (seal.out != nullptr && is_last_block(&seal.call->arrived) && threadIdx.x == 0) {
    write_sealed_header(seal, seal.header, take_flags(seal));
  }
}

}  // namespace gradwire::cuda
