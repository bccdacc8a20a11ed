#pragma once
// The TCP store: a server thread on rank 0 and a client on every rank.

#include "gradwire/comm/store.h"

namespace gradwire {

/// `host_port` is "HOST:PORT" (IPv6 in brackets).
std::unique_ptr<Store> make_tcp_store(std::string_view host_port, int rank,
                                      std::chrono::milliseconds timeout);

}  // namespace gradwire
