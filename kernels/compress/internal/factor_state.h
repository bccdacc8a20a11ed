#pragma once
// The factors that low-rank compression carries from step to step, as the words of
// Compressor::state(): by parameter, so that they find their matrices in other groups.

#include <cstdint>
#include <span>
#include <vector>

#include "gradwire/kernels/compress/internal/factor_layout.h"

namespace gradwire {

/// The factors of one side of all matrices of a layout.
std::vector<uint64_t> pack_factors(const FactorLayout& layout, uint32_t rank, FactorSide side,
                                   std::span<const float> factors);

/// Whether these words are factors of that rank and side; other compressors' states are not.
bool holds_factors(std::span<const uint64_t> state, uint32_t rank, FactorSide side);

/// Of a state that holds factors: for each of the layout's matrices where it has theirs, two floats
/// a word, or null where it has none. @throws InvalidArgument for words that end too early or late, for
/// a parameter that is there twice and for factors that are not finite.
std::vector<const uint64_t*> find_factors(std::span<const uint64_t> state,
                                          const FactorLayout& layout, uint32_t rank);

}  // namespace gradwire
