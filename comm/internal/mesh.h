#pragma once
// A connection between every two ranks, for engines that only read and write. Both ends of each
// have shown that they know the job's secret and a secret of this group, so that whoever else finds
// a port of ours while the group forms is sent away, and the group forms all the same.

#include <string>
#include <vector>

#include "gradwire/comm/internal/socket.h"
#include "gradwire/comm/store.h"
#include "gradwire/comm/transport.h"

namespace gradwire {

/// Collective and blocking, until the store's deadline: sockets by rank, none for the own one. Each
/// rank listens on a free port of `address`, of this machine, calls the ranks below it and waits
/// for those above. Rank, world size, job secret and log are those of `options`; keys begin with
/// `name`.
/// @throws TransportError naming the ranks that did not come, and what the store throws.
std::vector<Socket> connect_mesh(Store& store, std::string_view name, const std::string& address,
                                 const TransportOptions& options);

}  // namespace gradwire
