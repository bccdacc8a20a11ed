#pragma once
// Network interfaces by address.

#include <string>

namespace gradwire {

/// Name of the interface that has this numeric address ("10.0.0.1" -> "eth0"); "lo" for an empty or
/// unknown one, and for all of 127.0.0.0/8.
std::string interface_of(const std::string& address);

/// "lo, eth0": interfaces with an IPv4 address.
std::string list_interfaces();

/// The first IPv4 address of an interface ("lo" -> "127.0.0.1"); empty when it has none.
std::string ipv4_of(const std::string& name);

/// Whether `name` is one of them.
bool has_interface(const std::string& name);

}  // namespace gradwire
