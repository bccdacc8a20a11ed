#pragma once
// Random numbers that are the same on every machine: only the engine's specified output is used,
// none of the standard library's distributions, whose results differ between implementations.

#include <cstdint>
#include <random>

namespace trainer {

class Random {
 public:
  /// Distinct (seed, stream) pairs give unrelated sequences.
  Random(uint64_t seed, uint64_t stream) {
    std::seed_seq sequence{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32),
                           static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)};
    engine_.seed(sequence);
  }

  /// Uniform in [0, bound), without bias: draws from the incomplete last interval are rejected.
  uint64_t below(uint64_t bound) {
    const uint64_t limit = UINT64_MAX - UINT64_MAX % bound;
    uint64_t draw = engine_();
    while (draw >= limit) {
      draw = engine_();
    }
    return draw % bound;
  }

  /// Uniform in [-1, 1), a multiple of 2^-23: exact in float.
  float symmetric() { return static_cast<float>(engine_() >> 40) * 0x1p-23f - 1.0f; }

 private:
  std::mt19937_64 engine_;
};

}  // namespace trainer
