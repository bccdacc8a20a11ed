#include <algorithm>
#include <array>

#include "gradwire/kernels/ops/launch_checks.cuh"
#include "gradwire/kernels/ops/lowrank_parts.cuh"

namespace gradwire::cuda {
namespace {

constexpr size_t kMostFactorBlocks = 1024;

FactorView view_of(const char* op, const FactorTables& tables, const Stream& stream) {
  check_cuda_stream(op, stream);
  check(tables.rank >= 1 && tables.rank <= kMostVectors, op, ": rank is ", tables.rank,
        ", must be 1 to ", kMostVectors);
  check_pointer(op, "matrices", tables.matrices.data(), tables.matrices.size(),
                alignof(LowRankMatrix));
  check_pointer(op, "runs", tables.runs.data(), tables.runs.size(), alignof(PlainRun));
  check_pointer(op, "rows", tables.rows.data(), tables.rows.size(), alignof(RowTask));
  check_pointer(op, "tiles", tables.tiles.data(), tables.tiles.size(), alignof(TileTask));
  return {.matrices = tables.matrices.data(),
          .runs = tables.runs.data(),
          .rows = tables.rows.data(),
          .tiles = tables.tiles.data(),
          .tile_sums = tables.tile_sums.data(),
          .matrix_count = static_cast<uint32_t>(tables.matrices.size()),
          .run_count = static_cast<uint32_t>(tables.runs.size()),
          .row_count = static_cast<uint32_t>(tables.rows.size()),
          .rank = tables.rank,
          .numel = tables.numel,
          .plain = tables.plain,
          .left = tables.left,
          .right = tables.right,
          .follows_step = !tables.side,
          .side = tables.side.value_or(FactorSide::kLeft),
          .plain_beside_left = tables.plain_beside_left};
}

void check_basis(const char* op, const FactorBasis& basis) {
  check(basis.step != nullptr && basis.tags != nullptr, op,
        ": step or tags is null, must be device memory");
}

/// Blocks for so many elements, a thread each, that go on where there are more.
size_t blocks_for(uint64_t count) {
  return std::min<size_t>((count + kFactorThreads - 1) / kFactorThreads, kMostFactorBlocks);
}

size_t floats_of(const FactorTables& tables) {
  return tables.plain + std::max(tables.left, tables.right);
}

template <class T>
void encode_as(const FactorInput& input, const FactorView& v, const FactorTables& tables,
               const FactorBasis& basis, const FactorOutput& out, Stream& stream) {
  const FactorSource source{static_cast<const std::byte*>(input.x.data), ParityPointer(input.e),
                            static_cast<const std::byte*>(input.given.data), input.given.dtype};
  CallWords* const call = out.seal.call;
  const bool maybe_left = tables.side != FactorSide::kRight;
  const bool maybe_right = tables.side != FactorSide::kLeft;
  if (maybe_right || v.plain_beside_left) {
    GRADWIRE_LAUNCH((send_plain_kernel<T>),
                    (LaunchShape{blocks_for(v.plain), kFactorThreads, stream}), v, source, out.body,
                    call);
  }
  if (maybe_left) {
    GRADWIRE_LAUNCH((multiply_right_kernel<T>),
                    (LaunchShape{tables.rows.size(), kFactorThreads, stream}), v, source, basis,
                    out.factors.data(), call);
  }
  if (maybe_right) {
    GRADWIRE_LAUNCH((multiply_left_kernel<T>),
                    (LaunchShape{tables.tiles.size(), kFactorThreads, stream}), v, source, basis,
                    out.sums.data(), call);
    GRADWIRE_LAUNCH(add_tiles_kernel, (LaunchShape{blocks_for(v.right), kFactorThreads, stream}), v,
                    out.sums.data(), basis.step, out.factors.data(), call);
  }
  if (!out.e_next.empty()) {
    const bool in_place = out.e_next.first.data() == input.x.data;
    GRADWIRE_LAUNCH((subtract_product_kernel<T>),
                    (LaunchShape{tables.rows.size() + blocks_for(v.plain), kFactorThreads, stream}),
                    v, source, basis, out.factors.data(), ParityPointer(out.e_next), call,
                    in_place);
  }
  GRADWIRE_LAUNCH(finish_factors_kernel,
                  (LaunchShape{std::max<size_t>(blocks_for(floats_of(tables)), 1), kFactorThreads,
                               stream}),
                  v, basis.step, out.factors.data(), out.body, out.seal);
}

}  // namespace

void encode_factors(const FactorInput& input, const FactorTables& tables, const FactorBasis& basis,
                    const FactorOutput& output, Stream& stream) {
  const char* const op = "cuda::encode_factors";
  const FactorView v = view_of(op, tables, stream);
  check_basis(op, basis);
  check_view(op, "x", input.x, stream);
  check(input.x.numel == tables.numel, op, ": x has ", input.x.numel, " elements, must have ",
        tables.numel);
  if (input.given.data != nullptr) {
    check_view(op, "given", input.given, stream);
    check(input.given.numel == tables.numel, op, ": given has ", input.given.numel,
          " elements, must have ", tables.numel);
  }
  check_parity(op, "e", input.e, tables.numel);
  check_parity(op, "e_next", output.e_next, tables.numel);
  check_seal(op, output.seal.call, output.seal);
  check(output.seal.out != nullptr && output.body != nullptr, op,
        ": out or body is null, must be device memory");
  check(output.factors.size() >= std::max(tables.left, tables.right), op, ": factors has ",
        output.factors.size(), " elements, must have at least ",
        std::max(tables.left, tables.right));
  dispatch(input.x.dtype,
           [&]<class T>() { encode_as<T>(input, v, tables, basis, output, stream); });
}

void open_factors(std::span<DevicePart> table, PartSide side, const FactorTables& tables,
                  StepWords* step, std::span<FactorPart> parts, uint32_t* covered, Stream& stream) {
  const char* const op = "cuda::open_factors";
  const FactorView v = view_of(op, tables, stream);
  check(step != nullptr && covered != nullptr, op, ": step or covered is null, must be device memory");
  check(parts.size() == table.size(), op, ": parts has ", parts.size(), " entries, must have ",
        table.size(), " as the table");
  check_pointer(op, "parts", parts.data(), parts.size(), alignof(FactorPart));
  GRADWIRE_LAUNCH(open_factors_kernel, (LaunchShape{1, kFactorPartThreads, stream}), table.data(),
                  static_cast<unsigned>(table.size()), v, step, side == PartSide::kOfFirstPart,
                  parts.data(), covered);
}

void sum_factors(std::span<const FactorPart> parts, float scale, const FactorTables& tables,
                 const StepWords* step, std::span<float> sums, Stream& stream) {
  const char* const op = "cuda::sum_factors";
  const FactorView v = view_of(op, tables, stream);
  check_scale(op, scale);
  check(step != nullptr, op, ": step is null, must be device memory");
  check(sums.size() >= floats_of(tables), op, ": sums has ", sums.size(),
        " elements, must have at least ", floats_of(tables));
  GRADWIRE_LAUNCH(sum_factors_kernel,
                  (LaunchShape{blocks_for(floats_of(tables)), kFactorThreads, stream}),
                  parts.data(), static_cast<unsigned>(parts.size()), scale, v, step, sums.data());
}

void decode_factors(const FactorDecoding& decoding, const FactorTables& tables,
                    const FactorBasis& basis, Stream& stream) {
  const char* const op = "cuda::decode_factors";
  const FactorView v = view_of(op, tables, stream);
  check_basis(op, basis);
  check_view(op, "out", decoding.out, stream);
  check(!decoding.onto || decoding.out.dtype == DType::kFloat32, op, ": out is ",
        to_string(decoding.out.dtype), ", must be float32 to be added to");
  const LaunchShape shape{tables.rows.size() + blocks_for(v.plain), kFactorThreads, stream};
  const FactorRegion region{0, decoding.out.numel};
  dispatch(decoding.out.dtype, [&]<class T>() {
    GRADWIRE_LAUNCH((decode_factors_kernel<T>), shape, v, basis, decoding.sums.data(), region,
                    static_cast<std::byte*>(decoding.out.data), decoding.onto, decoding.overflow);
  });
}

void learn_factors(std::span<const float> sums, const uint32_t* covered, const FactorTables& tables,
                   const FactorBasis& basis, Stream& stream) {
  const char* const op = "cuda::learn_factors";
  const FactorView v = view_of(op, tables, stream);
  check_basis(op, basis);
  check(covered != nullptr, op, ": covered is null, must be device memory");
  GRADWIRE_LAUNCH(learn_factors_kernel,
                  (LaunchShape{tables.matrices.size(), kFactorThreads, stream}), sums.data(),
                  covered, v, basis, nullptr);
}

void take_first_factors(std::span<const float> sums, const uint32_t* covered,
                        const FactorTables& tables, const FactorBasis& basis, StepWords* step,
                        Stream& stream) {
  const char* const op = "cuda::take_first_factors";
  const FactorView v = view_of(op, tables, stream);
  check_basis(op, basis);
  check(covered != nullptr && step != nullptr && basis.first != nullptr, op,
        ": covered, step or first is null, must be device memory");
  check(tables.side == FactorSide::kLeft, op, ": the side is not the left one, must be");
  GRADWIRE_LAUNCH(learn_factors_kernel,
                  (LaunchShape{tables.matrices.size(), kFactorThreads, stream}), sums.data(),
                  covered, v, basis, step);
}

void merge_factors(std::span<const FactorPart> parts, float scale, const FactorRegion& region,
                   const FactorTables& tables, const Seal& seal, const StepWords* step,
                   Stream& stream) {
  const char* const op = "cuda::merge_factors";
  const FactorView v = view_of(op, tables, stream);
  check_scale(op, scale);
  check_seal(op, seal.call, seal);
  check(seal.out != nullptr && step != nullptr, op, ": out or step is null, must be device memory");
  const size_t blocks = std::max<size_t>(blocks_for(floats_of(tables)), 1);
  GRADWIRE_LAUNCH(merge_factors_kernel, (LaunchShape{blocks, kFactorThreads, stream}), parts.data(),
                  static_cast<unsigned>(parts.size()), scale, region, v, step, seal);
}

void slice_factors(const FactorSlice& slice, const FactorTables& tables, Stream& stream) {
  const char* const op = "cuda::slice_factors";
  const FactorView v = view_of(op, tables, stream);
  check(slice.table.size() == 1 && slice.parts.size() == 1, op, ": table has ", slice.table.size(),
        " parts, must have 1");
  check(slice.out != nullptr, op, ": out is null, must be device memory");
  constexpr size_t kMostBlocks = 1024;
  const size_t blocks = std::max<size_t>(floats_of(tables) * sizeof(float) / kSliceBytes, 1);
  GRADWIRE_LAUNCH(slice_factors_kernel,
                  (LaunchShape{std::min(blocks, kMostBlocks), kSliceThreads, stream}),
                  slice.table.data(), slice.parts.data(), slice.region, v, slice.header, slice.out);
}

}  // namespace gradwire::cuda
