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
  check(input.mask.size() == chunks * kMaskBytes, op, ": mask has ", input.mask.size(),
        " bytes, must have ", chunks * kMaskBytes);
  check(input.counts.size() == chunks, op, ": counts has ", input.counts.size(),
        " elements, must have ", chunks);
  check(output.body_bytes != nullptr && output.status != nullptr, op,
        ": body_bytes or status is null, must be device words");
  check_workspace(op, output.workspace, encode_sparse_workspace_bytes(numel));
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

}  // namespace gradwire::cuda
