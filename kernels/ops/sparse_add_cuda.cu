#include <algorithm>

#include "gradwire/kernels/ops/launch_checks.cuh"
#include "gradwire/kernels/ops/sparse_check.cuh"

namespace gradwire::cuda {
namespace {

AddArguments arguments_for(const char* op, const SparseParts& parts, const SparseFormat& format,
                           const Stream& stream) {
  check_cuda_stream(op, stream);
  const size_t count = parts.parts.size();
  check(parts.step != nullptr, op, ": step is null, must be device memory");
  check_pointer(op, "parts", parts.parts.data(), count, alignof(DevicePart));
  check_workspace(op, parts.workspace, sparse_workspace_bytes(parts.most_numel, count));
  auto* const of_body = reinterpret_cast<BodyPlace*>(parts.workspace.data());
  AddArguments arguments{};
  arguments.parts = parts.parts.data();
  arguments.count = count;
  arguments.of_body = of_body;
  arguments.places = reinterpret_cast<ChunkPlace*>(of_body + count);
  arguments.most_chunks = select_chunks(parts.most_numel);
  arguments.step = parts.step;
  arguments.indices = {format.by_variant, format.bitmap_variants};
  return arguments;
}

}  // namespace

size_t sparse_workspace_bytes(size_t numel, size_t parts) {
  return parts * (sizeof(BodyPlace) + select_chunks(numel) * sizeof(ChunkPlace));
}

void add_sparse(const SparseParts& parts, const SparseFormat& format, const SparseSum& output,
                Stream& stream) {
  const char* const op = "cuda::add_sparse";
  const TensorView& sum = output.sum;
  AddArguments arguments = arguments_for(op, parts, format, stream);
  check_view(op, "sum", sum, stream);
  check_scale(op, output.scale);
  check(output.begin % kSelectChunk == 0, op, ": begin is ", output.begin,
        ", must be a multiple of ", kSelectChunk);
  check_onto(op, output.onto, parts.parts.size());
  arguments.first_chunk = output.begin / kSelectChunk;
  arguments.sum = static_cast<std::byte*>(sum.data);
  arguments.numel = sum.numel;
  arguments.factor = output.scale;
  arguments.codes = code_format_of(format.values);
  arguments.onto = output.onto;
  arguments.grid = format.blocks;
  dispatch_format(op, format, [&]<SparseStorage kStorage, SparseIndices kIndices>() {
    GRADWIRE_LAUNCH((place_part_kernel<kStorage, kIndices>),
                    (LaunchShape{parts.parts.size(), kPlaceThreads, stream}), arguments);
    dispatch(sum.dtype, [&]<class T>() {
      GRADWIRE_LAUNCH((add_sparse_kernel<T, kStorage, kIndices>),
                      (LaunchShape{select_chunks(sum.numel), kSparseThreads, stream}), arguments,
                      output.overflow);
    });
  });
}

PlacedParts check_sparse(const SparseParts& parts, const SparseFormat& format, Stream& stream) {
  AddArguments arguments = arguments_for("cuda::check_sparse", parts, format, stream);
  arguments.numel = parts.most_numel;
  arguments.grid = format.blocks;
  const size_t count = parts.parts.size();
  const size_t chunks = arguments.most_chunks;
  dispatch_format(
      "cuda::check_sparse", format, [&]<SparseStorage kStorage, SparseIndices kIndices>() {
        GRADWIRE_LAUNCH((place_part_kernel<kStorage, kIndices>),
                        (LaunchShape{count, kPlaceThreads, stream}), arguments);
        GRADWIRE_LAUNCH((check_entries_kernel<kStorage, kIndices>),
                        (LaunchShape{count * chunks, kSparseThreads, stream}), arguments);
      });
  return {arguments.of_body, arguments.places, chunks};
}

void slice_sparse(const SparseParts& part, const SparseFormat& format, const PayloadHeader& header,
                  std::span<std::byte> out, Stream& stream) {
  const char* const op = "cuda::slice_sparse";
  check(part.parts.size() == 1, op, ": there are ", part.parts.size(), " parts, must be 1");
  check(out.size() >= sizeof header, op, ": out has ", out.size(), " bytes, must have at least ",
        sizeof header);
  const AddArguments arguments = arguments_for(op, part, format, stream);
  constexpr size_t kMostBlocks = 1024;
  const size_t blocks = std::min((out.size() + kSliceBytes - 1) / kSliceBytes, kMostBlocks);
  dispatch_format(op, format, [&]<SparseStorage kStorage, SparseIndices kIndices>() {
    GRADWIRE_LAUNCH((place_part_kernel<kStorage, kIndices>),
                    (LaunchShape{1, kPlaceThreads, stream}), arguments);
    GRADWIRE_LAUNCH((slice_sparse_kernel<kStorage, kIndices>),
                    (LaunchShape{blocks, kSliceThreads, stream}), arguments, header, out.data(),
                    out.size());
  });
}

void add_to(std::span<const float> x, const ParitySpan& to, Stream& stream) {
  const char* const op = "cuda::add_to";
  check_cuda_stream(op, stream);
  check(to.size() == x.size(), op, ": to has ", to.size(), " elements, must have ", x.size());
  check_parity(op, "to", to, x.size());
  check_pointer(op, "x", x.data(), x.size(), alignof(float));
  constexpr size_t kPerBlock = size_t{kSliceThreads} * kPerThread;
  const LaunchShape shape{(x.size() + kPerBlock - 1) / kPerBlock, kSliceThreads, stream};
  GRADWIRE_LAUNCH(add_to_kernel, shape, x.data(), ParityPointer(to), x.size());
}

}  // namespace gradwire::cuda
