#include "gradwire/kernels/ops/sparse.cuh"

namespace gradwire::cuda {

void encode_sparse(const SparseInput& input, const SparseFormat& format, const SparseOutput& output,
                   Stream& stream) {
  const char* const op = "cuda::encode_sparse";
  const size_t numel = input.x.size();
  const size_t chunks = select_chunks(numel);
  check_cuda_stream(op, stream);
  check_parity(op, "x", input.x, numel);
  check_marks(op, input.mask, input.counts, numel);
  check(input.before.size() == chunks, op, ": before has ", input.before.size(),
        " elements, must have ", chunks);
  check_pointer(op, "before", input.before.data(), chunks, alignof(EntriesBefore));
  check_scale(op, input.scale);
  check(input.first % kSelectChunk == 0, op, ": first is ", input.first,
        ", must be a multiple of ", kSelectChunk);
  check_pointer(op, "body", output.body.data(), output.body.size(), 1);
  check_pointer(op, "body_bytes", output.body_bytes, output.body_bytes != nullptr ? 1 : 0,
                alignof(uint64_t));
  check_seal(op, output.call, output.seal);
  check(output.seal.status != nullptr, op, ": the seal's status is null, must be a device word");
  const size_t listed = format.blocks.width > 0 ? chunks : 0;
  check(input.listed.size() == listed && input.listed_before.size() == listed, op, ": listed has ",
        input.listed.size(), " elements, listed_before ", input.listed_before.size(),
        ", must have ", listed);
  check_pointer(op, "listed", input.listed.data(), listed, alignof(uint32_t));
  check_pointer(op, "listed_before", input.listed_before.data(), listed, alignof(EntriesBefore));
  const EncodeArguments arguments{ParityPointer(input.x),
                                  input.scale,
                                  numel,
                                  input.mask.data(),
                                  input.counts.data(),
                                  input.before.data(),
                                  chunks,
                                  output.body.data(),
                                  output.body.size(),
                                  output.body_bytes,
                                  output.seal,
                                  value_codes(op, format.values, format.levels, input.stochastic),
                                  input.first,
                                  input.variant,
                                  IndexChoice{format.by_variant, format.bitmap_variants},
                                  format.blocks,
                                  input.listed.data(),
                                  input.listed_before.data()};
  const LaunchShape shape{chunks == 0 ? 1 : chunks, kSparseThreads, stream};  // always a header
  dispatch_format(op, format, [&]<SparseStorage kStorage, SparseIndices kIndices>() {
    GRADWIRE_LAUNCH((encode_sparse_kernel<kStorage, kIndices>), shape, arguments);
  });
}

}  // namespace gradwire::cuda
