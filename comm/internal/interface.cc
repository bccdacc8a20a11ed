#include "gradwire/comm/internal/interface.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <functional>
#include <memory>

namespace gradwire {
namespace {

/// Calls `visit(name, family, numeric address)` for each, until it returns true.
void for_each_interface(
    const std::function<bool(const std::string&, int, const std::string&)>& visit) {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) {
    return;
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> all(first, &freeifaddrs);
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) {
      continue;
    }
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) {
      continue;
    }
    const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    char host[NI_MAXHOST] = "";
    if (getnameinfo(entry->ifa_addr, length, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) == 0 &&
        visit(entry->ifa_name, family, host)) {
      return;
    }
  }
}

}  // namespace

std::string interface_of(const std::string& address) {
  std::string found = "lo";
  for_each_interface([&](const std::string& name, int, const std::string& own) {
    if (own != address) {
      return false;
    }
    found = name;
    return true;
  });
  return found;
}

std::string list_interfaces() {
  std::string list;
  for_each_interface([&](const std::string& name, int family, const std::string&) {
    if (family == AF_INET) {
      list += (list.empty() ? "" : ", ") + name;
    }
    return false;
  });
  return list;
}

std::string ipv4_of(const std::string& wanted) {
  std::string found;
  for_each_interface([&](const std::string& name, int family, const std::string& address) {
    if (family == AF_INET && name == wanted) {
      found = address;
    }
    return !found.empty();
  });
  return found;
}

bool has_interface(const std::string& wanted) {
  bool found = false;
  for_each_interface([&](const std::string& name, int family, const std::string&) {
    found = family == AF_INET && name == wanted;
    return found;
  });
  return found;
}

}  // namespace gradwire
