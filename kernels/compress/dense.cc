// none, fp16 and bf16: every element as a 16-bit or 32-bit float.
//   D = round(g + e) to the type sent, nearest even, saturating;   e_next = (g + e) - D

#include <bit>

#include "gradwire/kernels/compress/internal/fixed.h"
#include "gradwire/kernels/ops/cast.h"
#include "gradwire/kernels/ops/elementwise.h"

namespace gradwire {
namespace {

DType dtype_sent(ValueCodec codec, DType gradient) {
  return codec == ValueCodec::kRaw ? gradient : static_cast<DType>(codec);
}
static_assert(static_cast<int>(ValueCodec::kFloat16) == static_cast<int>(DType::kFloat16) &&
              static_cast<int>(ValueCodec::kBFloat16) == static_cast<int>(DType::kBFloat16));

class Dense final : public FixedFormat {
 public:
  Dense(const CompressorSpec& spec, CompressorShape shape, DType sent)
      : FixedFormat(spec, std::move(shape), {PayloadFormat::kDense, static_cast<ValueCodec>(sent)}),
        sent_(sent) {}

 protected:
  Combine combine() const override { return Combine::kSum; }
  size_t record_bytes(size_t numel) const override { return numel * size_of(sent_); }

  bool encode_chunk(const Chunk& chunk, std::byte* record) const override {
    const bool in_place = chunk.e_next.data() == chunk.g.data;
    if (!chunk.e_next.empty() && !in_place && sent_ != DType::kFloat32) {
      return cpu::narrow_sum(chunk.g, chunk.e,
                             {{record, chunk.g.numel, sent_, {}}, chunk.e_next},
                             caching(chunk.streaming));
    }
    if (chunk.g.dtype != DType::kFloat32 || !chunk.e_next.empty()) {
      return FixedFormat::encode_chunk(chunk, record);
    }
    return cpu::narrow_finite(chunk.g.as<float>(), {record, chunk.g.numel, sent_, {}},
                              caching(chunk.streaming));
  }

  bool encode(std::span<const float> x, Region, Draw, std::byte* record,
              std::span<float> decoded) const override {
    const bool finite =
        cpu::narrow_finite(x, {record, x.size(), sent_, {}}, cpu::Caching::kNormal);
    if (!decoded.empty()) {
      cpu::widen({record, x.size(), sent_}, decoded);
    }
    return finite;
  }

  void decode(const std::byte* record, std::span<float> sum) const override {
    alignas(64) float values[kChunk];
    const std::span<float> decoded(values, sum.size());
    cpu::widen({record, sum.size(), sent_}, decoded);
    cpu::add(sum, decoded, sum);
  }

  bool sum_records(std::span<const std::byte* const> records, float scale, bool streaming,
                   std::span<float> out) const override {
    ConstTensorView parts[kMostParts];
    for (size_t i = 0; i < records.size(); ++i) {
      parts[i] = {records[i], out.size(), sent_};
    }
    return cpu::sum_widened({parts, records.size()}, scale, out, caching(streaming));
  }

  float most_in_record(const std::byte* record, size_t numel) const override {
    alignas(64) float values[kChunk];
    const std::span<float> decoded(values, numel);
    cpu::widen({record, numel, sent_}, decoded);
    return std::bit_cast<float>(cpu::max_magnitude_bits(decoded));
  }

 private:
  static cpu::Caching caching(bool streaming) {
    return streaming ? cpu::Caching::kStreaming : cpu::Caching::kNormal;
  }

  const DType sent_;
};

}  // namespace

std::unique_ptr<ChunkedFormat> make_dense(const CompressorSpec& spec, CompressorShape shape) {
  const DType sent = dtype_sent(spec.codec.values, shape.dtype);
  return std::make_unique<Dense>(spec, std::move(shape), sent);
}

}  // namespace gradwire
