#pragma once
// The TCP store: a server thread on one rank and a client on every rank.

#include "gradwire/comm/internal/socket.h"
#include "gradwire/comm/store.h"

namespace gradwire {

/// `host_port` is "HOST:PORT" (IPv6 in brackets). Rank `server` listens there, or on `listener` when
/// that is given, which then is what `host_port` leads to.
std::unique_ptr<Store> make_tcp_store(std::string_view host_port, int rank,
                                      std::chrono::milliseconds timeout, const StoreAccess& access,
                                      Socket listener = {}, int server = 0);

}  // namespace gradwire
