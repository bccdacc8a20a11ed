#pragma once
// Which of its addresses a machine gives to the others. On the machine of rank 0 the store is
// reached by a loopback address, or by a name that is one only there (127.0.1.1 in Debian's
// /etc/hosts): what leads to the others is known once they have said where they are.

#include <string>
#include <vector>

namespace gradwire {

/// What a rank tells the others about itself: a line without spaces at its ends. `interface` is a
/// wish (interface.h), `routed` the numeric address of this machine on the way to where the ranks
/// meet, empty where that is not known.
/// @throws InvalidArgument when no interface is as wished.
std::string address_offer(const std::string& interface, const std::string& routed);

/// The numeric address at which this rank listens and which it gives to the others. `offers` are
/// those of all ranks: where all are on one machine and none has named another address, a loopback
/// one.
/// @throws TransportError naming the rank to which no way leads.
std::string chosen_address(const std::vector<std::string>& offers, int rank,
                           const std::string& interface);

}  // namespace gradwire
