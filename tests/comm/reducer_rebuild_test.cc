// A rank dies when one other has left wait() with the step committed and the rest have not: what
// those that are left make of it.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <barrier>

#include "gradwire/comm/internal/agree.h"
#include "gradwire/comm/reducer.h"
#include "gradwire/comm/stages.h"
#include "gradwire/comm/transport/gloo.h"
#include "gradwire/comm/transport/in_process.h"
#include "gradwire/comm/transport/point_to_point_transport.h"
#include "tests/comm/leaving_engine.h"
#include "tests/comm/reducer_case.h"
#include "tests/comm/transport_ranks.h"

namespace gradwire::test {
namespace {

constexpr int kRanks = 4, kVictim = 3;
constexpr int kLastStep = 5;  // of the whole group: rank 0 commits it, ranks 1 and 2 do not

struct Case {
  const char *spec, *exchange;
  size_t collectives;  ///< of one exchange
  int streams;
};

Plan plan_of_case(const Case& c) { return plan_of(c.spec, 16384, c.exchange); }

/// The victim's message that reaches only rank 0: the first one of the step's last bucket's last
/// collective. Its payload must fit into it.
LastMessage last_message(const Case& c) {
  const Plan plan = plan_in_step(plan_of_case(c), kLastStep);
  const size_t buckets = plan.buckets.size(), streams = static_cast<size_t>(c.streams);
  const size_t stream = (buckets - 1) % streams;
  size_t exchanges = 0;
  for (size_t b = stream; b < buckets; b += streams) {
    int rounds = 1;
    for (const PlanGroup& group : plan.buckets[b].groups) {
      const auto compressor =
          make_compressor(group.spec, {.numel = group.numel, .segments = group.segments});
      rounds = std::max(rounds, compressor->rounds());
    }
    exchanges += static_cast<size_t>(rounds);
  }
  return {.group = static_cast<uint16_t>(stream), .collective = exchanges * c.collectives - 1};
}

/// Parameters, stepped by plain gradient descent.
struct Training {
  Reducer reducer;
  Values parameters = gradients(99, 0);
  int rank;  ///< in the first group: says whose gradients these are
  bool narrow;  ///< residuals are kept in bfloat16
  Training(const Case& c, Transport& transport)
      : reducer(plan_of_case(c), transport, {.streams = c.streams}), rank(transport.rank()),
        narrow(parse_spec(c.spec).feedback.residual == DType::kBFloat16) {}

  void backward(int step) { hand_over(reducer, gradients(rank, step)); }
  void wait() {
    check(reducer.wait() == StepOutcome::kCommitted, "not committed");
    const Values mean = means(reducer);
    for (size_t p = 0; p < parameters.size(); ++p) {
      for (size_t i = 0; i < parameters[p].size(); ++i) {
        parameters[p][i] -= 0.1f * mean[p][i];
      }
    }
  }
  std::string failure_of(int step) {
    return message_of<TransportError>([&] {
      backward(step);
      wait();
    });
  }
};

/// What ranks have after a step of the whole group that nobody left.
std::vector<Outcome> undisturbed(const Case& c) {
  std::vector<Outcome> outcomes(kRanks);
  const auto ends = run_ranks(kRanks, [&](Transport& transport) {
    Training training(c, transport);
    for (int step = 0; step <= kLastStep; ++step) {
      training.backward(step);
      training.wait();
    }
    outcomes[static_cast<size_t>(transport.rank())] = {training.parameters,
                                                       residuals(training.reducer)};
  });
  EXPECT_EQ(first_message(ends), "");
  return outcomes;
}

void receive_parameters(Training& training, int source, Transport& transport) {
  const auto stream = make_inline_stream();
  Workspace workspace;
  Context context{*stream, workspace};
  for (auto& values : training.parameters) {
    transport.broadcast(std::as_writable_bytes(std::span(values)), source, {1, "parameters"},
                        context);
    stream->wait();
  }
}

void compare_parameters(const Training& training, Transport& transport) {
  const auto stream = make_inline_stream();
  Workspace workspace;
  Context context{*stream, workspace};
  std::string bytes;
  for (const auto& values : training.parameters) {
    bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  }
  check_agreement("parameters", bytes, transport, context);
}

/// From the failed step on, on a rank that is left: `expected` is what the whole group would have.
void go_on(Training& training, Transport& survivors, const std::vector<Outcome>& expected) {
  const int rank = training.rank;
  const Reducer::Rebuilt rebuilt = training.reducer.rebuild(survivors);
  check(rebuilt.committed_steps == kLastStep + 1, "committed ", rebuilt.committed_steps);
  check(training.reducer.committed_steps() == kLastStep + 1, "counts otherwise");
  check(rebuilt.source == 0 && rebuilt.behind == (rank != 0), "source ", rebuilt.source);
  // Complete on every rank, whether it saw the step's end or not; and their mean is kept.
  const Values scaled = changed(expected[static_cast<size_t>(rank)].residuals, [&](float e) {
    const auto product = static_cast<float>(double{e} * (kRanks - 1) / kRanks);
    return training.narrow ? to_float(from_float<bfloat16>(product)) : product;
  });
  check(same_bits(residuals(training.reducer), scaled), "residuals of rank ", rank, " differ");
  receive_parameters(training, rebuilt.source, survivors);
  check(same_bits(training.parameters, expected[0].means), "parameters differ");
  for (int step = kLastStep + 1; step < kLastStep + 51; ++step) {
    training.backward(step);
    training.wait();
    compare_parameters(training, survivors);
  }
  check(training.reducer.committed_steps() == kLastStep + 51, "steps were not committed");
}

/// Of ranks in this process; the last one, once armed, leaves when `left` is set.
std::vector<std::shared_ptr<PointToPoint>> engines_of(int ranks, const std::atomic<bool>& left) {
  auto engines = make_in_process_engines(ranks);
  std::vector<std::shared_ptr<PointToPoint>> of_ranks(engines.size());
  std::move(engines.begin(), engines.end(), of_ranks.begin());
  of_ranks.back() = std::make_shared<LeavingEngine>(std::move(of_ranks.back()), [&left] {
    while (!left) {
      std::this_thread::yield();
    }
    throw TransportError("gone");
  });
  return of_ranks;
}

TEST(ReducerRebuild, GoesOnFromTheNewestStepWithTheBitsOfAllRanks) {
  for (const Case& c : {Case{"topk:5%,int4", "gather", 1, 1}, Case{"topk:5%", "two_shot", 2, 1},
                        Case{"bf16,ef", "dense", 2, 1}, Case{"int4,stochastic", "two_shot", 2, 2},
                        Case{"int8", "gather", 1, 4}, Case{"none", "dense", 2, 2},
                        Case{"powersgd:3", "dense", 2, 1}, Case{"int4,residual=bf16", "two_shot", 2, 2},
                        Case{"powersgd:3,rounds=2,residual=bf16", "dense", 2, 1},
                        Case{"powersgd:3,rounds=2", "dense", 2, 1},
                        Case{"topk:5%,start=6:bf16", "two_shot", 2, 1}}) {  // bf16 until that step
    SCOPED_TRACE(concat(c.spec, " ", c.exchange, " ", c.streams));
    const auto expected = undisturbed(c);
    std::atomic<bool> left{false};
    std::vector<std::shared_ptr<PointToPoint>> of_ranks = engines_of(kRanks, left);
    auto* const victim = static_cast<LeavingEngine*>(of_ranks.back().get());
    const auto ends = run_threads(kRanks, [&](int rank) {
      auto transport = make_point_to_point_transport(
          "in_process", std::move(of_ranks[static_cast<size_t>(rank)]), {});
      std::unique_ptr<Transport> next;  // outlives the reducer
      Training training(c, *transport);
      for (int step = 0; step < kLastStep; ++step) {
        training.backward(step);
        training.wait();
      }
      if (rank == kVictim) {
        victim->arm(last_message(c));
        training.failure_of(kLastStep);
        return;
      }
      if (rank == 0) {
        training.backward(kLastStep);
        training.wait();
        left = true;
      }
      const std::string message = training.failure_of(rank == 0 ? kLastStep + 1 : kLastStep);
      check(contains(message, concat(", rank ", rank, ", after ")), message);
      next = transport->rebuild();
      go_on(training, *next, expected);
    });
    EXPECT_EQ(first_message(ends), "");
  }
}

// The second death comes before the ranks behind have been given anything.
TEST(ReducerRebuild, RemembersWhoIsBehindWhenAnotherRankDies) {
  const Case c{"topk:5%,int4", "gather", 1, 1};
  for (const bool source_dies : {false, true}) {
    std::atomic<bool> left{false};
    std::barrier all_rebuilt(4);  // else the second death could fall into the first rebuild
    std::vector<std::shared_ptr<PointToPoint>> of_ranks = engines_of(5, left);
    auto* const victim = static_cast<LeavingEngine*>(of_ranks.back().get());
    const auto ends = run_threads(5, [&](int rank) {
      auto transport = make_point_to_point_transport(
          "in_process", std::move(of_ranks[static_cast<size_t>(rank)]), {});
      std::unique_ptr<Transport> next, last;
      Training training(c, *transport);
      if (rank == 4) {
        victim->arm(last_message(c));
        training.failure_of(0);
        return;
      }
      if (rank == 0) {
        training.backward(0);
        training.wait();
        left = true;
      }
      training.failure_of(rank == 0 ? 1 : 0);
      next = transport->rebuild();
      const Reducer::Rebuilt first = training.reducer.rebuild(*next);
      check(first.source == 0 && first.behind == (rank != 0), "first source ", first.source);
      all_rebuilt.arrive_and_wait();
      if (rank == (source_dies ? 0 : 1)) {
        next->abort("it dies");
        return;
      }
      training.failure_of(1);
      last = next->rebuild();
      if (source_dies) {
        const std::string message =
            message_of<InvalidArgument>([&] { training.reducer.rebuild(*last); });
        check(contains(message, "expected at most one step less: load a checkpoint"), message);
        return;
      }
      const Reducer::Rebuilt second = training.reducer.rebuild(*last);
      check(second.source == 0 && second.behind == (rank != 0), "second source ", second.source);
      receive_parameters(training, second.source, *last);
      for (int step = 1; step < 4; ++step) {
        training.backward(step);
        training.wait();
        compare_parameters(training, *last);
      }
    });
    EXPECT_EQ(first_message(ends), "");
  }
}

/// What the processes see of each other beside their sockets.
struct Shared {
  std::atomic<bool> left{false};
  std::atomic<int> fine{0};
  char message[kRanks][400] = {};
};

void run_process(int rank, const Case& c, const std::string& folder,
                 const std::vector<Outcome>& expected, Shared& shared) {
  TransportOptions options;
  options.rank = rank;
  options.world_size = kRanks;
  options.store = "file:" + folder;
  options.network_interface = "lo";
  std::shared_ptr<LeavingEngine> victim;
  std::unique_ptr<Transport> transport, next;
  if (rank == kVictim) {
    victim = std::make_shared<LeavingEngine>(make_gloo_engine(options), [&shared] {
      while (!shared.left) {
        usleep(1000);
      }
      raise(SIGKILL);
    });
    transport = make_point_to_point_transport("gloo", victim, options);
  } else {
    transport = make_transport("gloo", options);
  }
  Training training(c, *transport);
  for (int step = 0; step < kLastStep; ++step) {
    training.backward(step);
    training.wait();
  }
  if (rank == kVictim) {
    victim->arm(last_message(c));
  }
  if (rank == 0) {
    training.backward(kLastStep);
    training.wait();
    shared.left = true;
  }
  training.failure_of(rank == 0 ? kLastStep + 1 : kLastStep);
  next = transport->rebuild();
  go_on(training, *next, expected);
}

// Reducers that were alone until now, one of them a step ahead, as after a death.
TEST(ReducerRebuild, LetsRanksThatAreBehindCommitWhereWhatTheyKeepIsComplete) {
  for (const char* exchange : {"gather", "gtopk"}) {
    SCOPED_TRACE(exchange);
    const auto ends = run_ranks(2, [&](Transport& together) {
      const auto alone = make_in_process_group(1);
      const Case c{"topk:5%", exchange, 1, 1};
      Training training(c, *alone[0]);
      for (int step = 0; step < 3 - together.rank(); ++step) {
        training.backward(step);
        training.wait();
      }
      if (together.rank() == 1) {
        training.backward(2);  // begun, and never committed
      }
      const auto rebuild = [&] { return training.reducer.rebuild(together); };
      if (exchange == std::string("gtopk")) {
        const std::string said = message_of<InvalidArgument>(rebuild);
        check(contains(said, "'gtopk'") && contains(said, "load a checkpoint"), said);
      } else {
        check(rebuild().behind == (together.rank() == 1), "behind");
      }
    });
    EXPECT_EQ(first_message(ends), "");
  }
}

TEST(ReducerRebuild, MakesEveryRankANodeOfItsOwn) {
  const auto before = make_in_process_group(4), after = make_in_process_group(3);
  PlanOptions options;
  options.spec = parse_spec("topk:5%");
  options.exchange = "hierarchical";
  options.ranks_per_node = 2;
  const Plan plan = make_plan(model(), options);
  std::vector<Values> last(4), kept_before(4), kept_after(4);
  const auto errors = transport_test::run_threads(4, [&](int r) {
    const auto rank = static_cast<size_t>(r);
    Reducer reducer(plan, *before[rank]);
    const auto step = [&](int number) {
      hand_over(reducer, gradients(r, number));
      check(reducer.wait() == StepOutcome::kCommitted, "not committed");
      last[rank] = means(reducer);
    };
    step(0);
    step(1);
    kept_before[rank] = residuals(reducer);
    if (r == 3) {
      return;
    }
    check(!reducer.rebuild(*after[rank]).behind, "behind");
    check(reducer.plan().ranks_per_node == 1, "ranks_per_node is ", reducer.plan().ranks_per_node);
    kept_after[rank] = residuals(reducer);
    step(2);
  });
  EXPECT_EQ(errors, std::vector<std::string>(4));
  for (size_t r = 0; r < 3; ++r) {
    EXPECT_TRUE(same_bits(last[r], last[0]));
    for (size_t p = 0; p < kept_before[r].size(); ++p) {
      for (size_t i = 0; i < kept_before[r][p].size(); ++i) {
        ASSERT_EQ(kept_after[r][p][i], static_cast<float>(0.75 * kept_before[r][p][i]));
      }
    }
  }
}

TEST(ReducerRebuild, SurvivesAKilledProcessOverGloo) {
  if (const std::string why = transport_test::unavailable("gloo"); !why.empty()) {
    GTEST_SKIP() << why;
  }
  const Case c{"topk:5%,int4", "gather", 1, 2};
  const auto expected = undisturbed(c);
  const transport_test::TemporaryFolder folder;
  void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  Shared& shared = *new (memory) Shared;
  std::vector<pid_t> processes;
  for (int rank = 0; rank < kRanks; ++rank) {
    const pid_t process = fork();
    if (process == 0) {
      alarm(60);  // no process outlives a test that hangs
      try {
        run_process(rank, c, folder.path(), expected, shared);
        ++shared.fine;
      } catch (const std::exception& error) {
        std::strncpy(shared.message[rank], error.what(), sizeof shared.message[rank] - 1);
      }
      _exit(0);
    }
    processes.push_back(process);
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    int status = 0;
    waitpid(processes[static_cast<size_t>(rank)], &status, 0);
    EXPECT_EQ(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, rank == kVictim) << rank;
    EXPECT_STREQ(shared.message[rank], "") << "rank " << rank;
  }
  EXPECT_EQ(shared.fine, kRanks - 1);
  munmap(memory, sizeof(Shared));
}

}  // namespace
}  // namespace gradwire::test
