// Gradients of which each rank keeps a shard: against sums made by hand of compressors of single
// slices.

#include "gradwire/comm/sharded_reducer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <limits>

#include "gradwire/kernels/compress/warmup.h"
#include "tests/comm/exchange_case.h"
#include "tests/comm/reducer_case.h"

namespace gradwire::test {
namespace {

constexpr size_t kNumels[] = {5000, 3};  // of slices: no multiple of a chunk
constexpr float kLarge = 3e38f;

std::vector<ShardedGroup> groups(int ranks) {
  std::vector<ShardedGroup> made;
  for (size_t g = 0; g < std::size(kNumels); ++g) {
    made.push_back(
        {.name = concat("layer", g),
         .numel = kNumels[g],
         .segments = {{.parameter = 0, .numel = kNumels[g] - 1}, {.parameter = 1, .numel = 1}},
         .seed = 7 + g * static_cast<size_t>(ranks)});
  }
  return made;
}

std::vector<float> gradient_of(size_t g, int rank, int step, int ranks) {
  return random_values(kNumels[g] * static_cast<size_t>(ranks),
                       static_cast<unsigned>(100 * step + 10 * rank) + static_cast<unsigned>(g));
}

/// One rank: its reducer, and what a step's gradients became.
struct Rank {
  Rank(std::string_view spec, Transport& over, OnNonFinite policy = OnNonFinite::kError)
      : transport(over),
        reducer(groups(over.world_size()), over,
                {.spec = parse_spec(spec), .on_nonfinite = policy, .threads = 2}) {}

  std::vector<float> gradient(size_t g, int step) const {
    return gradient_of(g, transport.rank(), step, transport.world_size());
  }

  /// Last group first, as backward has it. `change` is of the first gradient.
  template <class Change>
  StepOutcome step(int number, const Change& change) {
    std::vector<float> given[] = {gradient(0, number), gradient(1, number)};
    change(given[0]);
    for (size_t g = std::size(kNumels); g-- > 0;) {
      shards[g].assign(kNumels[g], -1.0f);
      reducer.reduce(g, view_of(std::span<const float>(given[g])), view_of(std::span(shards[g])),
                     1.0f / static_cast<float>(transport.world_size()));
    }
    return reducer.commit();
  }
  StepOutcome step(int number) {
    return step(number, [](std::vector<float>&) {});
  }

  Transport& transport;
  ShardedReducer reducer;
  std::vector<float> shards[std::size(kNumels)];
};

bool same(const SliceState& a, const SliceState& b) {
  return a.residual == b.residual && a.velocity == b.velocity && a.learned == b.learned;
}

bool same(const std::vector<SliceState>& a, const std::vector<SliceState>& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) { return same(x, y); });
}

/// What rank `from` sends to rank `to` of a group, by hand.
struct ByHand {
  std::vector<float> sent(const CompressorSpec& spec, const ShardedGroup& group, int from,
                          size_t to, int ranks, std::span<const float> slice, uint32_t step) {
    const auto stream = make_inline_stream();
    Workspace workspace;
    Context context{*stream, workspace};
    const CompressorSpec now = spec_in_step(spec, step);
    if (compressor == nullptr || !(compressor->spec() == now)) {
      compressor = make_compressor(now, {.numel = group.numel,
                                         .segments = group.segments,
                                         .seed = group.seed + to,
                                         .rank = from,
                                         .world_size = ranks});
      compressor->set_step(step);
    }
    residual.resize(now.feedback.on ? group.numel : 0);
    std::vector<float> next(residual.size()), decoded(group.numel);
    std::vector<std::byte> payload(compressor->capacity_bytes());
    compressor->compress(view_of(slice), residual, next, payload, context);
    const ConstPayload part = payload;
    compressor->decompress({&part, 1}, 1.0f, view_of(std::span(decoded)), context);
    stream->wait();
    compressor->commit();
    residual = next;
    for (float& value : residual) {
      value =
          spec.feedback.residual == DType::kFloat32 ? value : to_float(from_float<bfloat16>(value));
    }
    return decoded;
  }

  std::unique_ptr<Compressor> compressor;
  std::vector<float> residual;
};

TEST(ShardedReducer, GivesEachRankTheMeanOfItsSlicesAndKeepsWhatTheyLeaveOut) {
  constexpr int kSteps = 5;
  for (const char* text :
       {"none", "int4,stochastic", "1bit,noef", "topk:10%,int8", "randomk:10%", "threshold:10%",
        "topk:10%,momentum=0.9", "topk:10%,start=2", "tensortopk:20%", "int8,residual=bf16"}) {
    for (const int ranks : {1, 2, 3}) {
      SCOPED_TRACE(concat(text, ", ", ranks, " ranks"));
      const auto p = static_cast<size_t>(ranks);
      const CompressorSpec spec = parse_spec(text);
      std::vector<std::vector<std::vector<float>>> shards(p);  // by rank, step and group
      std::vector<std::vector<SliceState>> states(p);
      const auto ends = run_ranks(ranks, [&](Transport& transport) {
        const auto r = static_cast<size_t>(transport.rank());
        Rank rank(text, transport);
        for (int step = 0; step < kSteps; ++step) {
          check(rank.step(step) == StepOutcome::kCommitted, "not committed");
          shards[r].insert(shards[r].end(), {rank.shards[0], rank.shards[1]});
        }
        states[r] = rank.reducer.state(0);
        check(rank.reducer.step(0) == kSteps, "step ", rank.reducer.step(0));
      });
      ASSERT_EQ(first_message(ends), "");
      for (size_t g = 0; g < std::size(kNumels); ++g) {
        const ShardedGroup group = groups(ranks)[g];
        for (size_t to = 0; to < p; ++to) {
          std::vector<ByHand> senders(p);
          for (int step = 0; step < kSteps; ++step) {
            std::vector<float> sum(group.numel);
            for (size_t from = 0; from < p; ++from) {
              const auto all = gradient_of(g, static_cast<int>(from), step, ranks);
              const auto sent =
                  senders[from].sent(spec, group, static_cast<int>(from), to, ranks,
                                     std::span(all).subspan(to * group.numel, group.numel),
                                     static_cast<uint32_t>(step));
              for (size_t i = 0; i < sum.size(); ++i) {
                sum[i] += sent[i];
              }
            }
            for (float& value : sum) {
              value *= 1.0f / static_cast<float>(ranks);
            }
            const auto place = static_cast<size_t>(step) * std::size(kNumels) + g;
            ASSERT_EQ(shards[to][place], sum) << "step " << step << ", rank " << to;
          }
          for (size_t from = 0; g == 0 && from < p; ++from) {
            ASSERT_EQ(states[from][to].residual, senders[from].residual);
          }
        }
      }
    }
  }
}

TEST(ShardedReducer, SendsTheSlicesOfTheOthersAndNothingElse) {
  const auto ends = run_ranks(3, [](Transport& transport) {
    Rank rank("int8", transport);
    uint64_t expected = 2 * kFrameHeaderBytes;
    for (const size_t numel : kNumels) {
      const auto one = make_compressor(parse_spec("int8"), {.numel = numel});
      expected += 2 * (kFrameHeaderBytes + one->capacity_bytes());
    }
    rank.step(0);
    check(transport.counters().bytes_sent == expected, "sent ", transport.counters().bytes_sent,
          ", expected ", expected);
  });
  EXPECT_EQ(first_message(ends), "");
}

// Only what goes to rank 1 is wrong, and only rank 1 has the sum.
TEST(ShardedReducer, CommitsOnNoRankWhatIsNotFiniteOnOne) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const char* text : {"none", "int8", "topk:10%,int4", "randomk:100%"}) {
    for (const bool overflows : {false, true}) {
      for (const OnNonFinite policy : {OnNonFinite::kError, OnNonFinite::kSkip}) {
        SCOPED_TRACE(concat(text, overflows ? " overflows" : "", policy == OnNonFinite::kSkip));
        const auto ends = run_ranks(3, [&](Transport& transport) {
          Rank rank(text, transport, policy), calm(text, transport);
          for (int step = 0; step < 2; ++step) {
            rank.step(step), calm.step(step);
          }
          const auto before = rank.reducer.state(0);
          std::string said;
          try {
            const auto outcome = rank.step(2, [&](std::vector<float>& gradient) {
              const auto at = gradient.begin() + static_cast<ptrdiff_t>(kNumels[0]);
              if (overflows) {
                std::fill(at, at + 256, kLarge);  // all that shares a scale
              } else if (transport.rank() == 2) {
                *at = infinity;
              }
            });
            check(outcome == StepOutcome::kSkipped && policy == OnNonFinite::kSkip, "went on");
          } catch (const NonFiniteGradient& error) {
            said = error.what();
          }
          const bool kept = parse_spec(text).feedback.on;
          const std::string expected =
              concat("backward: ",
                     overflows ? "the sum of the ranks' finite gradients of 'layer0' overflows"
                               : concat("rank 2's gradients of 'layer0' hold NaN or infinity",
                                        kept ? ", or overflow with their residuals" : ""),
                     ", expected finite values; nothing was committed on any rank");
          check(policy == OnNonFinite::kSkip || said == expected, "said: ", said);
          check(transport.rank() != 1 || std::isnan(rank.shards[0][0]), "a shard without NaN");
          check(same(before, rank.reducer.state(0)), "another state");
          check(rank.reducer.step(0) == 2 && rank.reducer.step(1) == 2, "counted a step");
          rank.step(3), calm.step(3);  // as if that step had never been
          check(rank.shards[0] == calm.shards[0] && rank.shards[1] == calm.shards[1],
                "other shards");
          check(same(rank.reducer.state(0), calm.reducer.state(0)), "another state");
        });
        ASSERT_EQ(first_message(ends), "");
      }
    }
  }
}

TEST(ShardedReducer, GoesOnFromItsStateToTheBit) {
  for (const char* text : {"int4,stochastic", "topk:10%,momentum=0.9", "threshold:10%",
                           "topk:10%,start=3", "dgc:5%,warmup=2", "int8,residual=bf16"}) {
    for (const int saved_behind : {1, 3}) {
      SCOPED_TRACE(concat(text, " behind ", saved_behind));
      const auto ends = run_ranks(2, [&](Transport& transport) {
        Rank rank(text, transport), other(text, transport);
        for (int step = 0; step < saved_behind; ++step) {
          rank.step(step);
        }
        for (const size_t g : {0u, 1u}) {
          other.reducer.set_state(g, rank.reducer.step(g), rank.reducer.state(g));
        }
        for (int step = saved_behind; step < 6; ++step) {
          rank.step(step), other.step(step);
          check(rank.shards[0] == other.shards[0] && rank.shards[1] == other.shards[1],
                "other shards in step ", step);
        }
        check(same(rank.reducer.state(0), other.reducer.state(0)), "another state");
      });
      ASSERT_EQ(first_message(ends), "");
    }
  }
}

TEST(ShardedReducer, RefusesWhatDoesNotFitAndChangesNothing) {
  const auto ends = run_ranks(2, [](Transport& transport) {
    Rank rank("topk:10%", transport);
    rank.step(0);
    const auto before = rank.reducer.state(0);
    const auto loads = [&](auto change, std::string_view expected) {
      auto state = before;
      change(state);
      const std::string said = message_of<InvalidArgument>([&] { rank.reducer.set_state(0, 1, state); });
      check(said.find(expected) != std::string::npos, said);
      check(same(before, rank.reducer.state(0)), "changed");
    };
    using State = std::vector<SliceState>;
    loads([](State& state) { state.pop_back(); }, "has 1 slices, must have 2");
    loads([](State& state) { state[1].residual.pop_back(); }, "has 4999 elements, must have 5000");
    loads([](State& state) { state[1].residual[7] = NAN; }, "['residual']: holds NaN or infinity");
    std::vector<float> gradient(2 * kNumels[1]), shard(kNumels[1]);
    const auto reduces = [&](size_t g, std::string_view expected) {
      const std::string said = message_of<InvalidArgument>([&] {
        rank.reducer.reduce(g, view_of(std::span<const float>(gradient)), view_of(std::span(shard)),
                            1.0f);
      });
      check(said.find(expected) != std::string::npos, said);
    };
    reduces(0, "gradients of 'layer0': are 6 of float32, must be 10000");
    reduces(2, "group: is 2, must be below 2");
    rank.reducer.reduce(1, view_of(std::span<const float>(gradient)), view_of(std::span(shard)),
                        1.0f);
    reduces(1, "are reduced twice in one backward");
    loads([](State&) {}, "is set while 1 groups of a step are pending");
    rank.reducer.abandon();
    check(rank.reducer.pending() == 0 && same(before, rank.reducer.state(0)), "abandoned nothing");
    rank.step(1);
    for (const char* text : {"powersgd:2", "topk:1%,ef21"}) {
      const std::string said = message_of<InvalidArgument>([&] { Rank(text, transport); });
      check(said.find("payloads one rank decodes alone") != std::string::npos, said);
    }
  });
  EXPECT_EQ(first_message(ends), "");
}

// Rank 1 hands its gradients over when rank 0 has gone on already, and needs its own no more.
TEST(ShardedReducer, WorksBesideItsCaller) {
  std::atomic<bool> went_on = false;
  const auto ends = run_ranks(2, [&](Transport& transport) {
    Rank rank("int8", transport);
    const auto gradient = rank.gradient(0, 0);
    std::vector<float> shard(kNumels[0]);
    for (int looks = 0; transport.rank() == 1 && !went_on; ++looks) {
      check(looks < 2000, "rank 0 waits in reduce()");
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    rank.reducer.reduce(0, view_of(std::span<const float>(gradient)), view_of(std::span(shard)),
                        1.0f);
    for (int looks = 0; rank.reducer.uses_gradient(0); ++looks) {
      check(looks < 2000, "the gradient is in use until others have theirs");
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    went_on = true;
    check(rank.reducer.commit() == StepOutcome::kCommitted, "not committed");
    check(rank.reducer.step(0) == 1 && rank.reducer.step(1) == 0, "steps of other groups");
  });
  EXPECT_EQ(first_message(ends), "");
}

TEST(ShardedReducer, HearsOfGroupsThatItsCallerReduces) {
  const auto ends = run_ranks(2, [](Transport& transport) {
    auto made = groups(2);
    made[1].compressed = false;
    ShardedReducer reducer(made, transport, {.spec = parse_spec("int8")});
    reducer.reduced(1, true, false);
    check(reducer.commit() == StepOutcome::kCommitted, "not committed");
    reducer.reduced(1, true, transport.rank() == 1);
    std::string said;
    try {
      reducer.commit();
    } catch (const NonFiniteGradient& error) {
      said = error.what();
    }
    check(said.find("finite gradients of 'layer1' overflows") != std::string::npos, said);
    check(reducer.state(1).empty() && reducer.step(1) == 0, "keeps something");
  });
  EXPECT_EQ(first_message(ends), "");
}

// Rank 1 compresses otherwise, which the others find before they use a byte of it.
TEST(ShardedReducer, EndsTheGroupWithTheWordsOfTheRankThatFails) {
  const auto ends = run_ranks(3, [](Transport& transport) {
    Rank rank(transport.rank() == 1 ? "int8,stochastic" : "int8", transport);
    rank.step(0);
  });
  for (const RankEnd& end : ends) {
    EXPECT_TRUE(end.threw<TransportError>()) << end.message;
    EXPECT_NE(end.message.find("slices of 'layer1': rank "), std::string::npos) << end.message;
    EXPECT_NE(end.message.find("payload of group 0: spec fingerprint is"), std::string::npos)
        << end.message;
  }
}

TEST(ShardedReducer, EndsTheGroupWhereItEndsInAStep) {
  const auto ends = run_ranks(2, [](Transport& transport) {
    Rank rank("int8", transport);
    const auto gradient = rank.gradient(0, 0);
    std::vector<float> shard(kNumels[0]);
    rank.reducer.reduce(0, view_of(std::span<const float>(gradient)), view_of(std::span(shard)),
                        1.0f);
    rank.reducer.wait();
    if (transport.rank() == 0) {
      rank.reducer.commit();
    }
  });
  EXPECT_TRUE(ends[0].threw<TransportError>()) << ends[0].message;
  EXPECT_NE(ends[0].message.find("rank 1 left in the middle of a step"), std::string::npos)
      << ends[0].message;
}

}  // namespace
}  // namespace gradwire::test
