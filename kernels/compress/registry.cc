// The one table of compressors. Adding one: a file with its class and a factory; the factory's name
// and a row here.

#include <algorithm>
#include <array>
#include <string>
#include <type_traits>
#include <vector>

#include "gradwire/kernels/compress/compressor.h"
#include "gradwire/kernels/compress/internal/cuda_format.h"
#include "gradwire/kernels/compress/warmup.h"
#include "gradwire/kernels/core/near_name.h"

namespace gradwire {

// Each in a file of its own: what the rows call. The spec is validated and the shape checked.
using Make = std::remove_pointer_t<decltype(CompressorRow::make)>;
Make make_block_topk, make_chunk_topk, make_dense, make_dgc, make_low_rank, make_quantized,
    make_randomk, make_signs, make_tensor_topk, make_threshold, make_topk;
// The same on a GPU.
using OnGpu = std::remove_pointer_t<decltype(CompressorRow::on_gpu)>;
OnGpu make_cuda_dense, make_cuda_drawn, make_cuda_low_rank, make_cuda_quantized, make_cuda_sparse;

namespace {

constexpr std::array kRows = {
    CompressorRow{.name = "none",
                  .summary = "the gradient as it is",
                  .example = "none",
                  .codec = {.values = ValueCodec::kRaw},
                  .source = "identity",
                  .make = make_dense,
                  .on_gpu = make_cuda_dense},
    CompressorRow{.name = "fp16",
                  .summary = "IEEE half precision, saturating at 65504",
                  .example = "fp16",
                  .codec = {.values = ValueCodec::kFloat16},
                  .source = "IEEE 754-2019 binary16",
                  .make = make_dense,
                  .on_gpu = make_cuda_dense},
    CompressorRow{.name = "bf16",
                  .summary = "the upper half of float32, rounded to nearest even",
                  .example = "bf16",
                  .codec = {.values = ValueCodec::kBFloat16},
                  .source = "Kalamkar et al., arXiv:1905.12322",
                  .make = make_dense,
                  .on_gpu = make_cuda_dense},
    CompressorRow{.name = "int8",
                  .summary = "8-bit integers, one scale per block of 256",
                  .example = "int8",
                  .codec = {.values = ValueCodec::kInt8},
                  .feedback = {.on = true},
                  .takes_rounding = true,
                  .source = "Dettmers, arXiv:1511.04561; Alistarh et al., arXiv:1610.02132",
                  .make = make_quantized,
                  .on_gpu = make_cuda_quantized},
    CompressorRow{.name = "int4",
                  .summary = "4-bit integers, one scale per block of 256",
                  .example = "int4",
                  .codec = {.values = ValueCodec::kInt4},
                  .feedback = {.on = true},
                  .takes_rounding = true,
                  .source = "Alistarh et al., arXiv:1610.02132",
                  .make = make_quantized,
                  .on_gpu = make_cuda_quantized},
    CompressorRow{.name = "2bit",
                  .summary = "-1, 0 or 1 times the largest magnitude of a block of 256",
                  .example = "2bit",
                  .codec = {.values = ValueCodec::kInt2},
                  .feedback = {.on = true},
                  .takes_rounding = true,
                  .source = "Wen et al., arXiv:1705.07878; Alistarh et al., arXiv:1610.02132",
                  .make = make_quantized,
                  .on_gpu = make_cuda_quantized},
    CompressorRow{.name = "1bit",
                  .summary = "signs, times the mean magnitude of a block of 256",
                  .example = "1bit",
                  .codec = {.values = ValueCodec::kSign},
                  .feedback = {.on = true},
                  .source = "Karimireddy et al., arXiv:1901.09847; Seide et al., Interspeech 2014",
                  .make = make_signs,
                  .on_gpu = make_cuda_quantized},
    CompressorRow{
        .name = "e4m3",
        .summary = "8-bit floats of 3 mantissa bits, one scale per block of 256",
        .example = "e4m3",
        .codec = {.values = ValueCodec::kE4M3},
        .feedback = {.on = true},
        .takes_rounding = true,
        .source = "Micikevicius et al., arXiv:2209.05433; Peng et al. (FP8-LM), arXiv:2310.18313",
        .make = make_quantized,
        .on_gpu = make_cuda_quantized},
    CompressorRow{.name = "e5m2",
                  .summary = "8-bit floats of 2 mantissa bits, one scale per block of 256",
                  .example = "e5m2",
                  .codec = {.values = ValueCodec::kE5M2},
                  .feedback = {.on = true},
                  .takes_rounding = true,
                  .source = "Micikevicius et al., arXiv:2209.05433",
                  .make = make_quantized,
                  .on_gpu = make_cuda_quantized},
    CompressorRow{.name = "ternary",
                  .summary = "-1, 0 or 1 times the largest magnitude of a block of 256, unbiased",
                  .example = "ternary",
                  .codec = {.values = ValueCodec::kInt2, .rounding = Rounding::kStochastic},
                  .source = "Wen et al. (TernGrad), arXiv:1705.07878",
                  .make = make_quantized,
                  .on_gpu = make_cuda_quantized},
    CompressorRow{
        .name = "natural",
        .summary = "powers of two, of which 125 lie below the largest of a block of 256, unbiased",
        .example = "natural",
        .codec = {.values = ValueCodec::kPowerOfTwo, .rounding = Rounding::kStochastic},
        .source = "Horvath et al., arXiv:1905.10988",
        .make = make_quantized,
        .on_gpu = make_cuda_quantized},
    CompressorRow{.name = "qsgd",
                  .summary = "-S to S times 1/S of the Euclidean norm of a block of 256, unbiased",
                  .example = "qsgd:7",
                  .codec = {.values = ValueCodec::kInt4, .rounding = Rounding::kStochastic},
                  .takes_levels = true,
                  .source = "Alistarh et al., arXiv:1610.02132",
                  .make = make_quantized,
                  .on_gpu = make_cuda_quantized},
    CompressorRow{.name = "topk",
                  .summary = "the largest elements by magnitude, exactly",
                  .example = "topk:1%",
                  .select = Selection::kLargest,
                  .codec = {.values = ValueCodec::kFloat32},
                  .feedback = {.on = true},
                  .source = "Aji and Heafield, arXiv:1704.05021",
                  .make = make_topk,
                  .on_gpu = make_cuda_sparse},
    CompressorRow{.name = "chunktopk",
                  .summary = "the largest elements of every chunk of 4096",
                  .example = "chunktopk:64/4096",
                  .select = Selection::kLargestOfChunks,
                  .codec = {.values = ValueCodec::kFloat32},
                  .feedback = {.on = true},
                  .source = "Sarfi et al. (SparseLoCo), arXiv:2508.15706",
                  .make = make_chunk_topk,
                  .on_gpu = make_cuda_sparse},
    CompressorRow{.name = "tensortopk",
                  .summary = "the largest elements of every parameter, exactly",
                  .example = "tensortopk:1%",
                  .select = Selection::kLargestOfParameters,
                  .codec = {.values = ValueCodec::kFloat32},
                  .feedback = {.on = true},
                  .source = "Lin et al. (Deep Gradient Compression), arXiv:1712.01887",
                  .make = make_tensor_topk,
                  .on_gpu = make_cuda_sparse},
    CompressorRow{
        .name = "blocktopk",
        .summary = "the blocks of 64 elements with the largest norms, whole: rows of embeddings",
        .example = "blocktopk:1%",
        .select = Selection::kLargestBlocks,
        .codec = {.values = ValueCodec::kFloat32},
        .feedback = {.on = true},
        .source = "Fei et al. (OmniReduce), doi:10.1145/3452296.3472904",
        .make = make_block_topk,
        .on_gpu = make_cuda_sparse},
    CompressorRow{.name = "threshold",
                  .summary = "about the largest elements: a threshold found once serves many steps",
                  .example = "threshold:1%",
                  .select = Selection::kAboveThreshold,
                  .codec = {.values = ValueCodec::kFloat32},
                  .feedback = {.on = true},
                  .source = "Li and Hoefler (Ok-Topk), arXiv:2201.07598",
                  .make = make_threshold,
                  .on_gpu = make_cuda_sparse},
    CompressorRow{.name = "randomk",
                  .summary = "random elements of every chunk of 4096, the same on all ranks: no "
                             "indices; `noef` scales them up instead, unbiased",
                  .example = "randomk:1%",
                  .select = Selection::kDrawn,
                  .codec = {.values = ValueCodec::kFloat32},
                  .feedback = {.on = true},
                  .source = "Wangni et al., arXiv:1710.09854; Stich et al., arXiv:1809.07599",
                  .make = make_randomk,
                  .on_gpu = make_cuda_drawn},
    CompressorRow{.name = "dgc",
                  .summary = "the largest sums of a velocity, which takes the place of the "
                             "optimizer's momentum; clipping and a warm-up as options",
                  .example = "dgc:0.1%",
                  .select = Selection::kLargestVelocities,
                  .codec = {.values = ValueCodec::kFloat32},
                  .feedback = {.on = true, .momentum = 0.9},
                  .source = "Lin et al. (Deep Gradient Compression), arXiv:1712.01887",
                  .make = make_dgc,
                  .on_gpu = make_cuda_sparse},
    CompressorRow{
        .name = "powersgd",
        .summary = "factors of rank R of every matrix, its rows and its columns in turn or, "
                   "with `rounds=2`, both, which add up in flight; other parameters as they are",
        .example = "powersgd:4",
        .select = Selection::kFactors,
        .codec = {.values = ValueCodec::kFloat32},
        .feedback = {.on = true},
        .source = "Vogels et al., arXiv:1905.13727; Zhang et al. (ACP-SGD), arXiv:2306.08881",
        .make = make_low_rank,
        .on_gpu = make_cuda_low_rank},
};

// A spec's text says these alone where they are not what all rows begin with.
static_assert(std::ranges::all_of(kRows, [](const CompressorRow& row) {
  return !row.feedback.ef21 && row.feedback.residual == DType::kFloat32 && row.codec.levels == 0;
}));

void check_shape(const CompressorShape& shape) {
  check(shape.numel <= kMostNumel, "compressor shape: numel is ", shape.numel, ", must be at most ",
        kMostNumel);
  check(shape.rank >= 0, "compressor shape: rank is ", shape.rank, ", must not be negative");
  check(shape.world_size >= 1, "compressor shape: world_size is ", shape.world_size,
        ", must be positive");
  check(static_cast<int>(shape.dtype) <= 2, "compressor shape: dtype is ",
        static_cast<int>(shape.dtype), ", must be 0, 1 or 2");
  if (shape.segments.empty()) {
    return;
  }
  size_t covered = 0;
  for (const Segment& segment : shape.segments) {
    check(segment.numel <= shape.numel - covered, "compressor shape: segments cover more than ",
          shape.numel, " elements");
    covered += segment.numel;
    check(segment.rows <= 1 || (segment.numel % segment.rows == 0 && segment.offset_in_parameter == 0),
          "compressor shape: a segment has ", segment.rows, " rows, ", segment.numel,
          " elements and begins at element ", segment.offset_in_parameter, " of parameter ",
          segment.parameter, ", expected a whole matrix");
  }
  check(covered == shape.numel, "compressor shape: segments cover ", covered,
        " elements, must cover all ", shape.numel);
}

/// "auto" stands in the place of a compressor where plans are chosen, and is none.
void check_for_auto(std::string_view name, std::span<const std::string_view> known) {
  std::vector<std::string_view> with_auto(known.begin(), known.end());
  with_auto.emplace_back("auto");
  std::string names;
  for (const std::string_view each : known) {
    names.append(names.empty() ? "" : ", ").append(each);
  }
  check(near_name(name, with_auto) != "auto", "compressor: unknown name '", name,
        "', expected a compressor: ", names, "; or, where plans are chosen (register(), attach(), ",
        "gradwire bench), 'auto', whose options follow a ':'");
}

}  // namespace

std::span<const CompressorRow> compressor_registry() { return kRows; }

const CompressorRow& find_compressor(std::string_view name) {
  const auto row = std::ranges::find(kRows, name, &CompressorRow::name);
  if (row == kRows.end()) {
    std::array<std::string_view, kRows.size()> known;
    std::ranges::transform(kRows, known.begin(), &CompressorRow::name);
    check_for_auto(name, known);
    throw_unknown("compressor: unknown name", name, known);
  }
  return *row;
}

std::unique_ptr<Compressor> make_compressor(const CompressorSpec& spec, CompressorShape shape) {
  validate(spec);
  check(!changes_by_step(spec), "compressor: '", to_string(spec), "' is '",
        to_string(spec_in_step(spec, 0)), "' in its first step and '",
        to_string(lasting_spec(spec)),
        "' in the end, expected one of them: a Reducer goes from one to the other");
  check_shape(shape);
  if (shape.segments.empty()) {
    shape.segments.push_back({.parameter = 0, .offset_in_parameter = 0, .numel = shape.numel});
  }
  const CompressorRow& row = find_compressor(spec.name);
  if (shape.device.type == DeviceType::kCuda) {
    return std::make_unique<Compressor>(make_cuda_format(row, spec, std::move(shape)));
  }
  check(shape.state == nullptr, "compressor shape: state is of a GPU, but the device is the CPU");
  return std::make_unique<Compressor>(row.make(spec, std::move(shape)));
}

}  // namespace gradwire
