#pragma once
// What is fuzzed: everything that reads payload bytes. A payload that is truncated, corrupt or made
// for something else is refused, or decodes to something: it never touches memory that is not its
// own and never fails in another way.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace gradwire::fuzz {

/// In front of the payload: place in specs(), place in numels(), dtype, action. The top bit of the
/// last one mends the payload's header.
inline constexpr size_t kControlBytes = 4;
/// Decompress one part, two parts; slice the first chunk, the last; merge two slices.
inline constexpr uint8_t kActions = 5;

const std::vector<std::string>& specs();
const std::vector<size_t>& numels();

/// Aborts where the decoder broke its promise. @returns whether it took the payload.
bool decode(std::span<const std::byte> input);

}  // namespace gradwire::fuzz
