// What a Reducer saves, and what it makes of good and bad checkpoints.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>

#include "gradwire/comm/reducer.h"
#include "tests/comm/reducer_case.h"

namespace gradwire::test {
namespace {

using Files = std::vector<std::string>;  ///< of each rank that saved

std::string saved(const Reducer& reducer) {
  std::ostringstream out;
  reducer.save(out);
  return out.str();
}

Reducer::OpenCheckpoint opens(const Files& files) {
  return [&files](int rank) -> std::unique_ptr<std::istream> {
    const auto r = static_cast<size_t>(rank);
    return r < files.size() ? std::make_unique<std::istringstream>(files[r]) : nullptr;
  };
}

void steps(Reducer& reducer, int rank, int begin, int end) {
  for (int step = begin; step < end; ++step) {
    hand_over(reducer, gradients(rank, step));
    reducer.wait();
  }
}

/// Runs `count` steps on each of `ranks` and saves.
Files files_after(int ranks, int count, const Plan& plan) {
  Files files(static_cast<size_t>(ranks));
  const auto ends = run_ranks(ranks, [&](Transport& transport) {
    Reducer reducer(plan, transport);
    steps(reducer, transport.rank(), 0, count);
    files[static_cast<size_t>(transport.rank())] = saved(reducer);
  });
  EXPECT_EQ(first_message(ends), "");
  return files;
}

struct Case {
  const char* spec;
  const char* exchange;
};

TEST(ReducerCheckpoint, ContinuesBitForBitForTwentySteps) {
  for (const Case& c : {Case{"none", "auto"}, Case{"int8,stochastic", "gather"},
                        Case{"topk:5%,int4", "gather"}, Case{"threshold:5%", "gather"},
                        Case{"threshold:5%", "two_shot"}, Case{"int4,stochastic", "two_shot"},
                        Case{"powersgd:3", "sum"}, Case{"powersgd:2", "dense"},
                        Case{"powersgd:2,rounds=2", "dense"},
                        Case{"randomk:5%", "dense"}, Case{"randomk:5%,bf16", "gather"},
                        Case{"topk:5%,int4,start=9", "gather"}, Case{"powersgd:2,start=7", "sum"},
                        Case{"threshold:5%,start=3,warmup=2", "two_shot"},
                        Case{"int8,ef21,start=7:bf16", "two_shot"},
                        Case{"dgc:5%,warmup=4", "gather"}, Case{"dgc:5%,2bit,warmup=2", "gtopk"}, Case{"dgc:2%,clip=9", "two_shot"},
                        Case{"topk:5%,int4,momentum=0.9", "gather"},
                        Case{"int8,stochastic,momentum=0.5", "two_shot"},
                        Case{"powersgd:2,momentum=0.8", "sum"},
                        Case{"topk:5%,ef21,eta=0.2", "gather"},
                        Case{"topk:5%,int4,residual=bf16", "two_shot"}}) {
    SCOPED_TRACE(concat(c.spec, " ", c.exchange));
    const Plan plan = plan_of(c.spec, 16384, c.exchange);
    const Files files = files_after(3, 7, plan);
    const auto ends = run_ranks(3, [&](Transport& transport) {
      const int rank = transport.rank();
      Reducer uninterrupted(plan, transport);
      steps(uninterrupted, rank, 0, 27);
      const Outcome expected{means(uninterrupted), residuals(uninterrupted)};
      Reducer reducer(plan, transport, {.streams = 2});
      const void* const memory = reducer.gradient(3).data;
      steps(reducer, rank, 100, 103);  // another life, of which nothing may be left
      reducer.load(opens(files));
      check(reducer.gradient(3).data == memory, "gradient() moved");
      check(reducer.committed_steps() == 7, "step ", reducer.committed_steps());
      check(saved(reducer) == files[static_cast<size_t>(rank)], "saved again, other bytes");
      steps(reducer, rank, 7, 27);
      const Outcome outcome{means(reducer), residuals(reducer)};
      check(outcome == expected, "another result");
    });
    EXPECT_EQ(first_message(ends), "");
  }
}

// What compressors have learned is taken over too, as where the same plan goes on.
TEST(ReducerCheckpoint, GoesOnWhereverResidualsLie) {
  const Plan on_device = plan_of("threshold:5%,residual=bf16", 16384, "gather");
  Plan on_host = on_device;
  on_host.residual_memory = ResidualMemory::kHost;
  const Files files = files_after(2, 7, on_device), later = files_after(2, 12, on_device);
  EXPECT_EQ(files_after(2, 7, on_host), files);
  const auto ends = run_ranks(2, [&](Transport& transport) {
    Reducer reducer(on_host, transport);
    reducer.load(opens(files));
    steps(reducer, transport.rank(), 7, 12);
    check(saved(reducer) == later[static_cast<size_t>(transport.rank())], "another checkpoint");
  });
  EXPECT_EQ(first_message(ends), "");
}

TEST(ReducerCheckpoint, KeepsThePendingMeanUpdateAtAnotherWorldSize) {
  PlanOptions options;
  options.spec = parse_spec("topk:2%");
  options.bucket_bytes = 16384;
  options.exempt_1d = PlanOptions::Exempt1D::kNever;
  const Plan plan = make_plan(model(), options);
  for (const auto& [before, after] : {std::pair(3, 2), std::pair(5, 2), std::pair(4, 1),
                                      std::pair(2, 5), std::pair(1, 3)}) {
    SCOPED_TRACE(concat(before, " to ", after, " ranks"));
    std::vector<Values> old(static_cast<size_t>(before)), now(static_cast<size_t>(after));
    Files files(old.size());
    auto ends = run_ranks(before, [&](Transport& transport) {
      Reducer reducer(plan, transport);
      steps(reducer, transport.rank(), 0, 5);
      old[static_cast<size_t>(transport.rank())] = residuals(reducer);
      files[static_cast<size_t>(transport.rank())] = saved(reducer);
    });
    ASSERT_EQ(first_message(ends), "");
    ends = run_ranks(after, [&](Transport& transport) {
      Reducer reducer(plan, transport);
      reducer.load(opens(files));
      check(reducer.committed_steps() == 5, "step ", reducer.committed_steps());
      now[static_cast<size_t>(transport.rank())] = residuals(reducer);
      steps(reducer, transport.rank(), 5, 7);
    });
    ASSERT_EQ(first_message(ends), "");
    for (size_t p = 0; p < model().size(); ++p) {
      for (size_t i = 0; i < old[0][p].size(); ++i) {
        double was = 0, is = 0, size = 0;
        for (const Values& of_rank : old) {
          was += double{of_rank[p][i]} / before;
          size += std::abs(double{of_rank[p][i]});
        }
        for (const Values& of_rank : now) {
          is += double{of_rank[p][i]} / after;
        }
        ASSERT_NEAR(is, was, 2e-7 * size) << "parameter " << p << " element " << i;
      }
    }
  }
}

TEST(ReducerCheckpoint, KeepsWhatAPlanWithoutFeedbackStillHasToSend) {
  Files files(2);
  std::vector<Values> expected(2);
  auto ends = run_ranks(2, [&](Transport& transport) {
    Reducer reducer(plan_of("topk:5%"), transport);
    steps(reducer, transport.rank(), 0, 2);
    reducer.set_plan(plan_of("none"));
    files[static_cast<size_t>(transport.rank())] = saved(reducer);
    steps(reducer, transport.rank(), 2, 3);
    expected[static_cast<size_t>(transport.rank())] = means(reducer);
  });
  ASSERT_EQ(first_message(ends), "");
  ends = run_ranks(2, [&](Transport& transport) {
    Reducer reducer(plan_of("none", 4096), transport);  // other buckets
    reducer.load(opens(files));
    steps(reducer, transport.rank(), 2, 3);
    check(same_bits(means(reducer), expected[static_cast<size_t>(transport.rank())]), "lost");
  });
  EXPECT_EQ(first_message(ends), "");
}

void put(std::string& bytes, uint64_t value, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    bytes += static_cast<char>(value >> 8 * i & 0xFF);
  }
}

uint64_t fnv(const std::string& bytes) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : bytes) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return hash;
}

TEST(ReducerCheckpoint, HasTheBytesThatTheFormatSays) {
  PlanOptions options;
  options.spec = parse_spec("threshold:50%,noef");
  options.exempt_1d = PlanOptions::Exempt1D::kNever;
  const Plan plan = make_plan(std::vector<ParamInfo>{{"w", {2}}}, options);
  options.spec = parse_spec("topk:50%");
  const Plan with_feedback = make_plan(std::vector<ParamInfo>{{"w", {2}}}, options);
  options.spec = parse_spec("topk:50%,momentum=0.5");
  const Plan with_momentum = make_plan(std::vector<ParamInfo>{{"w", {2}}}, options);
  const auto ends = run_ranks(1, [&](Transport& transport) {
    for (const Plan& each : {plan, with_feedback, with_momentum}) {
      const bool feedback = each.buckets[0].groups[0].spec.feedback.on;
      const bool momentum = each.buckets[0].groups[0].spec.feedback.momentum > 0;
      Reducer reducer(each, transport);
      const auto gradient = reducer.gradient(0).as<float>();
      gradient[0] = 4.0f;
      gradient[1] = -0.5f;
      reducer.grad_ready(0);
      reducer.wait();
      std::string bytes = "GWCK";
      for (const uint64_t word : {2, 0, 1}) {
        put(bytes, word, 4);  // version, rank, world size
      }
      put(bytes, 1, 8);  // committed
      put(bytes, 0, 8);  // skipped
      put(bytes, fnv("float32\nw 2"), 8);
      put(bytes, fnv(each.describe()), 8);
      put(bytes, 1, 4);  // parameters
      put(bytes, 1, 4);  // buckets
      put(bytes, fnv(bytes), 8);
      put(bytes, 2, 8);  // the parameter
      put(bytes, feedback ? 2 : 0, 8);
      if (feedback) {
        put(bytes, 0, 4);
        put(bytes, 0xbf000000, 4);  // -0.5
      }
      put(bytes, momentum ? 2 : 0, 8);
      if (momentum) {
        put(bytes, 0, 4);  // sent
        put(bytes, 0xbf000000, 4);
      }
      put(bytes, 1, 4);  // groups
      put(bytes, 0, 8);  // words of the exchange
      put(bytes, feedback ? 0 : 2, 8);
      if (!feedback) {
        put(bytes, 0x40800000, 8);  // tau is 4
        put(bytes, 1, 8);           // and one step old
      }
      put(bytes, fnv(bytes), 8);
      check(saved(reducer) == bytes, "other bytes");
    }
  });
  EXPECT_EQ(first_message(ends), "");
}

/// Loads on two ranks, of which rank 1 finds `bad`; checks that nothing changed. What each said.
std::vector<std::string> refusals(const Plan& plan, const Files& good,
                                  const std::function<void(Files&)>& spoil) {
  std::vector<std::string> said(2);
  const auto ends = run_ranks(2, [&](Transport& transport) {
    const auto rank = static_cast<size_t>(transport.rank());
    Files files = good;
    if (rank == 1) {
      spoil(files);
    }
    Reducer reducer(plan, transport);
    steps(reducer, transport.rank(), 0, 1);
    const std::string before = saved(reducer);
    const Values mean = means(reducer);
    said[rank] = message_of<InvalidArgument>([&] { reducer.load(opens(files)); });
    check(saved(reducer) == before && same_bits(means(reducer), mean), "something changed");
    steps(reducer, transport.rank(), 1, 2);
  });
  EXPECT_EQ(first_message(ends), "");
  return said;
}

TEST(ReducerCheckpoint, IsRefusedByAllRanksWhenOneFindsItSpoilt) {
  const Plan plan = plan_of("topk:5%,int4");
  const Files good = files_after(2, 3, plan), later = files_after(2, 4, plan);
  const auto expect = [&](const std::string& why, const std::function<void(Files&)>& spoil) {
    const auto said = refusals(plan, good, spoil);
    EXPECT_TRUE(contains(said[1], why)) << said[1];
    EXPECT_EQ(said[0], "rank 1's checkpoint differs from rank 0's at line 1: 'unreadable on rank 1' "
                       "expected 'step 3 with 0 skipped, of 2 ranks'");
  };
  expect("checkpoint of rank 1: there is none, of 2 ranks", [](Files& f) { f.pop_back(); });
  expect("checkpoint of rank 1: was saved by rank 0 of 2", [](Files& f) { f[1] = f[0]; });
  expect("begins with other bytes", [](Files& f) { f[1][0] = 'X'; });
  expect("version is 1, expected 2", [](Files& f) { f[1][4] = 1; });
  expect("the header does not fit its checksum", [](Files& f) { f[1][16] ^= 1; });
  expect("the bytes do not fit their checksum", [](Files& f) { f[1][f[1].size() / 2] ^= 1; });
  expect("bytes follow its end", [](Files& f) { f[1] += '\0'; });
  for (const size_t length : {0, 3, 40, 64, 70, 5000}) {
    expect("more bytes were expected", [&](Files& f) { f[1].resize(length); });
  }
  expect("more bytes were expected", [](Files& f) { f[1].pop_back(); });
  Files others;
  const auto ends = run_ranks(1, [&](Transport& transport) {
    Reducer reducer(make_plan(std::vector<ParamInfo>{{"w", {20}}}, {}), transport);
    others = {good[0], saved(reducer)};
    others[1][8] = 1;  // as if by rank 1 of 2
    others[1][12] = 2;
    const uint64_t sum = fnv(others[1].substr(0, 56));
    std::memcpy(others[1].data() + 56, &sum, sizeof sum);
  });
  ASSERT_EQ(first_message(ends), "");
  expect("names, shapes or dtype of its parameters differ", [&](Files& f) { f = others; });

  const auto said = refusals(plan, good, [&](Files& f) { f = later; });
  for (const std::string& each : said) {
    EXPECT_EQ(each, "rank 1's checkpoint differs from rank 0's at line 1: 'step 4 with 0 skipped, "
                    "of 2 ranks' expected 'step 3 with 0 skipped, of 2 ranks'");
  }
}

/// A float of the file and the checksum behind it.
void forge(std::string& file, size_t at, float value) {
  std::memcpy(file.data() + at, &value, sizeof value);
  const uint64_t sum = fnv(file.substr(0, file.size() - sizeof(uint64_t)));
  std::memcpy(file.data() + file.size() - sizeof sum, &sum, sizeof sum);
}

TEST(ReducerCheckpoint, IsRefusedWhereWhatIsKeptIsNotFinite) {
  const size_t numel = model()[0].numel(), first = 64 + 2 * sizeof(uint64_t);  // of the first parameter
  struct Forged {
    const char *spec, *what;
    size_t at;
  };
  for (const Forged& forged :
       {Forged{"topk:5%", "residual", first}, Forged{"topk:5%", "residual", first + 4 * (numel - 1)},
        Forged{"topk:5%,residual=bf16", "residual", first},
        Forged{"int8,ef21", "residual", first}, Forged{"int8,ef21", "estimate", first + 4 * numel},
        Forged{"topk:5%,momentum=0.9", "velocity", first + 4 * numel + sizeof(uint64_t)},
        Forged{"topk:5%,ef21,eta=0.2", "velocity", first + 8 * numel + sizeof(uint64_t)}}) {
    const Plan plan = plan_of(forged.spec);
    const Files good = files_after(2, 3, plan);
    for (const float value : {std::numeric_limits<float>::quiet_NaN(),
                              std::numeric_limits<float>::infinity(),
                              -std::numeric_limits<float>::infinity()}) {
      SCOPED_TRACE(concat(forged.spec, " ", forged.what, " ", value));
      const auto said = refusals(plan, good, [&](Files& f) { forge(f[1], forged.at, value); });
      EXPECT_EQ(said[1], concat("checkpoint: the ", forged.what, " of parameter 'embed.weight' holds NaN or "
                                "infinity, expected finite values, the only ones that are saved"));
    }
    Files largest = good;
    forge(largest[1], forged.at, 3e38f);
    const auto ends = run_ranks(2, [&](Transport& transport) {
      Reducer(plan, transport).load(opens(largest));
    });
    EXPECT_EQ(first_message(ends), "");
  }
}

TEST(ReducerCheckpoint, NeverPassesWithOneByteChanged) {
  const Plan plan = plan_of("threshold:5%", 1 << 20);
  const Files good = files_after(1, 2, plan);
  const auto ends = run_ranks(1, [&](Transport& transport) {
    Reducer reducer(plan, transport);
    const std::string before = saved(reducer);
    const size_t size = good[0].size();
    for (size_t at = 0; at < size; at += at < 256 || at + 256 > size ? 1 : 997) {
      Files bad = good;
      bad[0][at] = static_cast<char>(bad[0][at] ^ 0x10);
      check(!message_of<InvalidArgument>([&] { reducer.load(opens(bad)); }).empty(), "byte ", at);
    }
    check(saved(reducer) == before, "something changed");
  });
  EXPECT_EQ(first_message(ends), "");
}

TEST(ReducerCheckpoint, IsOfWholeStepsAndOfStreamsThatTakeIt) {
  const auto ends = run_ranks(1, [&](Transport& transport) {
    Reducer reducer(plan_of("int8"), transport);
    std::ostringstream full;
    full.setstate(std::ios::badbit);
    const std::string stream = message_of<InvalidArgument>([&] { reducer.save(full); });
    check(contains(stream, "checkpoint: the stream refused"), stream);
    const Files files{saved(reducer)};
    reducer.grad_ready(0);
    const std::string middle = message_of<InvalidArgument>([&] { saved(reducer); });
    check(contains(middle, "save: step 0 has begun"), middle);
    const std::string load = message_of<InvalidArgument>([&] { reducer.load(opens(files)); });
    check(contains(load, "load: step 0 has begun"), load);
  });
  EXPECT_EQ(first_message(ends), "");
}

}  // namespace
}  // namespace gradwire::test
