#pragma once
// The random numbers of stochastic rounding (kernels/core/philox.h defines which).

#include <cstdint>
#include <span>

namespace gradwire::cpu {

/// Which stream of random numbers.
struct RoundingStream {
  uint64_t seed = 0;
  uint32_t step = 0;
  uint32_t parameter = 0;
  uint32_t rank_stage = 0;  ///< rank * 4 + stage
};

/// out[i] = the 16 random bits of element `first` + i of the stream's parameter.
void random_halves(const RoundingStream& stream, uint64_t first, std::span<uint16_t> out);

}  // namespace gradwire::cpu
