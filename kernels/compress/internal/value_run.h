#pragma once
// Runs of values, as payloads that send some elements of a chunk store them: floats of 32 or 16
// bits, or codes of 8 to 1 bits that share one bf16 scale, which the payload keeps elsewhere.

#include <cstddef>
#include <span>

#include "gradwire/kernels/compress/spec.h"
#include "gradwire/kernels/core/dtype.h"
#include "gradwire/kernels/ops/small_float.h"

namespace gradwire {

class ValueRun {
 public:
  /// The values of a selector's spec.
  explicit ValueRun(const CompressorSpec& spec);

  ValueCodec codec() const { return codec_; }
  int bits() const { return bits_; }
  bool has_scale() const { return bits_ <= 8; }
  /// Whether write() needs a random number per value.
  bool draws() const { return draws_; }
  size_t bytes(size_t count) const { return (count * static_cast<size_t>(bits_) + 7) / 8; }
  /// The most that `count` values in at most `runs` runs take.
  size_t most_bytes(size_t count, size_t runs) const;

  /// Writes bytes(values.size()) at `out`; `decoded` becomes what they decode to. At most 4096
  /// values, all finite where they share a scale; `random`: one number each, or none unless draws().
  /// @returns the scale, or 0.
  bfloat16 write(std::span<const float> values, std::span<const uint16_t> random,
                 std::span<float> decoded, std::byte* out) const;
  /// No value of a run that write() wrote is larger in magnitude: exact where values have no scale.
  float most(const std::byte* sent, bfloat16 scale, size_t count) const;
  /// values = what write() wrote.
  void read(const std::byte* sent, bfloat16 scale, std::span<float> values) const;

 private:
  bfloat16 write_codes(std::span<const float> values, std::span<const uint16_t> random,
                       std::span<float> decoded, std::byte* out) const;
  /// What codes[i] says.
  void decode(std::span<const int8_t> codes, float scale, std::span<float> values) const;

  const ValueCodec codec_;
  const int bits_;
  const bool draws_;
  const int levels_;
  const CodeFormat format_;  // where bits_ is 8 or less
};

}  // namespace gradwire
