#include <algorithm>
#include <cassert>

#include "gradwire/kernels/core/clones.h"
#include "gradwire/kernels/ops/internal/small_float_blocks.h"

namespace gradwire::cpu {
namespace {

GRADWIRE_CLONES void encode_nearest(const float* x, size_t count, float inverse, SmallFloat format,
                                    int8_t* codes) {
  for (size_t i = 0; i < count; ++i) {
    codes[i] = static_cast<int8_t>(nearest_small_code(x[i] * inverse, format));
  }
}

struct StochasticFloat {
  const uint16_t* random;
  SmallFloat format;
};

GRADWIRE_CLONES void encode_stochastic(const float* x, size_t count, float inverse, StochasticFloat how,
                                       int8_t* codes) {
  for (size_t i = 0; i < count; ++i) {
    codes[i] = static_cast<int8_t>(
        stochastic_small_code(x[i] * inverse, uniform_of(how.random[i]), how.format));
  }
}

GRADWIRE_CLONES void decode(const int8_t* codes, size_t count, float scale, SmallFloat format,
                            float* out) {
  for (size_t i = 0; i < count; ++i) {
    out[i] = small_value(codes[i], format) * scale;
  }
}

GRADWIRE_CLONES void accumulate(const int8_t* codes, size_t count, float scale, SmallFloat format,
                                float* sum) {
  for (size_t i = 0; i < count; ++i) {
    sum[i] += small_value(codes[i], format) * scale;
  }
}

GRADWIRE_CLONES void divide(const float* x, size_t count, float scale, SmallFloat format,
                            int8_t* codes) {
  for (size_t i = 0; i < count; ++i) {
    codes[i] = static_cast<int8_t>(nearest_small_code(x[i] / scale, format));
  }
}

}  // namespace

void encode_small_floats(const float* x, size_t count, BlockScale s, SmallFloat format,
                         const uint16_t* random, int8_t* codes) {
  if (random == nullptr) {
    encode_nearest(x, count, s.inverse, format, codes);
  } else {
    encode_stochastic(x, count, s.inverse, {random, format}, codes);
  }
}

void decode_small_floats(const int8_t* codes, size_t count, float scale, SmallFloat format,
                         float* out) {
  decode(codes, count, scale, format, out);
}

void add_small_floats(const int8_t* codes, size_t count, float scale, SmallFloat format,
                      float* sum) {
  accumulate(codes, count, scale, format, sum);
}

void round_with_scale(std::span<const float> x, float scale, CodeFormat format,
                      std::span<int8_t> codes) {
  assert(codes.size() == x.size());
  if (scale == 0) {
    std::ranges::fill(codes, int8_t{0});
    return;
  }
  divide(x.data(), x.size(), scale, small_float(format), codes.data());
}

}  // namespace gradwire::cpu
