// Which interface a wish means, and which address a rank gives to the others.

#include <gtest/gtest.h>

#include <utility>

#include "gradwire/comm/internal/address.h"
#include "gradwire/comm/internal/interface.h"
#include "gradwire/comm/transport.h"

namespace gradwire {
namespace {

TEST(Interfaces, AWishNamesThemOrBeginningsOrExceptions) {
  struct Case {
    const char* wish;
    const char* interface;
    int place;
  };
  const Case cases[] = {
      {"eth0", "eth0", 0},       {"eth0", "eth01", -1},     {"eth0", "eth", -1},
      {"eth*", "eth01", 0},      {"eth*", "ib0", -1},       {"ib*,eth1", "eth1", 1},
      {"ib*,eth1", "ib3", 0},    {"ib*,eth1", "eth10", -1}, {"^docker*,lo", "docker0", -1},
      {"^docker*,lo", "lo", -1}, {"^docker*,lo", "lo1", 0}, {"^docker*,lo", "eth0", 0},
      {"^eth0", "eth0", -1},     {"^eth0", "eth1", 0},      {"*", "eth0", 0}};
  for (const Case& one : cases) {
    EXPECT_EQ(place_in_wish(one.wish, one.interface), one.place)
        << one.wish << " " << one.interface;
  }
}

TEST(Addresses, LoopbackOnesAndFamiliesAreKnown) {
  for (const char* address : {"127.0.0.1", "127.0.1.1", "127.255.0.9", "::1"}) {
    EXPECT_TRUE(is_loopback(address)) << address;
  }
  for (const char* address : {"128.0.0.1", "10.127.0.1", "fd00::1", "::", "", "localhost"}) {
    EXPECT_FALSE(is_loopback(address)) << address;
  }
  EXPECT_EQ(family_of("10.0.0.1"), Family::kIpv4);
  EXPECT_EQ(family_of("fe80::1%eth0"), Family::kIpv6);
  EXPECT_EQ(family_of("node0"), Family::kNone);
  EXPECT_EQ(routed_address("127.0.1.1"), "127.0.0.1") << "from where the kernel goes there";
  EXPECT_EQ(routed_address("no-such-host.invalid"), "");
}

// Offers are "machine, whether the way to the others is known, address".
TEST(Addresses, RanksOfOneMachineThatHaveNamedNoneMeetAtALoopbackAddress) {
  const std::vector<std::string> ipv4 = {"a 0 127.0.0.1", "a 0 ::1"}, ipv6 = {"a 0 ::1", "a 0 ::1"},
                                 folder = {"a 0", "a 0"};
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(chosen_address(ipv4, rank, ""), "127.0.0.1");
    EXPECT_EQ(chosen_address(ipv6, rank, ""), "::1");
    EXPECT_EQ(chosen_address(folder, rank, ""), "127.0.0.1");
  }
}

TEST(Addresses, WhatLeadsToTheOthersIsKeptWhereAllAreOfOneFamily) {
  const std::vector<std::string> offers = {"a 1 10.0.0.1", "b 1 10.0.0.2", "c 0 10.0.0.3"};
  EXPECT_EQ(chosen_address(offers, 1, ""), "10.0.0.2");
  EXPECT_EQ(chosen_address(offers, 2, "eth0"), "10.0.0.3") << "of an interface that was named";
  EXPECT_EQ(chosen_address({"a 0 fd00::1", "b 1 fd00::2"}, 1, ""), "fd00::2");
}

TEST(Addresses, ARankWithoutAWayToTheOthersSaysSo) {
  // Of a family that this machine has, but at the end of no way: multicast has no way back.
  try {
    chosen_address({"a 0 127.0.0.1", "b 1 255.255.255.255"}, 0, "");
    ADD_FAILURE() << "nothing was thrown";
  } catch (const TransportError& error) {
    EXPECT_EQ(
        std::string(error.what()),
        "rank 0 has no address that leads to rank 1 at 255.255.255.255, expected an interface "
        "named by GRADWIRE_INTERFACE");
    EXPECT_EQ(error.peer(), 1);
  }
}

TEST(Addresses, AnOfferHasTheAddressOfTheInterfaceThatWasNamed) {
  const std::string bare = address_offer("", ""), named = address_offer("lo", "");
  EXPECT_EQ(named, bare + " 127.0.0.1");
  EXPECT_EQ(address_offer("lo", "127.0.0.1"), named);
  EXPECT_THROW(address_offer("wifi77", ""), InvalidArgument);
}

}  // namespace
}  // namespace gradwire
