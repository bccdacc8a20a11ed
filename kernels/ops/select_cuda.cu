#include <algorithm>
#include <cmath>

#include "gradwire/kernels/ops/launch_checks.cuh"
#include "gradwire/kernels/ops/select_checks.cuh"
#include "gradwire/kernels/ops/select_chunks.cuh"
#include "gradwire/kernels/ops/select_rank.cuh"

namespace gradwire::cuda {
namespace {

constexpr size_t kSampleAbove = 65536;  // elements; below, all of them are marked
constexpr size_t kSampleLines = 8192;   // of 8 elements
constexpr size_t kMostRankBlocks = 264;

constexpr size_t kStateBytes = (sizeof(SelectState) + 15) / 16 * 16;

/// A bin holds about k / 1000 elements, where they differ.
size_t most_keys(size_t numel) { return std::min(numel, kSampleAbove + numel / 256); }

/// Four standard deviations on each side: the guess is hardly ever wrong.
Sample sample_for(size_t numel, size_t k) {
  if (numel <= kSampleAbove) {
    return {0, 0, 0, 0};
  }
  const size_t lines = std::min(kSampleLines, numel / 64);
  const auto sampled = static_cast<double>(lines * kPerThread);
  const double expected = static_cast<double>(k) / static_cast<double>(numel) * sampled;
  const double margin = 4 * std::sqrt(expected) + 2;
  return {lines, numel / lines, static_cast<uint32_t>(std::min(sampled, expected + margin)),
          expected > margin ? static_cast<uint32_t>(expected - margin) : 0};
}

/// The stages of a call: one, unless its input has more.
Stages stages_of(const char* op, const SelectInput& in) {
  const size_t numel = in.g.numel;
  Stages stages{};
  if (in.stages == nullptr) {
    stages.count = stages.period = 1;
    stages.stage[0] = {static_cast<uint32_t>(in.k), sample_for(numel, in.k)};
    return stages;
  }
  const SelectStages& from = *in.stages;
  check(!from.k.empty() && from.k.size() <= kMostSelectStages && from.last + 1 >= from.k.size(), op,
        ": there are ", from.k.size(), " stages, must be 1 to ", kMostSelectStages,
        " and no more than the last one's number ", from.last, " and 1");
  check(from.period > 0, op, ": a stage's period is 0, must be positive");
  check_pointer(op, "stages.parts", from.parts.data(), from.parts.size(), alignof(DevicePart));
  for (size_t i = 0; i < from.k.size(); ++i) {
    check(numel == 0 || (from.k[i] >= 1 && from.k[i] <= numel), op, ": k of stage ", i, " is ",
          from.k[i], ", must be 1 to ", numel);
    stages.stage[i] = {static_cast<uint32_t>(from.k[i]), sample_for(numel, from.k[i])};
  }
  stages.count = static_cast<uint32_t>(from.k.size());
  stages.last = from.last;
  stages.period = from.period;
  stages.step = from.step;
  stages.parts = from.parts.empty() ? nullptr : from.parts.data();
  stages.taken = from.stage;
  return stages;
}

void launch_exact(const char* op, const SelectInput& input, const ThresholdSlots& threshold,
                  const SelectOutput& output, Stream& stream) {
  const size_t numel = input.g.numel;
  const SelectMemory memory = select_memory(op, input, output, numel, stream);
  check_workspace(op, output.workspace, select_workspace_bytes(numel));
  std::byte* const workspace = output.workspace.data();
  const size_t chunks = select_chunks(numel);
  const size_t keys = most_keys(numel);
  auto* const list = reinterpret_cast<uint64_t*>(workspace + kStateBytes);
  const ExactArguments arguments{memory,
                                 list,
                                 static_cast<uint32_t>(keys),
                                 reinterpret_cast<uint32_t*>(list + keys),
                                 reinterpret_cast<SelectState*>(workspace),
                                 threshold};
  const Stages stages = stages_of(op, input);
  const LaunchShape each_chunk{chunks, kSelectThreads, stream};
  dispatch(input.g.dtype, [&]<class T>() {
    GRADWIRE_LAUNCH(guess_kernel<T>, (LaunchShape{1, kRankThreads, stream}), arguments, stages);
    GRADWIRE_LAUNCH(mark_kernel<T>, each_chunk, arguments);
  });
  const size_t rank_blocks = std::min((chunks + 7) / 8, kMostRankBlocks);  // a word per thread
  GRADWIRE_LAUNCH(rank_kernel, (LaunchShape{rank_blocks, kRankThreads, stream}), arguments, chunks);
  GRADWIRE_LAUNCH(trim_kernel, each_chunk, arguments);
}

}  // namespace

size_t select_workspace_bytes(size_t numel) {
  return kStateBytes + most_keys(numel) * sizeof(uint64_t) + select_chunks(numel) * sizeof(uint32_t);
}

void select_largest(const SelectInput& input, const SelectOutput& output, Stream& stream) {
  launch_exact("cuda::select_largest", input, {}, output, stream);
}

void select_above(const SelectInput& input, const ThresholdSlots& threshold,
                  const SelectOutput& output, Stream& stream) {
  const char* const op = "cuda::select_above";
  check_pointer(op, "threshold.slots", threshold.slots, 2, alignof(ThresholdSlot));
  check_pointer(op, "threshold.parity", threshold.parity, 1, alignof(uint32_t));
  check_pointer(op, "threshold.step", threshold.step, 1, alignof(uint32_t));
  check_pointer(op, "threshold.epoch", threshold.epoch, 1, alignof(uint32_t));
  launch_exact(op, input, threshold, output, stream);
}

void select_in_chunks(const SelectInput& input, const SelectOutput& output, Stream& stream) {
  check(input.stages == nullptr, "cuda::select_in_chunks: there are stages of k, must be none");
  const SelectMemory memory =
      select_memory("cuda::select_in_chunks", input, output, kSelectChunk, stream);
  dispatch(input.g.dtype, [&]<class T>() {
    GRADWIRE_LAUNCH(select_in_chunks_kernel<T>,
                    (LaunchShape{select_chunks(memory.numel), kSelectThreads, stream}), memory,
                    &output.call->arrived);
  });
}

}  // namespace gradwire::cuda
