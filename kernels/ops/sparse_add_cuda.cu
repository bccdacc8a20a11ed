#include <cmath>

#include "gradwire/kernels/ops/sparse_add.cuh"

namespace gradwire::cuda {

size_t sparse_workspace_bytes(size_t numel, size_t parts) {
  return parts * (sizeof(BodyPlace) + select_chunks(numel) * sizeof(ChunkPlace));
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
