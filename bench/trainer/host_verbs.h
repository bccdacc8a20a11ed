#pragma once
// A transport's verbs over bytes in the host's memory, whichever memory it carries: for the few
// that ranks tell each other beside the exchange. All are collective and block.

#include <cstddef>
#include <span>
#include <vector>

#include "gradwire/comm/transport.h"

namespace trainer {

/// Every rank's bytes, one after another `stride` apart; ranks that have less leave zeros behind.
std::vector<std::byte> gather_bytes(std::span<const std::byte> mine, size_t stride,
                                    gradwire::CallTag tag, gradwire::Transport& transport,
                                    gradwire::Context& context);

/// Sums over ranks, the same bits on all.
void sum_floats(std::span<float> values, gradwire::CallTag tag, gradwire::Transport& transport,
                gradwire::Context& context);

/// Until all ranks are here, and all that was enqueued on the context's stream is done.
void meet(std::string_view what, gradwire::Transport& transport, gradwire::Context& context);

}  // namespace trainer
