// int8, int4, 2bit, e4m3, e5m2, ternary, natural and qsgd: blocks of elements share one float32 scale
// (kernels/ops/quantize.h has the equations). A chunk's record is its scales, then its codes. ternary
// is 2bit that always rounds by chance: the same kernels, the same bytes behind the header.

#include "gradwire/kernels/compress/internal/fixed.h"
#include "gradwire/kernels/ops/elementwise.h"
#include "gradwire/kernels/ops/quantize.h"
#include "gradwire/kernels/ops/quantize_element.h"

namespace gradwire {
namespace {

constexpr size_t kMaxScales = kChunk / 8;  // the smallest block has 8 elements

class BlockQuantized final : public FixedFormat {
 public:
  BlockQuantized(const CompressorSpec& spec, CompressorShape shape)
      : FixedFormat(spec, std::move(shape), {PayloadFormat::kBlockQuantized, spec.codec.values}),
        bits_(value_bits(spec.codec.values, DType::kFloat32)),
        format_(code_format(spec.codec.values)),
        block_(spec.codec.block),
        numbers_(this->shape()) {}

 protected:
  size_t record_bytes(size_t numel) const override {
    return scale_count(numel) * sizeof(float) + cpu::packed_bytes(numel, bits_);
  }
  bool encode_chunk(const Chunk& chunk, std::byte* record) const override;
  bool sum_records(std::span<const std::byte* const> records, float scale, bool streaming,
                   std::span<float> out) const override;
  float most_in_record(const std::byte* record, size_t numel) const override {
    return largest_scale(record, scale_count(numel)) * largest_value(format_, bits_);
  }
  bool encode(std::span<const float> x, Region region, Draw draw, std::byte* record,
              std::span<float> decoded) const override;
  void decode(const std::byte* record, std::span<float> sum) const override;
  bool checks_records() const override { return true; }
  void check_record(const std::byte* record, size_t chunk, PartName name) const override;

 private:
  /// With nothing drawn yet.
  cpu::Quantizer quantizer() const {
    return {.bits = bits_,
            .block = block_,
            .random = {},
            .format = format_,
            .levels = static_cast<int>(spec().codec.levels)};
  }
  size_t scale_count(size_t numel) const { return (numel + block_ - 1) / block_; }

  const int bits_;
  const CodeFormat format_;
  const size_t block_;
  const RoundingNumbers numbers_;
};

bool BlockQuantized::encode_chunk(const Chunk& chunk, std::byte* record) const {
  const Region region = chunk.region;
  alignas(64) uint16_t random[kChunk];
  cpu::Quantizer how = quantizer();
  RoundingNumbers::Run run{};
  if (spec().codec.rounding == Rounding::kStochastic) {
    run = numbers_.run(region, chunk.draw);
    if (run.count < region.numel()) {  // several parameters share the chunk
      numbers_.fill(region, chunk.draw, {random, region.numel()});
      how.random = {random, region.numel()};
    }
  }
  const bool whole_run = run.count == region.numel() && how.random.empty();
  return cpu::quantize_sum({chunk.g, chunk.e}, how, whole_run ? &run.numbers : nullptr,
                           {.scales = record,
                            .codes = record + scale_count(region.numel()) * sizeof(float),
                            .e_next = chunk.e_next,
                            .streaming = chunk.streaming});
}

bool BlockQuantized::encode(std::span<const float> x, Region region, Draw draw, std::byte* record,
                            std::span<float> decoded) const {
  float scales[kMaxScales];
  alignas(64) int8_t codes[kChunk];
  alignas(64) uint16_t random[kChunk];
  cpu::Quantizer how = quantizer();
  if (spec().codec.rounding == Rounding::kStochastic) {
    numbers_.fill(region, draw, {random, x.size()});
    how.random = {random, x.size()};
  }
  const size_t scale_bytes = scale_count(x.size()) * sizeof(float);
  const std::span<int8_t> coded(codes, x.size());
  const bool finite = cpu::quantize(x, how, {{scales, scale_count(x.size())}, coded, decoded});
  std::memcpy(record, scales, scale_bytes);
  cpu::pack_codes(coded, bits_, record + scale_bytes);
  return finite;
}

void BlockQuantized::decode(const std::byte* record, std::span<float> sum) const {
  float scales[kMaxScales];
  const size_t count = scale_count(sum.size());
  std::memcpy(scales, record, count * sizeof(float));
  const std::byte* packed = record + count * sizeof(float);
  if (bits_ == 8) {
    const std::span codes(reinterpret_cast<const int8_t*>(packed), sum.size());
    cpu::add_dequantized(codes, {scales, count}, block_, sum, format_);
    return;
  }
  alignas(64) int8_t codes[kChunk];
  cpu::unpack_codes(packed, bits_, {codes, sum.size()});
  cpu::add_dequantized({codes, sum.size()}, {scales, count}, block_, sum, format_);
}

bool BlockQuantized::sum_records(std::span<const std::byte* const> records, float scale,
                                 bool streaming, std::span<float> out) const {
  cpu::EncodedBlocks parts[kMostParts];
  for (size_t i = 0; i < records.size(); ++i) {
    parts[i] = {records[i], records[i] + scale_count(out.size()) * sizeof(float)};
  }
  cpu::dequantize_sum(
      {parts, records.size()},
      {.bits = bits_, .block = block_, .factor = scale, .streaming = streaming, .format = format_},
      out);
  return records_stay_finite(records, scale, out.size()) || cpu::all_finite(out);
}

void BlockQuantized::check_record(const std::byte* record, size_t chunk, PartName name) const {
  check_scales(record, scale_count(region_of(chunk).numel()), chunk, name);
}

}  // namespace

std::unique_ptr<ChunkedFormat> make_quantized(const CompressorSpec& spec, CompressorShape shape) {
  return std::make_unique<BlockQuantized>(spec, std::move(shape));
}

}  // namespace gradwire
