#include <algorithm>
#include <cmath>

#include "gradwire/kernels/ops/launch_checks.h"
#include "gradwire/kernels/ops/select.cuh"

namespace gradwire::cuda {
namespace {

constexpr size_t kSampleAbove = 65536;    // elements; below, all of them are marked
constexpr size_t kSampleLines = 8192;     // of 8 elements
constexpr size_t kMostRankBlocks = 1024;  // each merges its bins once

constexpr size_t kStateBytes = (sizeof(SelectState) + 15) / 16 * 16;

/// Four standard deviations on the safe side: the guess is hardly ever too high.
Sample sample_for(size_t numel, size_t k) {
  if (numel <= kSampleAbove || k >= numel / 2) {
    return {0, 0, 0};
  }
  const size_t lines = std::min(kSampleLines, numel / 64);
  const auto sampled = static_cast<double>(lines * kPerThread);
  const double expected = static_cast<double>(k) / static_cast<double>(numel) * sampled;
  const double rank = std::min(sampled, expected + 4 * std::sqrt(expected) + 2);
  return {lines, numel / lines, static_cast<uint32_t>(rank)};
}

void check_select(const SelectInput& in, const SelectOutput& out, const Stream& stream) {
  const char* const op = "cuda::select_largest";
  const size_t numel = in.g.numel;
  check_view(op, "g", in.g, stream);
  check_parity(op, "e", in.e, numel);
  check(numel == 0 || (in.k >= 1 && in.k <= numel), op, ": k is ", in.k, ", must be 1 to ", numel);
  check_parity(op, "x", out.x, numel);
  check(out.x.size() == numel, op, ": x has ", out.x.size(), " elements, must have ", numel);
  check_marks(op, out.mask, out.counts, numel);
  check(out.call != nullptr, op, ": call is null, must be words in device memory");
  check_workspace(op, out.workspace, select_workspace_bytes(numel));
}

}  // namespace

size_t select_workspace_bytes(size_t numel) {
  return kStateBytes + select_chunks(numel) * sizeof(uint32_t);
}

void select_largest(const SelectInput& input, const SelectOutput& output, Stream& stream) {
  check_select(input, output, stream);
  const size_t numel = input.g.numel;
  const size_t chunks = select_chunks(numel);
  if (numel == 0) {
    return;
  }
  std::byte* const workspace = output.workspace.data();
  const SelectArguments arguments{static_cast<const std::byte*>(input.g.data),
                                  ParityPointer(input.e),
                                  ParityPointer(output.x),
                                  numel,
                                  static_cast<uint32_t>(input.k),
                                  output.mask.data(),
                                  output.counts.data(),
                                  reinterpret_cast<uint32_t*>(workspace + kStateBytes),
                                  reinterpret_cast<SelectState*>(workspace),
                                  &output.call->flags};
  const LaunchShape one{1, kScanThreads, stream};
  const LaunchShape each_chunk{chunks, kSelectThreads, stream};
  const LaunchShape few{std::min(chunks, kMostRankBlocks), kSelectThreads, stream};
  dispatch(input.g.dtype, [&]<class T>() {
    GRADWIRE_LAUNCH(guess_kernel<T>, one, arguments, sample_for(numel, input.k));
    GRADWIRE_LAUNCH(mark_kernel<T>, each_chunk, arguments);
  });
  GRADWIRE_LAUNCH(mark_anew_kernel, each_chunk, arguments);
  GRADWIRE_LAUNCH(rank_kernel, few, arguments, chunks, 20, 11);
  GRADWIRE_LAUNCH(rank_kernel, few, arguments, chunks, 9, 11);
  GRADWIRE_LAUNCH(rank_kernel, few, arguments, chunks, 0, 9);
  GRADWIRE_LAUNCH(count_ties_kernel, each_chunk, arguments);
  GRADWIRE_LAUNCH(scan_ties_kernel, one, arguments, chunks);
  GRADWIRE_LAUNCH(trim_kernel, each_chunk, arguments);
}

}  // namespace gradwire::cuda
