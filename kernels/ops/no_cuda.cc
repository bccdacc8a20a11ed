// Every cuda:: operation of a build without device code, so that callers hold no #ifdef.

#include "gradwire/kernels/ops/cast_cuda.h"
#include "gradwire/kernels/ops/drawn_cuda.h"
#include "gradwire/kernels/ops/elementwise_cuda.h"
#include "gradwire/kernels/ops/feedback_cuda.h"
#include "gradwire/kernels/ops/lowrank_cuda.h"
#include "gradwire/kernels/ops/norms_cuda.h"
#include "gradwire/kernels/ops/overflow_cuda.h"
#include "gradwire/kernels/ops/parts_cuda.h"
#include "gradwire/kernels/ops/payload_read_cuda.h"
#include "gradwire/kernels/ops/quantize_cuda.h"
#include "gradwire/kernels/ops/select_blocks_cuda.h"
#include "gradwire/kernels/ops/select_cuda.h"
#include "gradwire/kernels/ops/select_segments_cuda.h"
#include "gradwire/kernels/ops/signs_cuda.h"
#include "gradwire/kernels/ops/sparse_add_cuda.h"
#include "gradwire/kernels/ops/sparse_cuda.h"
#include "gradwire/kernels/ops/velocity_cuda.h"

namespace gradwire::cuda {
namespace {

[[noreturn]] void throw_unavailable(const char* call) {
  throw DeviceError(concat(call, ": gradwire was built without CUDA kernels, configure with "
                                 "GRADWIRE_CUDA=ON and nvcc in the path"));
}

}  // namespace

void cast(const ParityView&, const ParityView&, Stream&) { throw_unavailable("cuda::cast"); }

void encode_cast(const EncodeCastInput&, const EncodeCastOutput&, Stream&) {
  throw_unavailable("cuda::encode_cast");
}

void sum_cast(const CastParts&, float, TensorView, Stream&) {
  throw_unavailable("cuda::sum_cast");
}

void add_decayed(const DecayedSum&, std::span<float>, Stream&) {
  throw_unavailable("cuda::add_decayed");
}

void subtract_sent(const SentSum&, const Seal&, Stream&) {
  throw_unavailable("cuda::subtract_sent");
}
void add_estimate(const EstimateSum&, Stream&) { throw_unavailable("cuda::add_estimate"); }

void flag_overflow(const ParitySpan&, const Seal&, Stream&) {
  throw_unavailable("cuda::flag_overflow");
}

void open_parts(std::span<const std::span<const std::byte>>, const ExpectedParts&,
                std::span<DevicePart>, const PartFaults&, Stream&) {
  throw_unavailable("cuda::open_parts");
}

void slice_records(const RecordSlice&, Stream&) { throw_unavailable("cuda::slice_records"); }

void clear_headers(std::span<std::byte>, size_t, Stream&) {
  throw_unavailable("cuda::clear_headers");
}

void multiply(ConstTensorView, const Factor&, TensorView, Stream&) {
  throw_unavailable("cuda::multiply");
}

void fill_after_fault(const StepWords*, TensorView, float, Stream&) {
  throw_unavailable("cuda::fill_after_fault");
}

void add_until_committed(const StepWords*, uint32_t, std::span<const float>, TensorView, Stream&) {
  throw_unavailable("cuda::add_until_committed");
}

void commit_step(StepWords*, bool, Stream&) { throw_unavailable("cuda::commit_step"); }

void clear_faults(StepWords*, Stream&) { throw_unavailable("cuda::clear_faults"); }

void set_step(StepWords*, uint32_t, Stream&) { throw_unavailable("cuda::set_step"); }

void quantize(const QuantizeInput&, const QuantizeOutput&, Stream&) {
  throw_unavailable("cuda::quantize");
}

void dequantize(const QuantizedParts&, float, TensorView, Stream&) {
  throw_unavailable("cuda::dequantize");
}

void encode_factors(const FactorInput&, const FactorTables&, const FactorBasis&,
                    const FactorOutput&, Stream&) {
  throw_unavailable("cuda::encode_factors");
}

void open_factors(std::span<DevicePart>, PartSide, const FactorTables&, StepWords*,
                  std::span<FactorPart>, uint32_t*, Stream&) {
  throw_unavailable("cuda::open_factors");
}

void sum_factors(std::span<const FactorPart>, float, const FactorTables&, const StepWords*,
                 std::span<float>, Stream&) {
  throw_unavailable("cuda::sum_factors");
}

void decode_factors(const FactorDecoding&, const FactorTables&, const FactorBasis&, Stream&) {
  throw_unavailable("cuda::decode_factors");
}

void learn_factors(std::span<const float>, const uint32_t*, const FactorTables&,
                   const FactorBasis&, Stream&) {
  throw_unavailable("cuda::learn_factors");
}

void take_first_factors(std::span<const float>, const uint32_t*, const FactorTables&,
                        const FactorBasis&, StepWords*, Stream&) {
  throw_unavailable("cuda::take_first_factors");
}

void merge_factors(std::span<const FactorPart>, float, const FactorRegion&, const FactorTables&,
                   const Seal&, const StepWords*, Stream&) {
  throw_unavailable("cuda::merge_factors");
}

void slice_factors(const FactorSlice&, const FactorTables&, Stream&) {
  throw_unavailable("cuda::slice_factors");
}

void encode_signs(const SignsInput&, const SignsOutput&, Stream&) {
  throw_unavailable("cuda::encode_signs");
}

void sum_signs(const SignsParts&, float, TensorView, Stream&) {
  throw_unavailable("cuda::sum_signs");
}

size_t drawn_bytes(const DrawnFormat&, size_t) { throw_unavailable("cuda::drawn_bytes"); }

void encode_drawn(const DrawnInput&, const DrawnOutput&, Stream&) {
  throw_unavailable("cuda::encode_drawn");
}

void sum_drawn(const DrawnParts&, float, TensorView, Stream&) {
  throw_unavailable("cuda::sum_drawn");
}

void sums_of_squares(std::span<const float>, size_t, std::span<double>, Stream&) {
  throw_unavailable("cuda::sums_of_squares");
}

void add_in_order(std::span<const double>, double*, Stream&) {
  throw_unavailable("cuda::add_in_order");
}

void add_parts(std::span<const double>, std::span<double>, Stream&) {
  throw_unavailable("cuda::add_parts");
}

size_t select_workspace_bytes(size_t) { throw_unavailable("cuda::select_workspace_bytes"); }

void select_largest(const SelectInput&, const SelectOutput&, Stream&) {
  throw_unavailable("cuda::select_largest");
}

void select_in_chunks(const SelectInput&, const SelectOutput&, Stream&) {
  throw_unavailable("cuda::select_in_chunks");
}

void select_above(const SelectInput&, const ThresholdSlots&, const SelectOutput&, Stream&) {
  throw_unavailable("cuda::select_above");
}

size_t select_in_segments_bytes(size_t) { throw_unavailable("cuda::select_in_segments_bytes"); }

void select_in_segments(const SelectInput&, const SegmentChoice&, const SelectOutput&, Stream&) {
  throw_unavailable("cuda::select_in_segments");
}

size_t select_blocks_bytes(size_t) { throw_unavailable("cuda::select_blocks_bytes"); }

void select_blocks(const SelectInput&, const BlockChoice&, const SelectOutput&, Stream&) {
  throw_unavailable("cuda::select_blocks");
}

void encode_sparse(const SparseInput&, const SparseFormat&, const SparseOutput&, Stream&) {
  throw_unavailable("cuda::encode_sparse");
}

size_t sparse_workspace_bytes(size_t, size_t) {
  throw_unavailable("cuda::sparse_workspace_bytes");
}

void add_sparse(const SparseParts&, const SparseFormat&, const SparseSum&, Stream&) {
  throw_unavailable("cuda::add_sparse");
}

PlacedParts check_sparse(const SparseParts&, const SparseFormat&, Stream&) {
  throw_unavailable("cuda::check_sparse");
}

size_t read_workspace_bytes(const ReadFormat&, size_t, size_t) {
  throw_unavailable("cuda::read_workspace_bytes");
}

void hold_payloads(const HeldPayloads&, const ReadFormat&, PayloadSource*, Stream&) {
  throw_unavailable("cuda::hold_payloads");
}

void slice_sparse(const SparseParts&, const SparseFormat&, const PayloadHeader&,
                  std::span<std::byte>, Stream&) {
  throw_unavailable("cuda::slice_sparse");
}

void add_to(std::span<const float>, const ParitySpan&, Stream&) {
  throw_unavailable("cuda::add_to");
}

void clip_factor(ConstTensorView, double, std::span<double>, float*, Stream&) {
  throw_unavailable("cuda::clip_factor");
}

void accelerate(const VelocityInput&, const VelocityOutput&, Stream&) {
  throw_unavailable("cuda::accelerate");
}

void clear_marked(const ParitySpan&, std::span<const std::byte>, Stream&) {
  throw_unavailable("cuda::clear_marked");
}

void read_velocity(const KeptVelocity&, std::span<float>, Stream&) {
  throw_unavailable("cuda::read_velocity");
}

void write_velocity(const KeptVelocity&, std::span<const float>, Stream&) {
  throw_unavailable("cuda::write_velocity");
}

}  // namespace gradwire::cuda
