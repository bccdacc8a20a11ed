#pragma once
// What adding checks as it goes, ahead of those that read without checks.

#include "gradwire/kernels/ops/sparse_add.cuh"

namespace gradwire::cuda {

/// A block per part and chunk of the group: the indices and the scale of its entries.
template <SparseStorage kStorage, SparseIndices kIndices>
__global__ void __launch_bounds__(kSparseThreads, kAddersAtOnce<kIndices>)
    check_entries_kernel(AddArguments a) {
  using Layout = SparseLayout<kStorage, kIndices>;
  if (a.indices.excludes<kIndices>(variant_of(a))) {
    return;
  }
  GRADWIRE_SHARED(offsets, uint16_t[Layout::kHasBlocks ? kSelectChunk : 1]);
  const size_t p = blockIdx.x / a.most_chunks, chunk = blockIdx.x % a.most_chunks;
  const DevicePart part = a.parts[p];
  if (a.of_body[p].usable == 0 || !holds_chunk(part, chunk)) {
    return;
  }
  const size_t local = chunk - part.first_chunk;
  const uint32_t numel = chunk_numel(a.numel, chunk);
  const uint32_t listed = listed_of<Layout>(part, local);
  const std::byte* const indices = part.body + a.places[p * a.most_chunks + local].indices;
  bool ok = indices_hold<kIndices>(indices, listed, numel);
  if constexpr (Layout::kHasBlocks) {
    ok = ok && blocks_hold({a.grid, chunk * kSelectChunk, numel}, indices, listed,
                           count_of(part, local), offsets);
  }
  bool scale_ok = true;
  if constexpr (Layout::kHasScales) {
    scale_ok = load_word<uint16_t>(part.body + Layout::scales_begin(part.chunks) + 2 * local) <
               kInfinityBrain;
  }
  if (threadIdx.x == 0 && !(ok && scale_ok)) {
    report_fault(a.step, p, ok ? FaultReason::kScale : FaultReason::kIndex);
  }
}

}  // namespace gradwire::cuda
