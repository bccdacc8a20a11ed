#include "gradwire/kernels/ops/launch_checks.cuh"
#include "gradwire/kernels/ops/select_checks.cuh"
#include "gradwire/kernels/ops/select_segments.cuh"

namespace gradwire::cuda {
namespace {

constexpr size_t kWordBytes = 16;
static_assert(sizeof(SegmentWords) <= kWordBytes);

}  // namespace

size_t select_in_segments_bytes(size_t segments) {
  return kWordBytes + segments * (kBins * sizeof(uint32_t) + sizeof(SegmentState));
}

void select_in_segments(const SelectInput& input, const SegmentChoice& choice,
                        const SelectOutput& output, Stream& stream) {
  const char* const op = "cuda::select_in_segments";
  const size_t segments = choice.ends.size();
  SelectInput checked = input;
  checked.k = 1;
  const SelectMemory memory = select_memory(op, checked, output, 1, stream);
  check(segments > 0 || memory.numel == 0, op, ": there are no segments, must be at least 1");
  check_pointer(op, "ends", choice.ends.data(), segments, alignof(uint64_t));
  check(choice.density > 0 && choice.density <= 1, op, ": density is ", choice.density,
        ", must be in (0, 1]");
  check_workspace(op, output.workspace, select_in_segments_bytes(segments));
  std::byte* const workspace = output.workspace.data();
  auto* const bins = reinterpret_cast<uint32_t*>(workspace + kWordBytes);
  const SegmentArguments arguments{memory,
                                   choice.ends.data(),
                                   segments,
                                   choice.first,
                                   choice.density,
                                   reinterpret_cast<SegmentWords*>(workspace),
                                   reinterpret_cast<SegmentState*>(bins + segments * kBins),
                                   bins};
  const size_t chunks = select_chunks(memory.numel);
  const LaunchShape each_segment{memory.numel > 0 ? segments : 0, kSelectThreads, stream};
  const LaunchShape each_chunk{chunks, kSelectThreads, stream};
  GRADWIRE_LAUNCH(begin_segments_kernel, each_segment, arguments);
  for (int round = 0; round < 3; ++round) {
    if (round == 0) {
      dispatch(input.g.dtype, [&]<class T>() {
        GRADWIRE_LAUNCH((count_in_segments_kernel<T, true>), each_chunk, arguments, round);
      });
    } else {
      GRADWIRE_LAUNCH((count_in_segments_kernel<float, false>), each_chunk, arguments, round);
    }
    GRADWIRE_LAUNCH(cut_segments_kernel, each_segment, arguments, round);
  }
  GRADWIRE_LAUNCH(mark_in_segments_kernel, each_chunk, arguments);
}

}  // namespace gradwire::cuda
