#include "gradwire/comm/internal/address.h"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <fstream>
#include <sstream>

#include "gradwire/comm/internal/interface.h"
#include "gradwire/comm/internal/digest.h"
#include "gradwire/comm/point_to_point.h"

namespace gradwire {
namespace {

/// The same for all processes of one machine that share its network, where 127.0.0.1 leads from
/// each to the others.
std::string machine() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char network[64] = "";
  const ssize_t length = ::readlink("/proc/self/ns/net", network, sizeof(network) - 1);
  std::string identity = concat(boot, " ", network);
  if (boot.empty() || length <= 0) {
    char name[HOST_NAME_MAX + 1] = "";
    // Its failure leaves the name empty: then this machine is told from others by addresses alone.
    [[maybe_unused]] const int outcome = ::gethostname(name, sizeof(name) - 1);
    identity += concat(" ", name);
  }
  return to_hex(sha256(identity), 8);
}

/// As it travels: "machine told address"; told is 1 where the way to the others is known.
struct Offer {
  std::string machine;
  bool told = false;
  std::string address;

  bool reaches_others() const { return !address.empty() && !is_loopback(address); }
};

std::vector<Offer> read(const std::vector<std::string>& offers) {
  std::vector<Offer> found;
  for (const std::string& text : offers) {
    std::istringstream words(text);
    Offer& offer = found.emplace_back();
    words >> offer.machine >> offer.told >> offer.address;
  }
  return found;
}

/// The rank whose address the others look for a way to: -1 when none says where it is.
int whom_to_reach(const std::vector<Offer>& offers) {
  const auto find = [&](bool told, Family family) {
    for (size_t r = 0; r < offers.size(); ++r) {
      if (offers[r].told >= told && offers[r].reaches_others() &&
          family_of(offers[r].address) == family) {
        return static_cast<int>(r);
      }
    }
    return -1;
  };
  for (const bool told : {true, false}) {
    for (const Family family : {Family::kIpv4, Family::kIpv6}) {
      if (const int rank = find(told, family); rank >= 0) {
        return rank;
      }
    }
  }
  return -1;
}

}  // namespace

std::string address_offer(const std::string& interface, const std::string& routed) {
  std::string address = routed;
  if (!interface.empty()) {
    check_interface("address", interface);
    address = own_address(interface, routed);
  }
  const bool told = !routed.empty() && !is_loopback(routed);
  return concat(machine(), " ", told ? 1 : 0, address.empty() ? "" : " ", address);
}

std::string chosen_address(const std::vector<std::string>& offers, int rank,
                           const std::string& interface) {
  const std::vector<Offer> all = read(offers);
  const Offer& own = all[static_cast<size_t>(rank)];
  const int other = whom_to_reach(all);
  if (other < 0 && std::all_of(
                       all.begin(), all.end(),
                       [&](const Offer& offer) { return offer.machine == own.machine; })) {
    const bool ipv6 = std::all_of(all.begin(), all.end(), [](const Offer& offer) {
      return family_of(offer.address) == Family::kIpv6;
    });
    return ipv6 ? "::1" : "127.0.0.1";
  }
  const std::string peer = other < 0 ? "" : all[static_cast<size_t>(other)].address;
  if (own.reaches_others() && family_of(own.address) == family_of(peer)) {
    return own.address;
  }
  const std::string address = own_address(interface, peer);
  const bool named = !interface.empty() && !interface.starts_with('^');
  if (address.empty() || (is_loopback(address) && !named) ||
      (!peer.empty() && family_of(address) != family_of(peer))) {
    throw TransportError(concat("rank ", rank, " has no address",
                                interface.empty() ? "" : concat(" on interface '", interface, "'"),
                                " that leads to ",
                                other < 0 ? "other machines" : concat("rank ", other, " at ", peer),
                                ", expected an interface named by GRADWIRE_INTERFACE"),
                         other);
  }
  return address;
}

}  // namespace gradwire
