#pragma once
// Which elements are sent, chosen on a GPU: the k largest of all by magnitude, exactly; the k
// largest of every chunk; or what reaches a threshold of the step before. The same set for any grid.
// All memory is the GPU's; nothing is allocated, nothing waits, and a CUDA graph can capture the
// calls: what has to be decided is decided on the device.

#include <span>

#include "gradwire/kernels/core/stream.h"
#include "gradwire/kernels/ops/parity_span.h"
#include "gradwire/kernels/ops/parts_cuda.h"
#include "gradwire/kernels/ops/seal.h"
#include "gradwire/kernels/ops/threshold_state.h"

namespace gradwire::cuda {

/// Elements of a selection chunk and the bytes that mark them.
inline constexpr size_t kSelectChunk = 4096;
inline constexpr size_t kMaskBytes = kSelectChunk / 8;

constexpr size_t select_chunks(size_t numel) { return (numel + kSelectChunk - 1) / kSelectChunk; }

/// Device memory that select_largest() and select_above() work in; no call expects anything in it.
size_t select_workspace_bytes(size_t numel);

inline constexpr size_t kMostSelectStages = 17;

/// k by stages: in a warm-up it falls with the step.
struct SelectStages {
  std::span<const size_t> k;  ///< in host memory; of later stages than there are: the last one's
  uint32_t last = 0;          ///< stage; at least k.size() - 1
  uint32_t period = 1;        ///< steps of each stage: it is *step / period, `last` at most
  const uint32_t* step = nullptr;  ///< device word
  /// In device memory; where there are any, the stage is the variant of the first of them.
  std::span<const DevicePart> parts{};
  uint32_t* stage = nullptr;  ///< device word: takes the stage
};

struct SelectInput {
  ConstTensorView g;
  ParitySpan e{};  ///< g's size, or empty
  size_t k = 0;
  const SelectStages* stages = nullptr;  ///< k by stages; `k` is not read then
  /// The output's x holds the elements already: g is float32 and says how many; its data is not read.
  bool in_place = false;
};

/// What the chunks before one chose: where its entries lie in a sparse body.
struct EntriesBefore {
  uint32_t entries;
  uint32_t odd_counts;  ///< chunks with an odd count
  uint32_t two_bits;    ///< bytes of their runs of values with two bits each
  uint32_t one_bit;     ///< bytes of their runs of values with one bit each
};

/// The same behind one more chunk, of `count` entries.
GRADWIRE_HOST_DEVICE constexpr EntriesBefore entries_behind(EntriesBefore before, uint32_t count) {
  return {before.entries + count, before.odd_counts + (count & 1),
          before.two_bits + (count + 3) / 4, before.one_bit + (count + 7) / 8};
}

struct SelectOutput {
  /// g + e; may be e's memory, or g's where g is float32 and e is empty: it is left as it is then.
  ParitySpan x;
  std::span<std::byte> mask;         ///< kMaskBytes per chunk: bit i % 8 of byte i / 8 is element i
  std::span<uint32_t> counts;        ///< chosen elements of each chunk
  std::span<EntriesBefore> before;   ///< one per chunk
  CallWords* call = nullptr;         ///< device memory; kStatusNonFinite is set in its flags
  std::span<std::byte> workspace{};  ///< select_workspace_bytes(), on a multiple of 16
};

/// Marks the k largest |x|; of equal ones those with the smaller index. Zeros are never chosen, so
/// fewer than k may be. Where x holds NaN or infinity nothing is chosen. Four launches.
/// @throws InvalidArgument for sizes, pointers, k (1 to n), stages or devices that do not fit.
void select_largest(const SelectInput& input, const SelectOutput& output, Stream& stream);

/// Marks the k largest of every chunk on its own (1 <= k <= kSelectChunk), of a shorter last one
/// kept_in_chunk(k, len); else as select_largest(). One launch, and no workspace.
void select_in_chunks(const SelectInput& input, const SelectOutput& output, Stream& stream);

/// What a step left to the next one.
struct ThresholdSlot {
  ThresholdState state{};
  uint32_t step = 0;  ///< the one that may read it: in any other the threshold is not known
  uint32_t epoch = 0;  ///< and the epoch
};

/// A threshold that is carried from step to step: kernels/ops/threshold_state.h has the rules.
struct ThresholdSlots {
  ThresholdSlot* slots = nullptr;    ///< device: two; [*parity] is read, the other one written
  const uint32_t* parity = nullptr;  ///< device word, 0 or 1
  const uint32_t* step = nullptr;    ///< device word: where taking begins when there is no room
  const uint32_t* epoch = nullptr;   ///< device word, StepWords::epoch
};

/// Marks what reaches the threshold, threshold_capacity(n, k) at most; or, where the state says so,
/// the k largest. Where x holds NaN or infinity nothing is chosen and the state stays. Four launches.
/// @throws InvalidArgument as select_largest() does.
void select_above(const SelectInput& input, const ThresholdSlots& threshold,
                  const SelectOutput& output, Stream& stream);

}  // namespace gradwire::cuda
