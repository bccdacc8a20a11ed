#pragma once
// The network interfaces of this machine, and which of its addresses leads where.
//
// A wish names interfaces: "eth0", or some of them with commas between, or "eth*" for all whose
// names begin so; "^docker*,lo" is every one but these. An empty wish is content with any.

#include <string>
#include <string_view>
#include <vector>

namespace gradwire {

enum class Family : char { kNone = '-', kIpv4 = '4', kIpv6 = '6' };
/// Of a numeric address; kNone for anything else.
Family family_of(const std::string& address);
bool is_loopback(const std::string& address);

struct InterfaceAddress {
  std::string interface, address;
};
/// Those of interfaces that are up, in the system's order.
std::vector<InterfaceAddress> interface_addresses();

/// The place of the first part of the wish that is about this interface, -1 where none is; 0 for
/// every interface that a wish with ^ does not exclude.
int place_in_wish(std::string_view wish, std::string_view interface);

struct TransportOptions;
/// Of the options: what they say themselves, else what they say of other libraries.
const std::string& wished_interface(const TransportOptions& options);

/// @throws InvalidArgument "<who>: interface ... has no address here" where no interface is as
/// wished.
void check_interface(std::string_view who, const std::string& wish);

/// The numeric address from which this machine reaches a host, by its routes; nothing is sent.
/// Empty when there is no way, or no such host. Without a host: the way to everywhere else.
std::string routed_address(const std::string& host);

/// The numeric address of this machine, on an interface as wished, for those who have the address
/// `peer`: the one on the way to it; where that is not as wished, the first of its family, else the
/// first. Without a peer: on the way to everywhere else, else the first. Empty when there is none.
std::string own_address(const std::string& wish, const std::string& peer);

}  // namespace gradwire
