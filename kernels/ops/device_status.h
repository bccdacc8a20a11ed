#pragma once
// The status word of a step on a GPU: kernels set bits in device memory, nobody waits for them.

#include <cstdint>

namespace gradwire::cuda {

/// The gradient plus residual held NaN or infinity: what kFlagNonFinite says in a payload.
inline constexpr uint32_t kStatusNonFinite = 1;
/// A payload did not keep to the wire format; its bad part was left out.
inline constexpr uint32_t kStatusMalformed = 2;

}  // namespace gradwire::cuda
