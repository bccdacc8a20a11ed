#include "gradwire/comm/internal/interface.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <tuple>

#include "gradwire/comm/internal/socket.h"
#include "gradwire/comm/transport.h"
#include "gradwire/kernels/core/error.h"

namespace gradwire {
namespace {

// Addresses of documents (RFC 5737, RFC 3849): whoever has a way to everywhere else has one to
// them.
constexpr const char* kElsewhere[] = {"192.0.2.1", "2001:db8::1"};

std::string known_interfaces() {
  std::vector<std::string> names;
  for (const InterfaceAddress& known : interface_addresses()) {
    if (std::find(names.begin(), names.end(), known.interface) == names.end()) {
      names.push_back(known.interface);
    }
  }
  std::string list;
  for (const std::string& name : names) {
    list += (list.empty() ? "" : ", ") + name;
  }
  return list;
}

bool is_link_local(const std::string& address) {
  in6_addr ipv6{};
  return inet_pton(AF_INET6, address.substr(0, address.find('%')).c_str(), &ipv6) == 1 &&
         IN6_IS_ADDR_LINKLOCAL(&ipv6);
}

/// From which this machine would send to it; empty when it would not.
std::string source_towards(const addrinfo& peer) {
  const Socket probe(::socket(peer.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  // Of a datagram socket: the kernel looks up the way and sends nothing.
  return probe && ::connect(probe.fd(), peer.ai_addr, peer.ai_addrlen) == 0
             ? local_address_of(probe)
             : std::string();
}

}  // namespace

Family family_of(const std::string& address) {
  in_addr ipv4{};
  in6_addr ipv6{};
  return inet_pton(AF_INET, address.c_str(), &ipv4) == 1 ? Family::kIpv4
         : inet_pton(AF_INET6, address.substr(0, address.find('%')).c_str(), &ipv6) == 1
             ? Family::kIpv6
             : Family::kNone;
}

bool is_loopback(const std::string& address) {
  in_addr ipv4{};
  in6_addr ipv6{};
  if (inet_pton(AF_INET, address.c_str(), &ipv4) == 1) {
    return ntohl(ipv4.s_addr) >> 24 == 127;
  }
  return inet_pton(AF_INET6, address.c_str(), &ipv6) == 1 && IN6_IS_ADDR_LOOPBACK(&ipv6);
}

std::vector<InterfaceAddress> interface_addresses() {
  std::vector<InterfaceAddress> found;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) {
    return found;
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> all(first, &freeifaddrs);
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) {
      continue;
    }
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) {
      continue;
    }
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    char host[NI_MAXHOST] = "";
    if (getnameinfo(entry->ifa_addr, length, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) == 0) {
      found.push_back({entry->ifa_name, host});
    }
  }
  return found;
}

int place_in_wish(std::string_view wish, std::string_view interface) {
  const bool excludes = wish.starts_with('^');
  wish.remove_prefix(excludes ? 1 : 0);
  int found = -1;
  for (int place = 0; found < 0 && !wish.empty(); ++place) {
    const size_t end = std::min(wish.find(','), wish.size());
    const std::string_view part = wish.substr(0, end);
    if (part.ends_with('*') ? interface.starts_with(part.substr(0, part.size() - 1))
                            : interface == part) {
      found = place;
    }
    wish.remove_prefix(std::min(end + 1, wish.size()));
  }
  return !excludes ? found : found < 0 ? 0 : -1;
}

const std::string& wished_interface(const TransportOptions& options) {
  return options.network_interface.empty() ? options.socket_interface : options.network_interface;
}

void check_interface(std::string_view who, const std::string& wish) {
  const auto all = interface_addresses();
  check(wish.empty() || std::any_of(all.begin(), all.end(),
                                    [&](const InterfaceAddress& one) {
                                      return place_in_wish(wish, one.interface) >= 0;
                                    }),
        who, ": interface '", wish, "' has no address here, known: ", known_interfaces());
}

std::string routed_address(const std::string& host) {
  if (host.empty()) {
    for (const char* elsewhere : kElsewhere) {
      if (const std::string source = routed_address(elsewhere); !source.empty()) {
        return source;
      }
    }
    return {};
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  // The port is any: nothing is sent. A host that is not known is one to which no way leads.
  if (getaddrinfo(host.c_str(), "9", &hints, &found) != 0) {
    return {};
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    if (const std::string source = source_towards(*address); !source.empty()) {
      return source;
    }
  }
  return {};
}

std::string own_address(const std::string& wish, const std::string& peer) {
  const std::string routed = routed_address(peer);
  if (wish.empty() && (!routed.empty() || !peer.empty())) {
    return routed;
  }
  const Family family = family_of(peer.empty() ? routed : peer);
  // The smallest is the best.
  using Order = std::tuple<bool, bool, bool, bool, int, bool>;
  Order best;
  std::string found;
  for (const auto& [interface, address] : interface_addresses()) {
    const int place = wish.empty() ? 0 : place_in_wish(wish, interface);
    const bool named = !wish.empty() && !wish.starts_with('^');
    if (place < 0 || (wish.empty() && is_loopback(address))) {
      continue;
    }
    const Order order{!named && is_loopback(address),
                      address != routed,
                      family != Family::kNone && family_of(address) != family,
                      is_link_local(address),
                      place,
                      family_of(address) != Family::kIpv4};
    if (found.empty() || order < best) {
      best = order;
      found = address;
    }
  }
  return found;
}

}  // namespace gradwire
