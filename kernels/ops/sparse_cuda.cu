#include "gradwire/kernels/ops/sparse.cuh"

namespace gradwire::cuda {

size_t encode_sparse_workspace_bytes(size_t numel) {
  return sizeof(BodyPlace) + select_chunks(numel) * sizeof(ChunkPlace);
}

void encode_sparse(const SparseInput& input, const SparseFormat& format, const SparseOutput& output,
                   Stream& stream) {
  const char* const op = "cuda::encode_sparse";
  const size_t numel = input.x.size();
  const size_t chunks = select_chunks(numel);
  check_cuda_stream(op, stream);
  check_parity(op, "x", input.x, numel);
  check_marks(op, input.mask, input.counts, numel);
  check_scale(op, input.scale);
  check_pointer(op, "body", output.body.data(), output.body.size(), 1);
  check_pointer(op, "body_bytes", output.body_bytes, output.body_bytes != nullptr ? 1 : 0,
                alignof(uint64_t));
  check_seal(op, output.call, output.seal);
  check(output.seal.status != nullptr, op, ": the seal's status is null, must be a device word");
  check_workspace(op, output.workspace, encode_sparse_workspace_bytes(numel));
  auto* const of_body = reinterpret_cast<BodyPlace*>(output.workspace.data());
  const EncodeArguments arguments{ParityPointer(input.x),
                                  input.scale,
                                  numel,
                                  input.mask.data(),
                                  input.counts.data(),
                                  chunks,
                                  output.body.data(),
                                  output.body.size(),
                                  output.body_bytes,
                                  of_body,
                                  reinterpret_cast<ChunkPlace*>(of_body + 1),
                                  output.seal};
  dispatch_format(op, format, [&]<SparseValues kValues, bool kBitmap>() {
    GRADWIRE_LAUNCH((place_selection_kernel<kValues, kBitmap>),
                    (LaunchShape{1, kPlaceThreads, stream}), arguments);
    GRADWIRE_LAUNCH((encode_sparse_kernel<kValues, kBitmap>),
                    (LaunchShape{chunks, kSparseThreads, stream}), arguments);
  });
}

}  // namespace gradwire::cuda
