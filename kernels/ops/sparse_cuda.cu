#include <cmath>

#include "gradwire/kernels/ops/sparse_add.cuh"

namespace gradwire::cuda {
namespace {

/// Calls f.operator()<values, bitmap>() with the compile-time values.
template <class F>
void dispatch_format(const char* op, const SparseFormat& format, F&& f) {
  const auto with = [&]<SparseValues kValues>() {
    if (format.bitmap) {
      f.template operator()<kValues, true>();
    } else {
      f.template operator()<kValues, false>();
    }
  };
  switch (format.values) {
    case SparseValues::kFloat32:
      return with.template operator()<SparseValues::kFloat32>();
    case SparseValues::kFloat16:
      return with.template operator()<SparseValues::kFloat16>();
    case SparseValues::kBFloat16:
      return with.template operator()<SparseValues::kBFloat16>();
    case SparseValues::kInt8:
      return with.template operator()<SparseValues::kInt8>();
    case SparseValues::kInt4:
      return with.template operator()<SparseValues::kInt4>();
  }
  check(false, op, ": values is ", static_cast<int>(format.values), ", must be 0 to 4");
}

void check_workspace(const char* op, std::span<std::byte> workspace, size_t needed) {
  check(workspace.size() >= needed, op, ": workspace has ", workspace.size(),
        " bytes, must have at least ", needed);
  check(reinterpret_cast<uintptr_t>(workspace.data()) % 16 == 0, op,
        ": workspace must begin on a multiple of 16");
}

}  // namespace

size_t sparse_workspace_bytes(size_t numel, size_t parts) {
  return parts * (sizeof(BodyPlace) + select_chunks(numel) * sizeof(ChunkPlace));
}

void encode_sparse(const SparseInput& input, const SparseFormat& format, const SparseOutput& output,
                   Stream& stream) {
  const char* const op = "cuda::encode_sparse";
  const size_t numel = input.x.size();
  const size_t chunks = select_chunks(numel);
  check_cuda_stream(op, stream);
  check(input.mask.size() == chunks * kMaskBytes, op, ": mask has ", input.mask.size(),
        " bytes, must have ", chunks * kMaskBytes);
  check(input.counts.size() == chunks, op, ": counts has ", input.counts.size(),
        " elements, must have ", chunks);
  check(output.body_bytes != nullptr && output.status != nullptr, op,
        ": body_bytes or status is null, must be device words");
  check_workspace(op, output.workspace, sparse_workspace_bytes(numel, 1));
  auto* const of_body = reinterpret_cast<BodyPlace*>(output.workspace.data());
  const EncodeArguments arguments{input.x.data(),
                                  numel,
                                  input.mask.data(),
                                  input.counts.data(),
                                  chunks,
                                  output.body.data(),
                                  output.body.size(),
                                  output.body_bytes,
                                  of_body,
                                  reinterpret_cast<ChunkPlace*>(of_body + 1),
                                  output.status};
  dispatch_format(op, format, [&]<SparseValues kValues, bool kBitmap>() {
    GRADWIRE_LAUNCH((place_selection_kernel<kValues, kBitmap>),
                    (LaunchShape{1, kPlaceThreads, stream}), arguments);
    GRADWIRE_LAUNCH((encode_sparse_kernel<kValues, kBitmap>),
                    (LaunchShape{chunks, kSparseThreads, stream}), arguments);
  });
}

void add_sparse(const SparseParts& parts, const SparseFormat& format, const SparseSum& output,
                Stream& stream) {
  const char* const op = "cuda::add_sparse";
  const TensorView& sum = output.sum;
  const size_t chunks = select_chunks(sum.numel);
  check_cuda_stream(op, stream);
  check(sum.device == stream.device(), op, ": sum is not in the memory of the stream's device");
  check(std::isfinite(output.scale) && output.scale > 0, op, ": scale is ", output.scale,
        ", must be positive and finite");
  check(output.status != nullptr, op, ": status is null, must be a device word");
  check(parts.bytes.size() == parts.bodies.size(), op, ": bytes has ", parts.bytes.size(),
        " elements, must have ", parts.bodies.size(), " as bodies has");
  check_workspace(op, parts.workspace, sparse_workspace_bytes(sum.numel, parts.bodies.size()));
  auto* const of_body = reinterpret_cast<BodyPlace*>(parts.workspace.data());
  const AddArguments arguments{
      parts.bodies.data(),
      parts.bytes.data(),
      parts.bodies.size(),
      of_body,
      reinterpret_cast<ChunkPlace*>(of_body + parts.bodies.size()),
      chunks,
      static_cast<std::byte*>(sum.data),
      sum.numel,
      output.scale,
      output.status};
  dispatch_format(op, format, [&]<SparseValues kValues, bool kBitmap>() {
    GRADWIRE_LAUNCH((place_part_kernel<kValues, kBitmap>),
                    (LaunchShape{parts.bodies.size(), kPlaceThreads, stream}), arguments);
    dispatch(sum.dtype, [&]<class T>() {
      GRADWIRE_LAUNCH((add_sparse_kernel<T, kValues, kBitmap>),
                      (LaunchShape{chunks, kSparseThreads, stream}), arguments);
    });
  });
}

}  // namespace gradwire::cuda
