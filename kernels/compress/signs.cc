// 1bit: the sign of every element, and the mean magnitude of its block (kernels/ops/signs.h has the
// equations). A chunk's record is its scales, then its bits.

#include "gradwire/kernels/compress/internal/fixed.h"
#include "gradwire/kernels/ops/elementwise.h"
#include "gradwire/kernels/ops/signs.h"

namespace gradwire {
namespace {

class Signs final : public FixedFormat {
 public:
  Signs(const CompressorSpec& spec, CompressorShape shape)
      : FixedFormat(spec, std::move(shape), {PayloadFormat::kBlockQuantized, spec.codec.values}),
        block_(spec.codec.block) {}

 protected:
  size_t record_bytes(size_t numel) const override {
    return scale_bytes(numel) + cpu::packed_bytes(numel, 1);
  }

  bool encode_chunk(const Chunk& chunk, std::byte* record) const override {
    return cpu::encode_signs({chunk.g, chunk.e}, block_,
                             {.scales = record,
                              .codes = record + scale_bytes(chunk.g.numel),
                              .e_next = chunk.e_next,
                              .streaming = chunk.streaming});
  }

  bool encode(std::span<const float> x, Region, Draw, std::byte* record,
              std::span<float> decoded) const override {
    const bool finite = cpu::encode_signs(
        {view_of(x), {}}, block_,
        {.scales = record, .codes = record + scale_bytes(x.size()), .e_next = {}});
    if (!decoded.empty()) {
      const std::byte* const records[] = {record};
      sum_records(records, 1.0f, false, decoded);
    }
    return finite;
  }

  void decode(const std::byte* record, std::span<float> sum) const override {
    alignas(64) float values[kChunk];
    const std::span<float> decoded(values, sum.size());
    const std::byte* const records[] = {record};
    sum_records(records, 1.0f, false, decoded);
    cpu::add(sum, decoded, sum);
  }

  bool sum_records(std::span<const std::byte* const> records, float scale, bool streaming,
                   std::span<float> out) const override {
    cpu::EncodedBlocks parts[kMostParts];
    for (size_t i = 0; i < records.size(); ++i) {
      parts[i] = {records[i], records[i] + scale_bytes(out.size())};
    }
    cpu::sum_signs({parts, records.size()},
                   {.bits = 1, .block = block_, .factor = scale, .streaming = streaming}, out);
    return records_stay_finite(records, scale, out.size()) || cpu::all_finite(out);
  }
  float most_in_record(const std::byte* record, size_t numel) const override {
    return largest_scale(record, scale_bytes(numel) / sizeof(float));
  }

  bool checks_records() const override { return true; }
  void check_record(const std::byte* record, size_t chunk, PartName name) const override {
    check_scales(record, scale_bytes(region_of(chunk).numel()) / sizeof(float), chunk, name);
  }

 private:
  size_t scale_bytes(size_t numel) const { return (numel + block_ - 1) / block_ * sizeof(float); }

  const size_t block_;
};

}  // namespace

std::unique_ptr<ChunkedFormat> make_signs(const CompressorSpec& spec, CompressorShape shape) {
  return std::make_unique<Signs>(spec, std::move(shape));
}

}  // namespace gradwire
