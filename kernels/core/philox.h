#pragma once
// Philox4x32-10: counter-based random numbers, the same bits on CPU and CUDA. Salmon et al.,
// "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

#include <array>
#include <cstdint>

#include "gradwire/kernels/core/dtype.h"

namespace gradwire {

struct PhiloxCounter {
  uint32_t word[4];
};

/// Ten rounds: 128 random bits from a 128-bit counter and a 64-bit key.
GRADWIRE_HOST_DEVICE inline PhiloxCounter philox(PhiloxCounter counter, uint64_t key) {
  uint32_t key0 = static_cast<uint32_t>(key);
  uint32_t key1 = static_cast<uint32_t>(key >> 32);
  uint32_t* c = counter.word;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = static_cast<uint64_t>(c[0]) * 0xD2511F53u;
    const uint64_t product1 = static_cast<uint64_t>(c[2]) * 0xCD9E8D57u;
    c[0] = static_cast<uint32_t>(product1 >> 32) ^ c[1] ^ key0;
    c[1] = static_cast<uint32_t>(product1);
    c[2] = static_cast<uint32_t>(product0 >> 32) ^ c[3] ^ key1;
    c[3] = static_cast<uint32_t>(product0);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

/// Counter of stochastic rounding: eight elements of one parameter share one call and take 16 bits
/// each, in order (element j takes half j%2 of word (j%8)/2, low half first). `step` is the
/// committed step, `rank_stage` is rank * 4 + stage, so that ranks round independently and a
/// parameter keeps its stream when buckets change.
GRADWIRE_HOST_DEVICE inline PhiloxCounter rounding_counter(uint64_t element_in_parameter,
                                                           uint32_t step, uint32_t parameter,
                                                           uint32_t rank_stage) {
  return {{static_cast<uint32_t>(element_in_parameter / 8), step, parameter, rank_stage}};
}

}  // namespace gradwire
