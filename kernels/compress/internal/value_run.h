#pragma once
// Runs of values, as payloads that send some elements of a chunk store them: floats of 32 or 16
// bits, or codes of 8 or 4 bits that share one bf16 scale, which the payload keeps elsewhere.

#include <cstddef>
#include <span>

#include "gradwire/kernels/compress/spec.h"
#include "gradwire/kernels/core/dtype.h"
#include "gradwire/kernels/ops/small_float.h"

namespace gradwire {

class ValueRun {
 public:
  /// One of the codecs a selector may have.
  explicit ValueRun(ValueCodec codec);

  ValueCodec codec() const { return codec_; }
  int bits() const { return bits_; }
  bool has_scale() const { return bits_ <= 8; }
  size_t bytes(size_t count) const { return (count * static_cast<size_t>(bits_) + 7) / 8; }

  /// Writes bytes(values.size()) at `out`; `decoded` becomes what they decode to. At most 4096
  /// values, all finite where they share a scale. @returns that scale, or 0.
  bfloat16 write(std::span<const float> values, std::span<float> decoded, std::byte* out) const;
  /// values = what write() wrote.
  void read(const std::byte* sent, bfloat16 scale, std::span<float> values) const;

 private:
  bfloat16 write_codes(std::span<const float> values, std::span<float> decoded,
                       std::byte* out) const;

  const ValueCodec codec_;
  const int bits_;
  const CodeFormat format_;  // where bits_ is 8 or less
};

}  // namespace gradwire
