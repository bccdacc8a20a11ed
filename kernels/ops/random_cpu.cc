#include "gradwire/kernels/ops/random.h"

#include <algorithm>
#include <cstddef>

#include "gradwire/kernels/core/clones.h"
#include "gradwire/kernels/core/philox.h"
#include "gradwire/kernels/ops/internal/philox_x86.h"

namespace gradwire::cpu {
namespace {

constexpr size_t kPerCall = 8;  // elements that share one Philox call
constexpr size_t kBatch = 32;   // calls computed side by side
constexpr size_t kBatchElements = kBatch * kPerCall;

/// philox() of kBatch counters that differ in word 0 only, in lanes the compiler vectorises over.
GRADWIRE_CLONES void philox_batch(PhiloxCounter first, uint64_t key, uint16_t* out) {
  uint32_t c0[kBatch], c1[kBatch], c2[kBatch], c3[kBatch];
  for (size_t i = 0; i < kBatch; ++i) {
    c0[i] = first.word[0] + static_cast<uint32_t>(i);
    c1[i] = first.word[1];
    c2[i] = first.word[2];
    c3[i] = first.word[3];
  }
  uint32_t key0 = static_cast<uint32_t>(key);
  uint32_t key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    for (size_t i = 0; i < kBatch; ++i) {
      const uint64_t product0 = static_cast<uint64_t>(c0[i]) * 0xD2511F53u;
      const uint64_t product1 = static_cast<uint64_t>(c2[i]) * 0xCD9E8D57u;
      c0[i] = static_cast<uint32_t>(product1 >> 32) ^ c1[i] ^ key0;
      c1[i] = static_cast<uint32_t>(product1);
      c2[i] = static_cast<uint32_t>(product0 >> 32) ^ c3[i] ^ key1;
      c3[i] = static_cast<uint32_t>(product0);
    }
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  for (size_t i = 0; i < kBatch; ++i) {
    const uint32_t words[4] = {c0[i], c1[i], c2[i], c3[i]};
    for (size_t word = 0; word < 4; ++word) {
      out[i * kPerCall + 2 * word] = static_cast<uint16_t>(words[word]);
      out[i * kPerCall + 2 * word + 1] = static_cast<uint16_t>(words[word] >> 16);
    }
  }
}

#ifdef GRADWIRE_X86
// Aligned rooms in between: the forms below store whole registers.
GRADWIRE_AVX512 void philox_batch_avx512(PhiloxCounter first, uint64_t key, uint16_t* out) {
  alignas(64) uint16_t batch[kBatchElements];
  philox_run_avx512(first, key, batch);
  std::copy_n(batch, kBatchElements, out);
}

GRADWIRE_AVX2 void philox_batch_avx2(PhiloxCounter first, uint64_t key, uint16_t* out) {
  alignas(64) uint16_t batch[kBatchElements];
  philox_run_avx2(first, key, batch);
  std::copy_n(batch, kBatchElements, out);
}
static_assert(kBatchElements == kPhiloxRun);
#endif

using Batch = void (*)(PhiloxCounter first, uint64_t key, uint16_t* out);

Batch best_batch() {
#ifdef GRADWIRE_X86
  if (isa() == Isa::kAvx512) {
    return philox_batch_avx512;
  }
  if (isa() == Isa::kAvx2) {
    return philox_batch_avx2;
  }
#endif
  return philox_batch;
}

}  // namespace

void random_halves(const RoundingStream& stream, uint64_t first, std::span<uint16_t> out) {
  const Batch draw = best_batch();
  size_t done = 0;
  while (done < out.size()) {
    const uint64_t element = first + done;
    const size_t skip = element % kPerCall;
    const PhiloxCounter counter =
        rounding_counter(element, stream.step, stream.parameter, stream.rank_stage);
    const size_t count = std::min(kBatchElements - skip, out.size() - done);
    if (count == kBatchElements) {
      draw(counter, stream.seed, out.data() + done);
    } else {
      uint16_t batch[kBatchElements];
      draw(counter, stream.seed, batch);
      std::copy_n(batch + skip, count, out.data() + done);
    }
    done += count;
  }
}

}  // namespace gradwire::cpu
