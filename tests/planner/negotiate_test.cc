// Negotiation: who is ready everywhere, and what it costs to find out.

#include "gradwire/planner/negotiate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "gradwire/kernels/core/error.h"

namespace gradwire::planner {
namespace {

TEST(Negotiation, AgreesOnWhatIsReadyEverywhere) {
  constexpr unsigned kSeed = 20264;
  std::mt19937 random(kSeed);
  for (int round = 0; round < 300; ++round) {
    const size_t ranks = 1 + random() % 40, tensors = random() % 70;
    std::vector<ReadyBits> bits;
    std::vector<bool> everywhere(tensors, true);
    for (size_t r = 0; r < ranks; ++r) {
      ReadyBits& of = bits.emplace_back(tensors);
      for (size_t t = 0; t < tensors; ++t) {
        const bool ready = random() % 20 != 0;
        if (ready) {
          of.set(t);
        }
        everywhere[t] = everywhere[t] && ready;
      }
    }
    const Negotiation by_bits = negotiate_by_bits(bits), by_master = negotiate_by_master(bits, 20);
    size_t ready = 0;
    for (size_t t = 0; t < tensors; ++t) {
      ASSERT_EQ(by_bits.ready.test(t), everywhere[t]) << kSeed << ", round " << round;
      ready += everywhere[t] ? 1 : 0;
    }
    ASSERT_EQ(by_bits.ready.count(), ready);
    ASSERT_EQ(by_bits.ready, by_master.ready) << kSeed << ", round " << round;
  }
}

TEST(Negotiation, TakesABitPerTensorAndLogarithmicallyManySteps) {
  EXPECT_EQ(readiness_bytes(398), 50u);  // BERT-large
  EXPECT_EQ(readiness_bytes(8), 1u);
  EXPECT_EQ(readiness_bytes(9), 2u);
  EXPECT_EQ(readiness_bytes(0), 0u);
  for (const size_t ranks : {1, 2, 3, 4, 7, 8, 64, 100, 256}) {
    std::vector<ReadyBits> bits(ranks, ReadyBits(398));
    for (ReadyBits& of : bits) {
      for (size_t t = 0; t < 398; ++t) {
        of.set(t);
      }
    }
    const NegotiationTraffic traffic = negotiate_by_bits(bits).traffic;
    const double levels = std::floor(std::log2(static_cast<double>(ranks)));
    const bool folds = std::exp2(levels) != static_cast<double>(ranks);
    EXPECT_EQ(static_cast<double>(traffic.steps), levels + (folds ? 2 : 0)) << ranks;
    // Sent and received in each step.
    EXPECT_EQ(static_cast<double>(traffic.busiest_bytes), 50 * (2 * levels + (folds ? 2 : 0)))
        << ranks;

    const NegotiationTraffic master = negotiate_by_master(bits, 16).traffic;
    EXPECT_EQ(master.steps, 2 * 398 * (ranks - 1)) << ranks;
    EXPECT_EQ(master.busiest_bytes, 16 * 2 * 398 * (ranks - 1)) << ranks;
    if (ranks >= 8) {
      EXPECT_LT(100 * traffic.busiest_bytes, master.busiest_bytes) << ranks;
    }
  }
}

TEST(Negotiation, RefusesVectorsThatDoNotBelongTogether) {
  EXPECT_THROW(negotiate_by_bits({}), InvalidArgument);
  EXPECT_THROW(negotiate_by_bits(std::vector<ReadyBits>{ReadyBits(3), ReadyBits(4)}),
               InvalidArgument);
  EXPECT_THROW(negotiate_by_master(std::vector<ReadyBits>{ReadyBits(3), ReadyBits(4)}, 1),
               InvalidArgument);
  EXPECT_THROW(negotiate_by_master(std::vector<ReadyBits>{ReadyBits(3)}, 0), InvalidArgument);
  ReadyBits bits(3);
  EXPECT_THROW(bits.set(3), InvalidArgument);
  EXPECT_THROW((void)bits.test(3), InvalidArgument);
  EXPECT_THROW(bits.keep_common(ReadyBits(9)), InvalidArgument);
}

}  // namespace
}  // namespace gradwire::planner
