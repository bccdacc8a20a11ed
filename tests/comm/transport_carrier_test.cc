// What is particular to transports over somebody else's collectives: what they hand to the engine,
// and what the control group knows that the engine does not.

#include <chrono>
#include <cstring>

#include "gradwire/comm/internal/control_group.h"
#include "tests/comm/transport_ranks.h"

namespace gradwire::transport_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr uint64_t kHeader = 64;

TEST(Carrier, CountsWhatTheEngineWasHanded) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    expect_all_fine(run_ranks("carrier", ranks, {}, [](Rank self) {
      const auto peers = static_cast<uint64_t>(self.size - 1),
                 own = static_cast<uint64_t>(self.rank);
      TrafficCounters before;
      const auto expect = [&](uint64_t sent, uint64_t received, const char* what) {
        self.context.stream.wait();
        const TrafficCounters now = self.transport.counters();
        EXPECT_EQ(now.bytes_sent - before.bytes_sent, peers * kHeader + sent) << what;
        EXPECT_EQ(now.bytes_received - before.bytes_received, peers * kHeader + received) << what;
        EXPECT_EQ(now.frames_sent - before.frames_sent, peers) << what;
        before = now;
      };
      const size_t size = static_cast<size_t>(self.size), stride = 9000;
      std::vector<std::byte> send(stride * size), all(stride * size);
      std::vector<size_t> to(size), from(size);
      // Rank r has 100 + r bytes for everyone: they travel as long as the longest.
      self.transport.all_gather(to[0] = 100 + own, send, {all, stride, from}, {}, self.context);
      expect(peers * (100 + peers), peers * (100 + peers), "all_gather");

      // Rank r sends 10 r + d bytes to rank d: they travel as they are.
      uint64_t sent = 0, received = 0;
      for (uint64_t r = 0; r < size; ++r) {
        to[r] = 10 * own + r;
        sent += r == own ? 0 : 10 * own + r;
        received += r == own ? 0 : 10 * r + own;
      }
      self.transport.all_to_all({send, stride, to}, {all, stride, from}, {}, self.context);
      expect(sent, received, "all_to_all");

      std::vector<float> values(1003);
      const uint64_t mine = 1003 / size + (own < 1003 % size ? 1 : 0);
      const uint64_t longest = (1003 + size - 1) / size;
      std::vector<float> out(mine);
      self.transport.reduce_scatter(values, out, {}, self.context);
      expect(4 * (1003 - mine), 4 * peers * mine, "reduce_scatter");
      self.transport.all_reduce_sum(values, {}, self.context);
      expect(4 * (1003 - mine) + 4 * peers * longest, 4 * peers * mine + 4 * peers * longest,
             "all_reduce_sum");
      self.transport.broadcast(std::span(send).first(777), 0, {}, self.context);
      expect(own == 0 ? peers * 777 : 0, own == 0 ? 0 : 777, "broadcast");
      self.transport.barrier({}, self.context);
      expect(0, 0, "barrier");
    }));
  }
}

/// Three ranks over engines that `break_engine` has had its hands on.
std::vector<std::string> with_engines(const std::function<void(int, Carrier&)>& break_engine,
                                      const std::function<void(int, Transport&)>& body) {
  auto engines = make_in_process_group(3, {.timeout = milliseconds(2000)});
  return run_threads(3, [&](int r) {
    Carrier carrier = carrier_over(std::move(engines[static_cast<size_t>(r)]));
    break_engine(r, carrier);
    const auto transport =
        make_carrier_transport("broken", std::move(carrier), {.timeout = milliseconds(2000)});
    body(r, *transport);
  });
}

void barrier_on(Transport& transport) {
  const auto stream = make_inline_stream();
  Workspace workspace;
  Context context{*stream, workspace};
  transport.barrier({0, "step 3"}, context);
  stream->wait();
}

TEST(Carrier, AnEngineThatFailsOnOneRankIsToldToAll) {
  const auto errors = with_engines(
      [](int r, Carrier& carrier) {
        if (r == 1) {
          carrier.all_to_all = [](const Carrier::AllToAll&) {
            throw std::runtime_error("no more buffers");
          };
        }
      },
      [](int, Transport& transport) { barrier_on(transport); });
  for (const std::string& error : errors) {
    EXPECT_EQ(error, "barrier of step 3: rank 1: no more buffers");
  }
}

TEST(Carrier, BytesThatAreNoHeaderAreNotBelieved) {
  const auto errors = with_engines(
      [](int r, Carrier& carrier) {
        if (r == 2) {
          carrier.all_to_all = [send = carrier.all_to_all](Carrier::AllToAll call) {
            std::vector<std::byte> garbage(call.send.size(), std::byte{0x5A});
            call.send = garbage;
            send(call);
          };
        }
      },
      [](int, Transport& transport) { barrier_on(transport); });
  for (const int r : {0, 1}) {
    EXPECT_EQ(errors[static_cast<size_t>(r)],
              "barrier of step 3: rank 2 sent bytes that are no frame header");
  }
  EXPECT_NE(errors[2], "");
}

TEST(Carrier, AnEmptyFunctionIsRefused) {
  Carrier carrier;
  EXPECT_THROW(make_carrier_transport("empty", carrier, {}), InvalidArgument);
}

struct Control {
  ControlGroup::Place place = ControlGroup::open_place("127.0.0.1");
  std::atomic<int> told{0};

  std::unique_ptr<ControlGroup> join(int rank, int world_size, milliseconds within) {
    return std::make_unique<ControlGroup>(
        ControlGroup::Options{.rank = rank,
                              .world_size = world_size,
                              .join_within = within,
                              .ended = [this](const TransportError&) { ++told; }},
        place.invitation, rank == 0 ? std::move(place.listener) : Socket());
  }
};

TEST(ControlGroup, NamesRanksThatDoNotCome) {
  Control control;
  const auto errors = run_threads(2, [&](int r) { control.join(2 * r, 4, milliseconds(200)); });
  EXPECT_EQ(errors[0],
            "control group: rank 1, rank 3 did not come within 0.2 s (the timeout: --timeout of a "
            "command, timeout= in Python, TransportOptions::timeout)");
  EXPECT_NE(errors[1], "");
}

TEST(ControlGroup, SendsStrangersAway) {
  Control control;
  const std::string host = control.place.invitation.host.data();
  const std::string port = std::to_string(control.place.invitation.port);
  std::atomic<int> strangers{0};
  const auto errors = run_threads(5, [&](int r) {
    const Deadline soon = steady_clock::now() + milliseconds(2000);
    // Rank 0 listens until rank 1 has come.
    while (r == 1 && strangers < 3) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    if (r <= 1) {
      const auto group = control.join(r, 2, milliseconds(2000));
      EXPECT_FALSE(group->verdict(milliseconds(50)).has_value());
      return;
    }
    const Socket stranger = connect_to(host, port, soon);
    ++strangers;
    if (r == 2) {
      write_all(stranger, std::string(5000, 'x'), soon);  // garbage
    } else if (r == 3) {
      // Rank 1's hello with another secret: magic, kHello, rank 1, 16 bytes, group, calls.
      const uint32_t hello[12] = {0x31435747, 1, 1, 16};
      write_all(stranger, {reinterpret_cast<const char*>(hello), sizeof(hello)}, soon);
    } else {
      std::this_thread::sleep_for(milliseconds(100));  // says nothing
      return;
    }
    char answer = 0;
    EXPECT_THROW(read_all(stranger, {&answer, 1}, soon), TransportError);
  });
  expect_all_fine(errors);
}

TEST(ControlGroup, TheFirstReasonReachesEveryRank) {
  Control control;
  const auto errors = run_threads(4, [&](int r) {
    const auto group = control.join(r, 4, milliseconds(2000));
    if (r == 2) {
      group->abort(TransportError("the user pressed stop"));
    }
    const auto verdict = group->verdict(milliseconds(2000));
    ASSERT_TRUE(verdict.has_value());
    throw *verdict;
  });
  for (const int r : {0, 1, 3}) {
    const std::string& error = errors[static_cast<size_t>(r)];
    EXPECT_TRUE(error == "rank 2 ended the group: the user pressed stop" ||
                error.find("died or closed") != std::string::npos)
        << error;
  }
  EXPECT_EQ(errors[2], "the user pressed stop");
  EXPECT_EQ(control.told, 4);
}

TEST(ControlGroup, ARankThatIsBehindAndOneThatLeftAreNamed) {
  for (const bool leaves : {false, true}) {
    Control control;
    std::atomic<bool> over{false};
    const auto errors = run_threads(3, [&](int r) {
      auto group = control.join(r, 3, milliseconds(2000));
      const int everyone[] = {0, 1, 2};
      group->entered(7);
      if (r == 1) {
        if (leaves) {
          group.reset();
        }
        while (!over) {
          std::this_thread::sleep_for(milliseconds(1));
        }
        return;
      }
      group->entered(7);
      std::this_thread::sleep_for(milliseconds(30));
      const TransportError error = group->blame({7, everyone, ""});
      over = true;
      throw error;
    });
    const std::string expected =
        leaves ? "rank 1 has left the group" : "rank 1 stayed silent past the deadline";
    EXPECT_EQ(errors[0], expected);
    EXPECT_EQ(errors[2], expected);
  }
}

}  // namespace
}  // namespace gradwire::transport_test
