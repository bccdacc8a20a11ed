// The rounds in which ranks agree on what is ready: what they send on, in which order, and their
// bytes.

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "gradwire/comm/reducer.h"
#include "tests/comm/reducer_case.h"
#include "tests/comm/transport_ranks.h"
#include "tests/comm/wrapped_transport.h"

namespace gradwire::test {
namespace {

constexpr int kRanks = 3;
constexpr size_t kManyBuckets = 2048;  // bytes of a bucket: one for nearly every parameter
const ReducerOptions kAgreed{.launch_order = LaunchOrder::kAgreed};

/// Notes which buckets travelled, in their order. Of one stream: groups split from it note nothing.
class NotingTransport : public WrappedTransport {
 public:
  explicit NotingTransport(Transport& inner) : WrappedTransport(inner, [](Parts) {}) {}

  void all_gather(const size_t& length, std::span<const std::byte> mine, Parts all, CallTag tag,
                  Context& context) override {
    WrappedTransport::all_gather(length, mine, all, tag, context);
    context.stream.enqueue([this, what = std::string(tag.what)] {
      const std::lock_guard lock(mutex_);
      if (what.starts_with("bucket ")) {
        noted_.push_back(what);
      }
    });
  }

  std::vector<std::string> noted() const {
    const std::lock_guard lock(mutex_);
    return noted_;
  }
  /// @throws after a while.
  void await(const std::string& what) const {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    for (auto all = noted(); std::ranges::count(all, what) == 0; all = noted()) {
      check(std::chrono::steady_clock::now() < limit, what, " has not travelled");
      std::this_thread::yield();
    }
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> noted_;
};

/// Parameters of one bucket after the other, of those of `plan` in `buckets`.
void hand_over_buckets(Reducer& reducer, const Values& values,
                       const std::vector<BucketId>& buckets) {
  for (const BucketId b : buckets) {
    for (const ParamId p : backward_order()) {
      if (reducer.plan().places[p].bucket == b) {
        write_gradient(reducer, p, values);
        reducer.grad_ready(p);
      }
    }
  }
}

Plan gathered_plan() { return plan_of("int8", kManyBuckets, "gather"); }

std::vector<BucketId> all_but(const std::vector<BucketId>& left_out) {
  std::vector<BucketId> buckets;
  for (BucketId b = 0; b < gathered_plan().buckets.size(); ++b) {
    if (std::ranges::count(left_out, b) == 0) {
      buckets.push_back(b);
    }
  }
  return buckets;
}

std::string name_of(BucketId b) { return concat("bucket ", b); }

TEST(ReducerRounds, LetBucketsLeaveInOneOrderOnAllRanks) {
  std::vector<std::vector<std::string>> orders(kRanks);
  const auto ends = run_ranks(kRanks, [&](Transport& transport) {
    NotingTransport noting(transport);
    Reducer reducer(gathered_plan(), noting, kAgreed);
    for (int step = 0; step < 20; ++step) {
      const auto seed = static_cast<unsigned>(31 * step + transport.rank() + 1);
      hand_over(reducer, gradients(transport.rank(), step), random_order(seed));
      reducer.wait();
    }
    orders[static_cast<size_t>(transport.rank())] = noting.noted();
  });
  EXPECT_EQ(first_message(ends), "");
  EXPECT_EQ(orders[1], orders[0]);
  EXPECT_EQ(orders[2], orders[0]);
  EXPECT_EQ(orders[0].size(), 20 * gathered_plan().buckets.size());
}

// One rank has the head of the plan's order only when it has seen all other means.
TEST(ReducerRounds, SendOnWhatALateGradientWouldHoldBack) {
  const auto ends = run_ranks(kRanks, [&](Transport& transport) {
    NotingTransport noting(transport);
    Reducer reducer(gathered_plan(), noting, kAgreed);
    const Values mine = gradients(transport.rank(), 0);
    hand_over_buckets(reducer, mine, all_but({0}));
    if (transport.rank() == 1) {
      for (const BucketId b : all_but({0})) {
        noting.await(name_of(b));
      }
    }
    hand_over_buckets(reducer, mine, {0});
    reducer.wait();
    check(noting.noted().back() == "bucket 0", noting.noted().back());
  });
  EXPECT_EQ(first_message(ends), "");
}

// Each rank has told of something that another one has not, and has no news until the next mean:
// somebody has to look without any.
TEST(ReducerRounds, SendOnWhereAllRanksWaitForAnother) {
  const auto ends = run_ranks(2, [&](Transport& transport) {
    NotingTransport noting(transport);
    Reducer reducer(gathered_plan(), noting, kAgreed);
    const Values mine = gradients(transport.rank(), 0);
    hand_over_buckets(reducer, mine, {transport.rank() == 0 ? 2u : 3u});
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the first round is over
    if (transport.rank() == 1) {
      hand_over_buckets(reducer, mine, {2});
    }
    noting.await("bucket 2");
    if (transport.rank() == 0) {
      hand_over_buckets(reducer, mine, {3});
    }
    noting.await("bucket 3");
    hand_over_buckets(reducer, mine, all_but({2, 3}));
    reducer.wait();
  });
  EXPECT_EQ(first_message(ends), "");
}

// Rank 0 has nothing left to do when no bucket has left yet, rank 1 when all have.
TEST(ReducerRounds, ComeBeforeTheComparisonOfWhatWasUnused) {
  const auto ends = run_ranks(2, [&](Transport& transport) {
    NotingTransport noting(transport);
    Reducer reducer(gathered_plan(), noting,
                    {.unused = UnusedParameters::kZero, .launch_order = LaunchOrder::kAgreed});
    const Values mine = gradients(transport.rank(), 0);
    if (transport.rank() == 0) {
      hand_over(reducer, mine, {6, 5, 4, 3, 2, 1, 0});
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // rank 0 waits
      hand_over(reducer, mine);
      for (const BucketId b : all_but({})) {
        noting.await(name_of(b));
      }
    }
    check(reducer.wait() == StepOutcome::kCommitted, "not committed");
    check(!reducer.unused_everywhere(7), "rank 1 had it");
  });
  EXPECT_EQ(first_message(ends), "");
}

TEST(ReducerRounds, AreCountedWithTheirBytes) {
  std::vector<ParamInfo> parameters;  // of each a bucket: 20 bits, 3 bytes
  for (int p = 0; p < 20; ++p) {
    parameters.push_back({concat("p", p), {500}});
  }
  PlanOptions how;
  how.exchange = "gather";
  how.bucket_bytes = 2000;
  const Plan plan = make_plan(parameters, how);
  ASSERT_EQ(plan.buckets.size(), 20u);
  for (const std::string& kind : transport_test::point_to_point_kinds()) {
    if (!transport_test::unavailable(kind).empty()) {
      continue;
    }
    std::vector<uint32_t> rounds(kRanks);
    const auto errors = transport_test::run_ranks(kind, kRanks, {}, [&](transport_test::Rank rank) {
      std::atomic<uint32_t> seen{0};
      WrappedTransport wrapped(rank.transport, [&seen](Parts all) { seen += all.stride == 3; });
      Reducer reducer(plan, wrapped, kAgreed);
      seen = 0;
      std::vector<ParamId> order(20);
      std::iota(order.begin(), order.end(), ParamId{0});
      std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<unsigned>(rank.rank)));
      for (const ParamId p : order) {
        std::ranges::fill(reducer.gradient(p).as<float>(), 1.0f);
        reducer.grad_ready(p);
      }
      reducer.wait();
      const StepTrace& step = reducer.trace().last();
      const RoundTrace& agreement = step.agreement;
      check(agreement.rounds > 0 && agreement.rounds == seen, agreement.rounds, " and ", seen);
      check(agreement.bytes_sent == agreement.rounds * 2 * (64 + 3), agreement.bytes_sent, " sent");
      check(agreement.bytes_received == agreement.bytes_sent, agreement.bytes_received,
            " received");
      uint64_t of_buckets = 0;
      for (const BucketTrace& bucket : step.buckets) {
        of_buckets += bucket.bytes_sent;
      }
      check(step.bytes_sent() == of_buckets + agreement.bytes_sent, step.bytes_sent(), " in all");
      check(contains(reducer.trace().to_chrome_json(0),
                     concat("\"rounds\":", agreement.rounds,
                            ",\"round_bytes_sent\":", agreement.bytes_sent)),
            reducer.trace().to_chrome_json(0));
      rounds[static_cast<size_t>(rank.rank)] = agreement.rounds;
    });
    transport_test::expect_all_fine(errors);
    EXPECT_EQ(rounds[1], rounds[0]) << kind;
    EXPECT_EQ(rounds[2], rounds[0]) << kind;
  }
}

TEST(ReducerRounds, AreNotThereUnlessAskedForAndSendNothingAlone) {
  const auto ends = run_ranks(1, [&](Transport& transport) {
    for (const ReducerOptions& options : {ReducerOptions{}, kAgreed}) {
      Reducer reducer(plan_of("none"), transport, options);
      hand_over(reducer, gradients(0, 0));
      reducer.wait();
      check(same_bits(means(reducer), gradients(0, 0)), "another mean");
      const StepTrace& step = reducer.trace().last();
      check((step.agreement.rounds > 0) == (options.launch_order == LaunchOrder::kAgreed),
            "rounds");
      check(step.agreement.bytes_sent == 0 && step.bytes_sent() == 0, "bytes");
    }
  });
  EXPECT_EQ(first_message(ends), "");
}

}  // namespace
}  // namespace gradwire::test
