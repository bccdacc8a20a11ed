#include "gradwire/kernels/ops/sparse.cuh"

namespace gradwire::cuda {
namespace {

/// Who draws must, and who cannot must not.
void check_rounding(const char* op, const SparseInput& input, const SparseFormat& format) {
  const bool by_chance = input.stochastic != nullptr;
  const bool integer = format.values == SparseValues::kInt8 ||
                       format.values == SparseValues::kInt4 || format.values == SparseValues::kInt2;
  const SparseStorage storage = storage_of(format.values);
  const bool has_codes = storage == SparseStorage::kEight || storage == SparseStorage::kFour ||
                         storage == SparseStorage::kTwo;
  check(format.levels == 0 || (integer && by_chance), op, ": levels is ", format.levels,
        ", must be 0 but for integers that are rounded stochastically");
  check(format.levels >= 0 &&
            (format.levels == 0 ||
             format.levels <= cpu::largest_code(storage == SparseStorage::kEight  ? 8
                                                : storage == SparseStorage::kFour ? 4
                                                                                  : 2)),
        op, ": levels is ", format.levels, ", must be a code of the values");
  check(!by_chance || has_codes, op, ": stochastic is given, must be null: the values are not "
        "rounded to codes of 8, 4 or 2 bits");
  check(by_chance || format.values != SparseValues::kPowerOfTwo, op,
        ": stochastic is null, must be given for powers of two");
  check(input.first % kSelectChunk == 0, op, ": first is ", input.first,
        ", must be a multiple of ", kSelectChunk);
  if (by_chance) {
    check(!input.stochastic->segments.empty() && input.stochastic->step != nullptr, op,
          ": the rounding source has no segments or no step, must have both");
  }
}

}  // namespace

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
  check_rounding(op, input, format);
  check_pointer(op, "body", output.body.data(), output.body.size(), 1);
  check_pointer(op, "body_bytes", output.body_bytes, output.body_bytes != nullptr ? 1 : 0,
                alignof(uint64_t));
  check_seal(op, output.call, output.seal);
  check(output.seal.status != nullptr, op, ": the seal's status is null, must be a device word");
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
                                  code_format_of(format.values),
                                  format.levels,
                                  input.stochastic != nullptr,
                                  input.stochastic != nullptr ? *input.stochastic
                                                              : RoundingSource{},
                                  input.first};
  const LaunchShape shape{chunks == 0 ? 1 : chunks, kSparseThreads, stream};  // always a header
  dispatch_format(op, format, [&]<SparseStorage kStorage, bool kBitmap>() {
    GRADWIRE_LAUNCH((encode_sparse_kernel<kStorage, kBitmap>), shape, arguments);
  });
}

}  // namespace gradwire::cuda
