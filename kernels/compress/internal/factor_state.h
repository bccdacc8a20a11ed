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

/// Of a state that holds factors: copies those of the layout's matrices to where `factors` has them.
/// @returns how many matrices were found. @throws InvalidArgument for words that end too early.
size_t unpack_factors(std::span<const uint64_t> state, const FactorLayout& layout, uint32_t rank,
                      std::span<float> factors);

}  // namespace gradwire
