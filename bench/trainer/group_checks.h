#pragma once
// What ranks find out together: the accuracy on the test set, whether they were started with the
// same options and data, and whether they hold the same parameters. Collective: all ranks call them
// at the same point and get the same answer.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "bench/trainer/data.h"
#include "bench/trainer/network.h"
#include "bench/trainer/options.h"
#include "gradwire/comm/transport.h"

namespace trainer {

struct Evaluation {
  double accuracy = 0;  ///< in [0, 1]
  double loss = 0;      ///< mean cross-entropy
};

/// Each rank evaluates its shard of `images`; counts and losses are summed over ranks. Blocks.
Evaluation evaluate(Network& model, Examples& images, gradwire::Transport& transport,
                    gradwire::Context& context);

/// FNV-1a, 64 bits (RFC 9923 gives the constants), going on from `hash`.
uint64_t fnv1a(std::span<const std::byte> bytes, uint64_t hash = 0xcbf29ce484222325);

/// What all ranks must agree on, a line each: options as on the command line, then the data.
std::string common_settings(const Options& options, const DataFolder& data);

/// Compares common_settings() across ranks. Blocks.
/// @throws gradwire::InvalidArgument, on every rank, with the first line in which the lowest rank
/// that differs from rank 0 does so, and rank 0's.
void check_same_settings(std::string_view settings, gradwire::Transport& transport,
                         gradwire::Context& context);

/// Compares a hash across ranks. Blocks.
/// @throws gradwire::Error naming the ranks whose hash differs from rank 0's.
void check_equal_on_all_ranks(uint64_t hash, gradwire::Transport& transport,
                              gradwire::Context& context);

/// A hash as 16 hexadecimal digits.
std::string to_hex(uint64_t hash);

}  // namespace trainer
