// Messages that ranks exchange through the control group, beside the engine that it watches.

#include "gradwire/comm/internal/control_group.h"

#include <chrono>
#include <numeric>

#include "tests/comm/transport_ranks.h"

namespace gradwire::transport_test {
namespace {

using std::chrono::milliseconds;

std::vector<int> everyone(int size) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// Ranks as threads; each body may give its group back early.
std::vector<std::string> run_members(
    int size, const std::function<void(std::unique_ptr<ControlGroup>&, int)>& body) {
  ControlGroup::Place place = ControlGroup::open_place("127.0.0.1");
  return run_threads(size, [&](int r) {
    auto group = std::make_unique<ControlGroup>(
        ControlGroup::Options{.rank = r,
                              .world_size = size,
                              .join_within = milliseconds(20000),
                              .ended = [](const TransportError&) {}},
        place.invitation, r == 0 ? std::move(place.listener) : Socket());
    body(group, r);
  });
}

TEST(ControlGroup, GathersWhatEveryRankPassed) {
  for (const int size : {1, 2, 5}) {
    expect_all_fine(run_members(size, [size](auto& group, int rank) {
      const auto ranks = everyone(size);
      for (int round = 0; round < 20; ++round) {
        const auto text = [&](int r) {
          return std::string(static_cast<size_t>(r * 100 * round), 'a') + std::to_string(round);
        };
        const auto all =
            group->gather(text(rank), {.group = 1, .members = ranks, .what = "a test"});
        ASSERT_EQ(all.size(), static_cast<size_t>(size));
        for (int r = 0; r < size; ++r) {
          EXPECT_EQ(all[static_cast<size_t>(r)], text(r));
        }
      }
    }));
  }
}

TEST(ControlGroup, GathersWithinSomeRanks) {
  expect_all_fine(run_members(4, [](auto& group, int rank) {
    const std::vector<int> half = {rank % 2, rank % 2 + 2};
    const auto all = group->gather(
        std::to_string(rank),
        {.group = static_cast<uint64_t>(10 + rank % 2), .members = half, .what = "a half"});
    EXPECT_EQ(all, (std::vector<std::string>{std::to_string(half[0]), std::to_string(half[1])}));
    // Rank 0, which hands all messages on, stays until the other half has its own.
    group->gather("", {.group = 12, .members = everyone(4), .what = "the end"});
  }));
}

TEST(ControlGroup, RefusesToGatherMoreThanItCarries) {
  expect_all_fine(run_members(2, [](auto& group, int) {
    const auto ranks = everyone(2);
    const std::string large(40 << 10, 'a');
    EXPECT_THROW(group->gather(large, {.group = 1, .members = ranks, .what = "a book"}),
                 InvalidArgument);
    group->gather("short", {.group = 1, .members = ranks, .what = "a word"});
  }));
}

TEST(ControlGroup, NamesWhoIsMissingFromAGather) {
  std::atomic<int> told{0};
  run_members(3, [&](auto& group, int rank) {
    const auto ranks = everyone(3);
    if (rank == 1) {
      while (told < 2) {
        std::this_thread::sleep_for(milliseconds(1));
      }
      return;
    }
    try {
      group->gather("", {.group = 1,
                         .members = ranks,
                         .what = "the plan",
                         .patience = milliseconds(200)});
      ADD_FAILURE();
    } catch (const TransportError& error) {
      EXPECT_NE(std::string(error.what()).find("rank 1 stayed silent past the deadline"),
                std::string::npos)
          << error.what();
      EXPECT_EQ(error.peer(), 1);
    }
    ++told;
  });
}

TEST(ControlGroup, TellsWhoeverGathersThatTheWorldHasEnded) {
  const auto errors = run_members(3, [](auto& group, int rank) {
    const auto ranks = everyone(3);
    if (rank == 2) {
      group->abort(TransportError("rank 2 went wrong", 2));
      return;
    }
    group->gather("", {.group = 1, .members = ranks, .what = "the plan"});
  });
  // Behind what was being gathered for, where word of rank 2's leaving comes before its reason.
  for (const std::string& error : {errors[0], errors[1]}) {
    EXPECT_TRUE(error == "rank 2 went wrong" || error == "the plan: rank 2 went wrong") << error;
  }
}

TEST(ControlGroup, DoesNotBlameWhoHasMadeTheCallInQuestion) {
  expect_all_fine(run_members(3, [](auto& group, int rank) {
    // Rank 1 is behind, but not in call 2, which all have made.
    for (int call = 0; call < (rank == 1 ? 2 : 5); ++call) {
      group->entered(7);
    }
    const auto ranks = everyone(3);
    group->gather("", {.group = 1, .members = ranks, .what = "ready"});
    if (rank == 0) {
      group->blame({.group = 7, .members = ranks, .number = 2});
    }
    const auto heard = group->verdict(milliseconds(20000));
    ASSERT_TRUE(heard.has_value());
    EXPECT_STREQ(heard->what(),
                 "rank 0 heard nothing until the deadline, though all ranks are in the call");
  }));
}

// The bell that rings for the end and for the leaving may be heard as one: whoever sees both at once
// must not wait for another.
TEST(ControlGroup, CanBeLeftRightAfterItHasEnded) {
  for (int round = 0; round < 300; ++round) {
    ControlGroup::Place place = ControlGroup::open_place("127.0.0.1");
    ControlGroup group({.rank = 0,
                        .world_size = 1,
                        .join_within = milliseconds(20000),
                        .ended = [](const TransportError&) {}},
                       place.invitation, std::move(place.listener));
    group.abort(TransportError("over", 0));
  }
}

TEST(ControlGroup, KnowsWhoHasLeft) {
  expect_all_fine(run_members(3, [](auto& group, int rank) {
    const auto ranks = everyone(3);
    group->gather("", {.group = 1, .members = ranks, .what = "meeting"});
    if (rank == 2) {
      group.reset();
      return;
    }
    while (group->left_of(ranks) < 0) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    EXPECT_EQ(group->left_of(ranks), 2);
    EXPECT_FALSE(group->verdict({}).has_value()) << "leaving is no failure";
    const std::vector<int> rest = {0, 1};
    group->gather("", {.group = 5, .members = rest, .what = "the rest"});
    EXPECT_THROW(group->gather("", {.group = 1, .members = ranks, .what = "the plan"}),
                 TransportError);
  }));
}

}  // namespace
}  // namespace gradwire::transport_test
