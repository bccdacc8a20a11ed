// Groups made anew by the ranks that are left.

#include <atomic>
#include <chrono>
#include <random>

#include "tests/comm/transport_ranks.h"

namespace gradwire::transport_test {
namespace {

using std::chrono::milliseconds;

std::vector<float> values_of(int old_rank, size_t count) {
  std::mt19937 generator(static_cast<unsigned>(old_rank) + 17);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) {
    value = normal(generator);
  }
  return values;
}

/// The sum over `ranks` in this order, the plain way.
std::vector<float> sum_over(const std::vector<int>& ranks, size_t count) {
  std::vector<float> sum = values_of(ranks[0], count);
  for (size_t i = 1; i < ranks.size(); ++i) {
    const std::vector<float> more = values_of(ranks[i], count);
    for (size_t j = 0; j < count; ++j) {
      sum[j] += more[j];
    }
  }
  return sum;
}

/// Every verb over a group whose rank r was rank members[r] of the first one.
void use(Transport& transport, const std::vector<int>& members, Context& context) {
  const size_t count = 50001, size = members.size();
  const int own = transport.rank();
  ASSERT_EQ(transport.world_size(), static_cast<int>(size));
  const std::vector<float> mine = values_of(members[static_cast<size_t>(own)], count);
  const std::vector<float> sum = sum_over(members, count);

  std::vector<float> reduced = mine;
  transport.all_reduce_sum(reduced, {1, "reduced"}, context);
  const size_t begin = shard_begin(count, static_cast<int>(size), own);
  std::vector<float> shard(shard_begin(count, static_cast<int>(size), own + 1) - begin);
  transport.reduce_scatter(mine, shard, {2, "shard"}, context);
  std::vector<float> gathered(size * count), sent(size * count), swapped(size * count);
  for (size_t r = 0; r < size; ++r) {
    std::fill_n(sent.begin() + static_cast<std::ptrdiff_t>(r * count), count,
                static_cast<float>(100 * own) + static_cast<float>(r));
  }
  const size_t bytes = count * sizeof(float);
  std::vector<size_t> lengths(size), received(size), sent_lengths(size, bytes);
  transport.all_gather(bytes, std::as_bytes(std::span(mine)),
                       {std::as_writable_bytes(std::span(gathered)), bytes, lengths},
                       {3, "gathered"}, context);
  transport.all_to_all({std::as_writable_bytes(std::span(sent)), bytes, sent_lengths},
                       {std::as_writable_bytes(std::span(swapped)), bytes, received},
                       {4, "swapped"}, context);
  std::vector<float> cast = mine;
  const int root = static_cast<int>(size) - 1;
  transport.broadcast(std::as_writable_bytes(std::span(cast)), root, {5, "cast"}, context);
  const auto half = transport.split(own % 2);
  half->barrier({6, "half"}, context);
  // A rank may leave after this, which must not be while the other half is in its barrier.
  transport.barrier({7, "all"}, context);
  context.stream.wait();

  EXPECT_EQ(reduced, sum);
  EXPECT_TRUE(std::equal(shard.begin(), shard.end(),
                         sum.begin() + static_cast<std::ptrdiff_t>(begin)));
  EXPECT_EQ(cast, values_of(members.back(), count));
  for (size_t r = 0; r < size; ++r) {
    const std::vector<float> theirs = values_of(members[r], count);
    EXPECT_TRUE(std::equal(theirs.begin(), theirs.end(),
                           gathered.begin() + static_cast<std::ptrdiff_t>(r * count)));
    EXPECT_EQ(swapped[r * count + 3], static_cast<float>(100 * r) + static_cast<float>(own));
  }
}

class Rebuild : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (const std::string why = unavailable(GetParam()); !why.empty()) {
      GTEST_SKIP() << why;
    }
  }

  using Body = std::function<void(int, std::unique_ptr<Transport>&, Context&)>;

  /// Each rank's body owns its transport, so that it can leave.
  void run(int size, const Body& body, milliseconds timeout = milliseconds(20000)) const {
    TransportOptions options;
    options.timeout = timeout;
    auto group = make_group(GetParam(), size, options);
    expect_all_fine(run_threads(size, [&](int r) {
      const auto stream = make_inline_stream();
      Workspace workspace;
      Context context{*stream, workspace};
      body(r, group[static_cast<size_t>(r)], context);
    }));
  }

  /// Fails at the latest now, since someone is not there any more.
  static void expect_broken(Transport& transport, Context& context) {
    EXPECT_THROW(
        {
          transport.barrier({9, "a step"}, context);
          context.stream.wait();
        },
        TransportError);
  }

  static std::string error_of(const std::function<void()>& body) {
    try {
      body();
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  }
  /// Until `count` has been reached; where somebody has failed before that, it never is.
  static void await(const std::atomic<int>& reached, int count) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (reached < count) {
      check(std::chrono::steady_clock::now() < end, "another rank has failed");
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
  static void expect_contains(const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
};

std::vector<int> numbers(std::span<const int> ranks) { return {ranks.begin(), ranks.end()}; }

TEST_P(Rebuild, TheRanksThatAreLeftWorkOnWhoeverLeft) {
  for (const int gone : {0, 2, 3}) {
    SCOPED_TRACE(gone);
    std::vector<int> members{0, 1, 2, 3};
    members.erase(members.begin() + gone);
    run(4, [&](int rank, std::unique_ptr<Transport>& transport, Context& context) {
      use(*transport, {0, 1, 2, 3}, context);
      EXPECT_TRUE(transport->old_ranks().empty());
      if (rank == gone) {
        transport.reset();
        return;
      }
      expect_broken(*transport, context);
      transport = transport->rebuild();  // the old one may go
      EXPECT_EQ(numbers(transport->old_ranks()), members);
      use(*transport, members, context);
    });
  }
}

TEST_P(Rebuild, AGroupThatWasRebuiltCanBeRebuilt) {
  run(5, [&](int rank, std::unique_ptr<Transport>& transport, Context& context) {
    std::vector<int> members{0, 1, 2, 3, 4};
    for (const int gone : {0, 3, 1, 4}) {
      if (rank == gone) {
        transport.reset();
        return;
      }
      std::erase(members, gone);
      expect_broken(*transport, context);
      transport = transport->rebuild();
      use(*transport, members, context);
    }
    EXPECT_EQ(transport->world_size(), 1) << "of two, the one that is left goes on";
    EXPECT_EQ(numbers(transport->old_ranks()), (std::vector<int>{0}));
  });
}

TEST_P(Rebuild, AHealthyGroupIsMadeAnewWithAllItsRanks) {
  run(3, [&](int, std::unique_ptr<Transport>& transport, Context& context) {
    const auto next = transport->rebuild();
    expect_broken(*transport, context);
    use(*next, {0, 1, 2}, context);
    EXPECT_EQ(numbers(next->old_ranks()), (std::vector<int>{0, 1, 2}));
  });
}

TEST_P(Rebuild, ALateRankIsToldAndHarmsNobody) {
  std::atomic<int> finished{0};
  run(3, [&](int rank, std::unique_ptr<Transport>& transport, Context& context) {
    if (rank == 1) {
      await(finished, 2);
      expect_broken(*transport, context);
      const std::string error = error_of([&] { transport->rebuild(); });
      expect_contains(error, "rebuild: ranks 0, 2 went on without rank 1");
      ++finished;
      return;
    }
    transport->abort("rank 1 is slow");
    const auto next =
        transport->rebuild({.timeout = milliseconds(400), .silence = milliseconds(100)});
    use(*next, {0, 2}, context);
    ++finished;
    await(finished, 3);
    use(*next, {0, 2}, context);
  });
}

TEST_P(Rebuild, TooFewRanksAreRefusedAndMayTryAgain) {
  std::atomic<int> refused{0};
  run(4, [&](int rank, std::unique_ptr<Transport>& transport, Context& context) {
    if (rank < 2) {
      // Half of the group, and the others live.
      const std::string error = error_of([&] {
        transport->rebuild({.timeout = milliseconds(1000), .silence = milliseconds(300)});
      });
      expect_contains(error, "rebuild: only ranks 0, 1 of 4 came; not heard: ranks 2, 3; expected ");
      ++refused;
    }
    await(refused, 2);
    use(*transport->rebuild(), {0, 1, 2, 3}, context);
  });
}

TEST_P(Rebuild, GroupsThatCannotBeRebuiltSayWhy) {
  run(2, [&](int, std::unique_ptr<Transport>& transport, Context&) {
    const auto half = transport->split(0);
    expect_contains(error_of([&] { half->rebuild(); }), "this group was made by split()");
    expect_contains(error_of([&] { transport->rebuild({.timeout = milliseconds(-1)}); }),
                    "timeout is -1 ms");
    const auto next = transport->rebuild();
    expect_contains(error_of([&] { transport->rebuild(); }), "has been rebuilt already");
  });
}

TEST(RebuildElsewhere, TransportsThatCannotSaySo) {
  for (const Kind& kind : kinds()) {
    if (kind == "in_process" || kind == "paced" || kind == "gloo" || !unavailable(kind).empty()) {
      continue;
    }
    for (const std::string& error : run_ranks(
             kind, 2, {}, [](Rank self) { self.transport.rebuild(); })) {
      EXPECT_EQ(error, kind + ": this transport cannot be rebuilt, start the job again");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllTransports, Rebuild, testing::Values("in_process", "paced", "gloo"),
                         [](const auto& p) { return p.param; });

}  // namespace
}  // namespace gradwire::transport_test
