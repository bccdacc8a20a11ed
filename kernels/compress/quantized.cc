// int8 and int4: blocks of elements share one float32 scale (kernels/ops/quantize.h has the
// equations). A chunk's record is its scales, then its codes.

#include <algorithm>

#include "gradwire/kernels/compress/internal/factories.h"
#include "gradwire/kernels/compress/internal/fixed.h"
#include "gradwire/kernels/ops/elementwise.h"
#include "gradwire/kernels/ops/quantize.h"
#include "gradwire/kernels/ops/random.h"

namespace gradwire {
namespace {

constexpr size_t kMaxScales = kChunk / 8;  // the smallest block has 8 elements

class BlockQuantized final : public FixedCompressor {
 public:
  BlockQuantized(const CompressorSpec& spec, CompressorShape shape)
      : FixedCompressor(spec, std::move(shape), {PayloadFormat::kBlockQuantized, spec.values}),
        bits_(value_bits(spec.values, DType::kFloat32)),
        block_(spec.block) {
    for (const Segment& segment : this->shape().segments) {
      segment_ends_.push_back(segment.numel + (segment_ends_.empty() ? 0 : segment_ends_.back()));
    }
  }

  Combine combine() const override { return Combine::kGather; }

 protected:
  size_t record_bytes(size_t numel) const override {
    return scale_count(numel) * sizeof(float) + (bits_ == 8 ? numel : cpu::nibble_bytes(numel));
  }
  bool encode(std::span<const float> x, Region region, Draw draw, std::byte* record,
              std::span<float> decoded) const override;
  void decode(const std::byte* record, std::span<float> sum) const override;
  bool checks_records() const override { return true; }
  void check_record(const std::byte* record, size_t chunk, PartName name) const override;

 private:
  size_t scale_count(size_t numel) const { return (numel + block_ - 1) / block_; }
  void draw_random(Region region, Draw draw, std::span<uint16_t> out) const;

  const int bits_;
  const size_t block_;
  std::vector<size_t> segment_ends_;  // of each segment, in the group
};

void BlockQuantized::draw_random(Region region, Draw draw, std::span<uint16_t> out) const {
  const auto first = std::ranges::upper_bound(segment_ends_, region.begin);
  size_t index = static_cast<size_t>(first - segment_ends_.begin());
  for (size_t at = region.begin; at < region.end; ++index) {
    const Segment& segment = shape().segments[index];
    const size_t end = std::min(segment_ends_[index], region.end);
    const size_t in_segment = at - (segment_ends_[index] - segment.numel);
    cpu::random_halves({.seed = shape().seed,
                        .step = draw.step,
                        .parameter = segment.parameter,
                        .rank_stage = static_cast<uint32_t>(shape().rank) * 4 + draw.stage},
                       segment.offset_in_parameter + in_segment,
                       out.subspan(at - region.begin, end - at));
    at = end;
  }
}

bool BlockQuantized::encode(std::span<const float> x, Region region, Draw draw, std::byte* record,
                            std::span<float> decoded) const {
  float scales[kMaxScales];
  alignas(64) int8_t codes[kChunk];
  alignas(64) uint16_t random[kChunk];
  cpu::Quantizer how{.bits = bits_, .block = block_, .random = {}};
  if (spec().rounding == Rounding::kStochastic) {
    draw_random(region, draw, {random, x.size()});
    how.random = {random, x.size()};
  }
  const size_t scale_bytes = scale_count(x.size()) * sizeof(float);
  const std::span<int8_t> coded(codes, x.size());
  const bool finite = cpu::quantize(x, how, {{scales, scale_count(x.size())}, coded, decoded});
  std::memcpy(record, scales, scale_bytes);
  if (bits_ == 8) {
    std::memcpy(record + scale_bytes, codes, x.size());
  } else {
    cpu::pack_nibbles(coded, record + scale_bytes);
  }
  return finite;
}

void BlockQuantized::decode(const std::byte* record, std::span<float> sum) const {
  float scales[kMaxScales];
  const size_t count = scale_count(sum.size());
  std::memcpy(scales, record, count * sizeof(float));
  const std::byte* packed = record + count * sizeof(float);
  if (bits_ == 8) {
    const std::span codes(reinterpret_cast<const int8_t*>(packed), sum.size());
    cpu::add_dequantized(codes, {scales, count}, block_, sum);
    return;
  }
  alignas(64) int8_t codes[kChunk];
  cpu::unpack_nibbles(packed, {codes, sum.size()});
  cpu::add_dequantized({codes, sum.size()}, {scales, count}, block_, sum);
}

void BlockQuantized::check_record(const std::byte* record, size_t chunk, PartName name) const {
  float scales[kMaxScales];
  const size_t count = scale_count(region_of(chunk).numel());
  std::memcpy(scales, record, count * sizeof(float));
  for (size_t i = 0; i < count; ++i) {
    check(std::bit_cast<uint32_t>(scales[i]) <= cpu::kFiniteBits, name, ": scale ", i, " of chunk ",
          chunk, " is ", scales[i], ", must be finite and not negative");
  }
}

}  // namespace

std::unique_ptr<Compressor> make_quantized(const CompressorSpec& spec, CompressorShape shape) {
  return std::make_unique<BlockQuantized>(spec, std::move(shape));
}

}  // namespace gradwire
