// Several exchanges in flight: over every transport, really at once, with the bits of one.

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "gradwire/comm/reducer.h"
#include "tests/comm/reducer_case.h"
#include "tests/comm/transport_ranks.h"
#include "tests/comm/wrapped_transport.h"

namespace gradwire::test {
namespace {

constexpr int kRanks = 3;
constexpr size_t kManyBuckets = 2048;  // bytes of a bucket: one for nearly every parameter

std::vector<Outcome> run_steps(const std::string& kind, const std::string& spec, int streams) {
  std::vector<Outcome> outcomes(kRanks);
  const auto errors = transport_test::run_ranks(kind, kRanks, {}, [&](transport_test::Rank rank) {
    Reducer reducer(plan_of(spec, kManyBuckets), rank.transport, {.streams = streams});
    for (int step = 0; step < 4; ++step) {
      hand_over(reducer, gradients(rank.rank, step));
      reducer.wait();
    }
    outcomes[static_cast<size_t>(rank.rank)] = {means(reducer), residuals(reducer)};
  });
  transport_test::expect_all_fine(errors);
  return outcomes;
}

TEST(ReducerStreams, GiveTheBitsOfOneStreamOverEveryTransport) {
  for (const char* spec : {"bf16,ef", "topk:5%,int4"}) {
    const auto expected = run_steps("in_process", spec, 1);
    for (const std::string& kind : transport_test::kinds()) {
      if (!transport_test::unavailable(kind).empty()) {
        continue;  // said by the transports' own suite
      }
      for (const int streams : {1, 2, 4}) {
        SCOPED_TRACE(concat(spec, " over ", kind, ", streams: ", streams));
        const auto outcomes = run_steps(kind, spec, streams);
        for (size_t r = 0; r < kRanks; ++r) {
          EXPECT_TRUE(outcomes[r] == expected[r]) << "rank " << r;
          EXPECT_TRUE(same_bits(outcomes[r].means, expected[0].means)) << "rank " << r;
        }
      }
    }
  }
}

// Every exchange of the first buckets is held, on one rank, until all streams have one: only
// exchanges that are in flight together, the later ones compressed meanwhile, get past that.
TEST(ReducerStreams, HaveTheirExchangesInFlightTogether) {
  for (const int streams : {2, 4}) {
    TransportOptions options;
    options.timeout = std::chrono::seconds(60);
    const auto ends = run_ranks(
        kRanks,
        [&](Transport& transport) {
          std::atomic<int> arrived{0};
          std::atomic<bool> hold{false}, alone{false};
          WrappedTransport wrapped(transport, [&](Parts) {
            ++arrived;
            const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
            while (hold && arrived < streams && std::chrono::steady_clock::now() < limit) {
              std::this_thread::yield();
            }
            alone = alone || (hold && arrived < streams);
          });
          Reducer reducer(plan_of("int8", kManyBuckets), wrapped, {.streams = streams});
          arrived = 0;
          hold = transport.rank() == 1;
          hand_over(reducer, gradients(transport.rank(), 0));
          reducer.wait();
          check(!alone, "an exchange was alone");
        },
        options);
    EXPECT_EQ(first_message(ends), "") << streams;
  }
}

TEST(ReducerStreams, ShareTheThreadsOfOnePool) {
  const auto threads_here = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
  };
  const auto ends = run_ranks(1, [&](Transport& transport) {
    const auto before = threads_here();
    Reducer reducer(plan_of("int8"), transport, {.threads = 3, .streams = 4});
    // Of the pool two beside the caller of a loop; one compresses, four exchange.
    check(threads_here() - before == 2 + 1 + 4, threads_here() - before, " threads");
  });
  EXPECT_EQ(first_message(ends), "");
}

TEST(ReducerStreams, AreOneToSixteen) {
  const auto ends = run_ranks(1, [&](Transport& transport) {
    for (const int streams : {0, 17}) {
      const std::string refusal = message_of<InvalidArgument>(
          [&] { Reducer reducer(plan_of("none"), transport, {.streams = streams}); });
      check(refusal == concat("reducer: streams is ", streams, ", must be in [1, 16]"), refusal);
    }
  });
  EXPECT_EQ(first_message(ends), "");
}

}  // namespace
}  // namespace gradwire::test
