#include <algorithm>

#include "gradwire/kernels/ops/launch_checks.cuh"
#include "gradwire/kernels/ops/parts.cuh"

namespace gradwire::cuda {

void open_parts(std::span<const std::span<const std::byte>> payloads, const ExpectedParts& expected,
                std::span<DevicePart> table, const PartFaults& faults, Stream& stream) {
  const char* const op = "cuda::open_parts";
  check_cuda_stream(op, stream);
  check(table.size() == payloads.size(), op, ": table has ", table.size(),
        " entries, must have one for each of ", payloads.size(), " payloads");
  check_pointer(op, "table", table.data(), table.size(), alignof(DevicePart));
  check(faults.step != nullptr && faults.flags != nullptr, op,
        ": step or flags is null, must be device memory");
  for (size_t first = 0; first < payloads.size(); first += kPartThreads) {
    PayloadList list{};
    list.first = first;
    list.count = static_cast<unsigned>(std::min<size_t>(payloads.size() - first, kPartThreads));
    for (unsigned i = 0; i < list.count; ++i) {
      const auto payload = payloads[first + i];
      check(payload.data() != nullptr || payload.empty(), op, ": payload part ", first + i,
            " is null, must be device memory of ", payload.size(), " bytes");
      list.data[i] = payload.data();
      list.bytes[i] = payload.size();
    }
    GRADWIRE_LAUNCH(open_parts_kernel, (LaunchShape{1, kPartThreads, stream}), list, expected,
                    table.data(), faults);
  }
}

void slice_records(const RecordSlice& slice, Stream& stream) {
  const char* const op = "cuda::slice_records";
  check_cuda_stream(op, stream);
  check(slice.table.size() == 1, op, ": table has ", slice.table.size(), " parts, must have 1");
  check(slice.out != nullptr, op, ": out is null, must be device memory of ", slice.header.bytes,
        " bytes");
  constexpr size_t kMostBlocks = 1024;
  const size_t blocks = (slice.header.bytes + kSliceBytes - 1) / kSliceBytes;
  GRADWIRE_LAUNCH(slice_records_kernel,
                  (LaunchShape{std::min(blocks, kMostBlocks), kSliceThreads, stream}),
                  slice.table.data(), slice.record_bytes, slice.header, slice.out);
}

namespace {

LaunchShape one_thread(const char* op, const StepWords* step, Stream& stream) {
  check_cuda_stream(op, stream);
  check(step != nullptr, op, ": step is null, must be device memory");
  return {1, 1, stream};
}

}  // namespace

void clear_headers(std::span<std::byte> messages, size_t stride, Stream& stream) {
  const char* const op = "cuda::clear_headers";
  check_cuda_stream(op, stream);
  check(stride >= sizeof(PayloadHeader), op, ": stride is ", stride,
        " bytes, must be at least a header's ", sizeof(PayloadHeader));
  const size_t count = (messages.size() + stride - sizeof(PayloadHeader)) / stride;
  check_pointer(op, "messages", messages.data(), messages.size(), 1);
  const size_t words = count * sizeof(PayloadHeader) / 4;
  GRADWIRE_LAUNCH(clear_headers_kernel,
                  (LaunchShape{(words + kClearThreads - 1) / kClearThreads, kClearThreads, stream}),
                  messages.data(), stride, count);
}

void commit_step(StepWords* step, bool skip, Stream& stream) {
  GRADWIRE_LAUNCH(commit_step_kernel, one_thread("cuda::commit_step", step, stream), step, skip);
}

void clear_faults(StepWords* step, Stream& stream) {
  GRADWIRE_LAUNCH(clear_faults_kernel, one_thread("cuda::clear_faults", step, stream), step);
}

void set_step(StepWords* step, uint32_t committed, Stream& stream) {
  GRADWIRE_LAUNCH(set_step_kernel, one_thread("cuda::set_step", step, stream), step, committed);
}

}  // namespace gradwire::cuda
