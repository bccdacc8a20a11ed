#pragma once
// What ranks find out together: the accuracy on the test set, and whether they hold the same
// parameters. Collective: all ranks call them at the same point and get the same answer.

#include <cstdint>
#include <span>

#include "bench/trainer/data.h"
#include "bench/trainer/mlp.h"
#include "gradwire/comm/transport.h"

namespace trainer {

struct Evaluation {
  double accuracy = 0;  ///< in [0, 1]
  double loss = 0;      ///< mean cross-entropy
};

/// Each rank evaluates its shard of `images`; counts and losses are summed over ranks. Blocks.
Evaluation evaluate(Mlp& model, const LabelledImages& images, const Standardiser& standardise,
                    gradwire::Transport& transport, gradwire::Context& context);

/// FNV-1a, 64 bits (RFC 9923 gives the constants).
uint64_t fnv1a(std::span<const std::byte> bytes);

/// Compares a hash across ranks. Blocks.
/// @throws gradwire::Error naming the ranks whose hash differs from rank 0's.
void check_equal_on_all_ranks(uint64_t hash, gradwire::Transport& transport,
                              gradwire::Context& context);

/// A hash as 16 hexadecimal digits.
std::string to_hex(uint64_t hash);

}  // namespace trainer
