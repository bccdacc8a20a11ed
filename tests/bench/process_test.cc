#include "bench/trainer/process.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "bench/trainer/group_checks.h"
#include "gradwire/kernels/core/error.h"

namespace {

constexpr const char* kTable =
    "Inter-|   Receive                                                |  Transmit\n"
    " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop "
    "fifo colls carrier compressed\n"
    "    lo:     100       1    0    0    0     0          0         0      101       1    0    0  "
    "  "
    "0     0       0          0\n"
    "  eth0: 5000000000    2    0    0    0     0          0         0 6000000000       3    0    "
    "0  "
    "  0     0       0          0\n";

TEST(InterfaceBytes, AreTheNinthColumnOfTheInterfacesLine) {
  EXPECT_EQ(trainer::parse_bytes_sent(kTable, "eth0"), 6000000000u);
  EXPECT_EQ(trainer::parse_bytes_sent(kTable, "lo"), 101u);
}

TEST(InterfaceBytes, AnUnknownInterfaceListsTheKnownOnes) {
  try {
    trainer::parse_bytes_sent(kTable, "eth1");
    FAIL() << "nothing was thrown";
  } catch (const gradwire::InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "interface: unknown name 'eth1', known: lo, eth0");
  }
}

TEST(DieWithParent, StopsWhenTheParentIsAnotherProcess) {
  // In a child, because the request to the kernel stays with the process.
  EXPECT_EXIT(
      {
        try {
          trainer::die_with_parent(getpid());  // never its own parent
        } catch (const trainer::Interrupted&) {
          _exit(7);
        }
        _exit(0);
      },
      testing::ExitedWithCode(7), "");
}

TEST(Fnv1a, EqualsPublishedValues) {
  // draft-eastlake-fnv, appendix: test vectors of FNV-1a 64.
  const auto hash = [](std::string_view text) {
    return trainer::to_hex(trainer::fnv1a(std::as_bytes(std::span(text))));
  };
  EXPECT_EQ(hash(""), "cbf29ce484222325");
  EXPECT_EQ(hash("a"), "af63dc4c8601ec8c");
  EXPECT_EQ(hash("foobar"), "85944171f73967e8");
}

}  // namespace
