// Quantities as people write them, against numbers worked out by hand.

#include "gradwire/planner/units.h"

#include <gtest/gtest.h>

#include "gradwire/kernels/core/error.h"

namespace gradwire::planner {
namespace {

TEST(Units, BitsAndBytesDifferByEight) {
  EXPECT_EQ(parse_rate_bytes_per_s("10gbit"), 1.25e9);
  EXPECT_EQ(parse_rate_bytes_per_s("10Gbit/s"), 1.25e9);
  EXPECT_EQ(parse_rate_bytes_per_s("10Gb/s"), 1.25e9);
  EXPECT_EQ(parse_rate_bytes_per_s("10GB/s"), 1e10);
  EXPECT_EQ(parse_rate_bytes_per_s("1.2GB/s"), 1.2e9);
  EXPECT_EQ(parse_rate_bytes_per_s(" 800 Mb/s "), 1e8);
  EXPECT_EQ(parse_rate_bytes_per_s("1GiB/s"), 1073741824.0);
  EXPECT_EQ(parse_rate_bytes_per_s("8bit"), 1.0);
}

TEST(Units, TimesAndAmounts) {
  EXPECT_DOUBLE_EQ(parse_seconds("60us"), 60e-6);
  EXPECT_DOUBLE_EQ(parse_seconds("1.5ms"), 1.5e-3);
  EXPECT_EQ(parse_seconds("2s"), 2.0);
  EXPECT_EQ(parse_seconds("3min"), 180.0);
  EXPECT_EQ(parse_seconds("2h"), 7200.0);
  EXPECT_EQ(parse_seconds("0s"), 0.0);
  EXPECT_EQ(parse_bytes("25MB"), 25e6);
  EXPECT_EQ(parse_bytes("64KiB"), 65536.0);
}

TEST(Units, WhatIsNoRateIsRefused) {
  for (const char* text : {"", "fast", "10", "10GB", "10Gb", "0gbit", "-1gbit", "nanGB/s",
                           "infGB/s", "10 g bit", "10gbit/h", "1e20GB/s", "gbit", "10gb/s"}) {
    EXPECT_THROW(parse_rate_bytes_per_s(text), InvalidArgument) << text;
  }
  for (const char* text : {"", "60", "60 u", "-1s", "s", "1.5m", "1s1"}) {
    EXPECT_THROW(parse_seconds(text), InvalidArgument) << text;
  }
  EXPECT_THROW(parse_bytes("5"), InvalidArgument);
  EXPECT_THROW(parse_bytes("5Mb"), InvalidArgument);
  try {
    parse_rate_bytes_per_s("0gbit");
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "rate '0gbit' is 0 bytes/s, must be more than 0 and at most 1e15: a link without "
                 "bandwidth carries nothing");
  }
}

TEST(Units, TextHasTheUnitThatFits) {
  EXPECT_EQ(seconds_text(60e-6), "60 us");
  EXPECT_EQ(seconds_text(0.99996e-3), "1 ms");
  EXPECT_EQ(seconds_text(2.25), "2.25 s");
  EXPECT_EQ(seconds_text(0), "0 s");
  EXPECT_EQ(seconds_text(59.94), "59.9 s");
  EXPECT_EQ(seconds_text(60), "1 min");
  EXPECT_EQ(seconds_text(1080), "18 min");
  EXPECT_EQ(seconds_text(5400), "1.5 h");
  EXPECT_EQ(seconds_text(4.32e6), "1200 h");
  EXPECT_EQ(bytes_text(2.5e15), "2500 TB");
  EXPECT_EQ(bytes_text(25e6), "25 MB");
  EXPECT_EQ(bytes_text(12), "12 B");
}

}  // namespace
}  // namespace gradwire::planner
