// Reducers, transports and stores in a forked child: refused by name, and let go of so that nothing
// of the parent's ends; the parent goes on with its step.

#include <gtest/gtest.h>

#include <vector>

#include "gradwire/comm/reducer.h"
#include "gradwire/comm/store.h"
#include "tests/comm/reducer_case.h"
#include "tests/comm/transport_processes.h"
#include "tests/support/forked.h"

namespace gradwire::test {
namespace {

using transport_test::Processes;
using transport_test::TakenPort;

template <class Action>
std::string not_refused(const std::string& what, const Action& action) {
  try {
    action();
  } catch (const InvalidArgument& error) {
    return error.what() == refusal_in_a_fork(what) ? "" : error.what() + std::string("\n");
  }
  return what + " was used\n";
}

/// In a child: all that a rank could do with what its parent made, and then the end of both.
std::string use_and_let_go(std::unique_ptr<Reducer>& reducer,
                           std::unique_ptr<Transport>& transport) {
  std::string wrong;
  const auto refused = [&](const std::string& what, const auto& action) {
    wrong += not_refused(what, action);
  };
  refused("reducer", [&] { reducer->grad_ready(0); });
  refused("reducer", [&] { reducer->wait(); });
  refused("reducer", [&] { reducer->set_plan(plan_of("int8")); });
  refused("reducer", [&] { reducer->load([](int) { return nullptr; }); });
  refused("reducer", [&] { reducer->rebuild(*transport); });
  const std::string name(transport->name());
  const auto stream = make_inline_stream();
  Workspace workspace;
  Context context{*stream, workspace};
  std::vector<float> values(10);
  refused(name, [&] {
    transport->all_reduce_sum(values, {1, "bucket 0"}, context);
    stream->wait();
  });
  refused(name, [&] { transport->split(0); });
  refused(name, [&] { transport->rebuild(); });
  transport->abort("a child has nothing to say here");
  reducer.reset();
  transport.reset();
  return wrong;
}

/// Three steps of a rank, with a child that takes all that it can between two steps, and in one.
void train_beside_children(std::unique_ptr<Transport> transport, const ReducerOptions& options) {
  auto reducer = std::make_unique<Reducer>(plan_of("int8"), *transport, options);
  const int rank = transport->rank();
  const auto fork_now = [&] {
    const std::string wrong = in_a_fork([&] { return use_and_let_go(reducer, transport); });
    check(wrong.empty(), wrong);
  };
  hand_over(*reducer, gradients(rank, 0));
  reducer->wait();
  if (rank == 0) {
    fork_now();
  }
  hand_over(*reducer, gradients(rank, 1), {7, 6, 5, 4});
  if (rank == 0) {
    fork_now();
  }
  hand_over(*reducer, gradients(rank, 1), {3, 2, 1, 0});
  check(reducer->wait() == StepOutcome::kCommitted, "not committed");
  hand_over(*reducer, gradients(rank, 2));
  check(reducer->wait() == StepOutcome::kCommitted, "not committed");
}

TEST(AForkedChild, IsRefusedAReducerAndItsTransportAndEndsNeither) {
  for (const double bits_per_second : {0.0, 2e9}) {  // as it is, and on threads that hold it back
    SCOPED_TRACE(bits_per_second);
    auto group = make_in_process_group(2, {.pacing = {bits_per_second}});
    const auto ends = run_threads(2, [&](int r) {
      train_beside_children(std::move(group[static_cast<size_t>(r)]),
                            {.streams = 2, .launch_order = LaunchOrder::kAgreed});
    });
    EXPECT_EQ(first_message(ends), "");
  }
}

TEST(AForkedChild, IsRefusedAStoreThatItsParentServesAndEndsAllTheSame) {
  const std::string address = "tcp:127.0.0.1:" + std::to_string(TakenPort().port());
  auto store = make_store(address, 0, std::chrono::seconds(20));
  const std::string said = in_a_fork([&] {
    store.reset();
    return std::string();
  });
  EXPECT_EQ(said, "");
  store->set("key", std::string_view("value"));
  EXPECT_EQ(store->get("key").size(), 5u);
}

class ForkedGlooRanks : public transport_test::GlooProcesses {};

TEST_F(ForkedGlooRanks, KeepTheirConnectionsWhereAChildLetsGoOfThem) {
  Processes processes(2, [&](int rank, const auto&) {
    train_beside_children(
        make_transport("gloo", options_of(rank, 2, std::chrono::milliseconds(60000))), {});
  });
  EXPECT_EQ(processes.line_of(0), "fine");
  EXPECT_EQ(processes.line_of(1), "fine");
}

}  // namespace
}  // namespace gradwire::test
