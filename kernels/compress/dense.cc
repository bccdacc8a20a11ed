// none, fp16 and bf16: every element as a 16-bit or 32-bit float.
//   D = round(g + e) to the type sent, nearest even, saturating;   e_next = (g + e) - D

#include "gradwire/kernels/compress/internal/factories.h"
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

class Dense final : public FixedCompressor {
 public:
  Dense(const CompressorSpec& spec, CompressorShape shape, DType sent)
      : FixedCompressor(spec, std::move(shape),
                        {PayloadFormat::kDense, static_cast<ValueCodec>(sent)}),
        sent_(sent) {}

  Combine combine() const override { return Combine::kSum; }

 protected:
  size_t record_bytes(size_t numel) const override { return numel * size_of(sent_); }

  bool encode(std::span<const float> x, Region, Draw, std::byte* record,
              std::span<float> decoded) const override {
    cpu::narrow(x, {record, x.size(), sent_});
    if (!decoded.empty()) {
      cpu::widen({record, x.size(), sent_}, decoded);
    }
    return cpu::all_finite(x);
  }

  void decode(const std::byte* record, std::span<float> sum) const override {
    alignas(64) float values[kChunk];
    const std::span<float> decoded(values, sum.size());
    cpu::widen({record, sum.size(), sent_}, decoded);
    cpu::add(sum, decoded, sum);
  }

 private:
  const DType sent_;
};

}  // namespace

std::unique_ptr<Compressor> make_dense(const CompressorSpec& spec, CompressorShape shape) {
  const DType sent = dtype_sent(spec.values, shape.dtype);
  return std::make_unique<Dense>(spec, std::move(shape), sent);
}

}  // namespace gradwire
