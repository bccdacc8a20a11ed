// How the all-reduces and all-gathers that run in rounds fail, over every transport.

#include <atomic>
#include <chrono>

#include "gradwire/comm/internal/checksum.h"
#include "gradwire/comm/transport/frame.h"
#include "gradwire/comm/transport/in_process.h"
#include "gradwire/comm/transport/point_to_point_transport.h"
#include "tests/comm/transport_failures.h"
#include "tests/comm/verb_data.h"

namespace gradwire::transport_test {
namespace {

/// Every call that runs in rounds, with 2.4 MB per rank.
class RoundFailures : public Failures {
 protected:
  struct Call {
    const char* name;
    std::function<void(Rank, CallTag, size_t)> run;  ///< on this many elements; blocks
  };
  static std::vector<Call> calls() {
    std::vector<Call> all;
    for (const AllReduce algorithm : kAllReduces) {
      all.push_back({algorithm == AllReduce::kRing ? "all_reduce_sum (ring)"
                                                   : "all_reduce_sum (rabenseifner)",
                     [algorithm](Rank self, CallTag tag, size_t count) {
                       std::vector<float> values(count);
                       tag.all_reduce = algorithm;
                       self.transport.all_reduce_sum(values, tag, self.context);
                       self.context.stream.wait();
                     }});
    }
    for (const AllGather algorithm : kAllGathers) {
      all.push_back(
          {algorithm == AllGather::kRing ? "all_gather (ring)" : "all_gather (bruck)",
           [algorithm](Rank self, CallTag tag, size_t count) {
             const size_t stride = 4 * count, length = stride;
             std::vector<std::byte> mine(stride), received(3 * stride);
             std::vector<size_t> lengths(3);
             tag.all_gather = algorithm;
             self.transport.all_gather(length, mine, {received, stride, lengths}, tag,
                                       self.context);
             self.context.stream.wait();
           }});
    }
    return all;
  }
  static constexpr size_t kCount = 600001;
};

TEST_P(RoundFailures, RanksThatDisagreeOnTheFingerprintAreTold) {
  for (const Call& call : calls()) {
    SCOPED_TRACE(call.name);
    const auto errors = fail([&](Rank self) {
      call.run(self, {self.rank == 2 ? uint64_t{0xBAD} : uint64_t{0x600D}, "bucket 3"}, kCount);
    });
    one_says(errors, ": ranks disagree on shape, dtype or spec");
    one_says(errors, std::string(call.name) + " of bucket 3: rank ");
  }
}

TEST_P(RoundFailures, RanksThatDisagreeOnTheSizeAreTold) {
  for (const Call& call : calls()) {
    SCOPED_TRACE(call.name);
    const auto errors =
        fail([&](Rank self) { call.run(self, {7, "values"}, kCount + (self.rank == 0 ? 30 : 0)); });
    one_says(errors, "bytes, expected ");
  }
}

TEST_P(RoundFailures, RanksThatTakeDifferentAlgorithmsAreTold) {
  for (const AllReduce other : {AllReduce::kRankOrder, AllReduce::kRabenseifner}) {
    const auto errors = fail([&](Rank self) {
      std::vector<float> values(1000);
      self.transport.all_reduce_sum(values, by(self.rank == 1 ? other : AllReduce::kRing),
                                    self.context);
      self.context.stream.wait();
    });
    one_says(errors, ": ranks disagree on the order of calls");
  }
}

TEST_P(RoundFailures, ARankThatNeverCallsIsNamedAtTheDeadline) {
  for (const Call& call : calls()) {
    SCOPED_TRACE(call.name);
    const auto errors =
        fail_without_rank_one([&](Rank self) { call.run(self, {3, "step 5"}, kCount); });
    EXPECT_NE((errors[0] + errors[2]).find(" of step 5: rank 1 stayed silent past the deadline"),
              std::string::npos)
        << errors[0] << "\n"
        << errors[2];
  }
}

TEST_P(RoundFailures, AbortWakesEveryone) {
  for (const Call& call : calls()) {
    SCOPED_TRACE(call.name);
    std::atomic<int> in_call{0};
    const auto errors = run_ranks(GetParam(), 3, {}, [&](Rank self) {
      if (self.rank == 2) {
        while (in_call < 2) {
          std::this_thread::sleep_for(milliseconds(1));
        }
        self.transport.abort("the user pressed stop");
      }
      ++in_call;
      call.run(self, {1, "a gradient"}, kCount);
    });
    EXPECT_EQ(errors[2], "the user pressed stop");
    for (const size_t r : {size_t{0}, size_t{1}}) {
      EXPECT_NE(errors[r], "");
      EXPECT_EQ(errors[r].find("stayed silent"), std::string::npos)
          << "it waited for its deadline: " << errors[r];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllTransports, RoundFailures, testing::ValuesIn(point_to_point_kinds()),
                         [](const auto& p) { return p.param; });

/// Posts what `source` would send in a round of a Bruck all-gather of parts of up to 64 bytes.
void send_parts(PointToPoint& source, size_t round, const std::vector<uint64_t>& payload,
                std::vector<std::byte>& message) {
  FrameHeader header;
  header.verb = static_cast<uint8_t>(Verb::kBruckAllGather);
  header.sequence = static_cast<uint32_t>(round);
  header.source = static_cast<uint32_t>(source.rank());
  header.fingerprint = 0x1234;
  header.bytes = 8 * payload.size();
  header.capacity = (round + 1) * (8 + 64);
  header.reserved = uint64_t{static_cast<uint32_t>(Covers::kFirstMessage)} << 32 |
                    payload_checksum(std::as_bytes(std::span(payload)));
  header.checksum = checksum_of(header);
  message.resize(64 + 8 * payload.size());
  std::memcpy(message.data(), &header, 64);
  std::memcpy(message.data() + 64, payload.data(), 8 * payload.size());
  source.post_send(0, first_tag(0, header.sequence), message);
}

/// What rank 0 of `ranks` says when the last round's parts travel as `payload`.
std::string said_of(const std::vector<uint64_t>& payload, int ranks = 2) {
  auto engines = make_in_process_engines(ranks);
  const auto transport = make_point_to_point_transport("in_process", std::move(engines[0]), {});
  std::vector<std::byte> messages[2], room[2] = {std::vector<std::byte>(8192),
                                                 std::vector<std::byte>(8192)};
  // Parts come from the rank before and, of four, from the one before that.
  const size_t rounds = ranks == 2 ? 1 : 2;
  for (size_t round = 0; round < rounds; ++round) {
    const size_t distance = round + 1;
    const bool last = round + 1 == rounds;
    send_parts(*engines[static_cast<size_t>(ranks) - distance], round,
               last ? payload : std::vector<uint64_t>{8, 0}, messages[round]);
    engines[distance]->post_recv(0, first_tag(0, static_cast<uint32_t>(round)), room[round]);
  }
  const auto stream = make_inline_stream();
  Workspace workspace;
  Context context{*stream, workspace};
  Buffers all(ranks, 64);
  const std::vector<std::byte> mine(10);
  try {
    const size_t length = mine.size();
    transport->all_gather(length, mine, all.parts, by(AllGather::kBruck), context);
    stream->wait();
    EXPECT_EQ(all.lengths[ranks == 2 ? 1 : 2], payload[0]);
  } catch (const TransportError& error) {
    EXPECT_EQ(error.peer(), ranks == 2 ? 1 : 2);
    return error.what();
  }
  return {};
}

TEST(BruckAllGather, ChecksTheLengthsThatOthersClaim) {
  EXPECT_EQ(said_of({8, 0}), "");
  EXPECT_NE(said_of({9, 0}).find("rank 1 sent 16 bytes whose part 0 claims 9, expected 1 parts of "
                                 "up to 64"),
            std::string::npos);
  EXPECT_NE(said_of({~uint64_t{0}, 0}).find("whose part 0 claims "), std::string::npos);
  EXPECT_NE(said_of({65, 0, 0, 0, 0, 0, 0, 0, 0}).find("claims 65"), std::string::npos);
  EXPECT_NE(said_of({7, 0}).find("rank 1 sent 16 bytes for 1 parts that end at 15"),
            std::string::npos);
  // Of two parts the first is longer than a part may be, and would still fit the message.
  std::vector<uint64_t> two(18, 0);
  two[0] = 64;
  two[9] = 64;
  EXPECT_EQ(said_of(two, 4), "");
  two[0] = 72;
  two[10] = 56;
  EXPECT_NE(said_of(two, 4).find("part 0 claims 72, expected 2 parts of up to 64"),
            std::string::npos);
  EXPECT_NE(said_of({}).find("whose part 0 claims 0"), std::string::npos);
}

}  // namespace
}  // namespace gradwire::transport_test
