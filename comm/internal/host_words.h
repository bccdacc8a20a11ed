#pragma once
// Small messages of the host that travel beside a GPU's, in rounds of what goes at once.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/comm/transport.h"

namespace gradwire {

/// How they travel: one call gives what each rank passed, at most `most_bytes` of each.
struct HostRounds {
  std::function<std::vector<std::string>(std::string_view mine)> round;
  size_t most_bytes = 0;
};

/// Collective and blocking: what each rank passed, of at most `capacity` bytes. The first round
/// says what they must have in common. @throws TransportError, on every rank, naming the lowest
/// whose fingerprint or capacity is not rank 0's.
std::vector<std::string> gather_host_words(std::string_view mine, size_t capacity,
                                           const CallTag& tag, const HostRounds& rounds);

/// Collective and blocking: texts for check_same_text(). Digests first: the texts themselves, of at
/// most 16 KB, only where these differ, and of them two. The rest count as equal to rank 0's, and
/// so do all where none differs.
std::vector<std::string> gather_different_texts(std::string_view text, int rank,
                                                const HostRounds& rounds);

}  // namespace gradwire
