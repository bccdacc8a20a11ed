// Paced links: modelled time, so a lower bound on elapsed time is what there is to assert.

#include <chrono>
#include <cmath>

#include "gradwire/comm/transport/in_process.h"
#include "gradwire/comm/transport/paced.h"
#include "tests/comm/transport_ranks.h"

namespace gradwire::transport_test {
namespace {

using Seconds = std::chrono::duration<double>;

/// Runs `body` on ranks with paced links: seconds until each was done, on a clock that started
/// before the first of them did.
std::vector<double> timed(const Kind& kind, int size, double bits_per_second,
                          const std::function<void(Rank)>& body) {
  TransportOptions options;
  options.pacing.bits_per_second = bits_per_second;
  std::vector<double> seconds(static_cast<size_t>(size));
  const auto group =
      kind == "gloo" ? make_group(kind, size, options) : make_in_process_group(size, options);
  const auto start = std::chrono::steady_clock::now();
  expect_all_fine(run_threads(size, [&](int r) {
    const auto stream = make_inline_stream();
    Workspace workspace;
    Context context{*stream, workspace};
    body({*group[static_cast<size_t>(r)], context, r, size});
    stream->wait();
    seconds[static_cast<size_t>(r)] = Seconds(std::chrono::steady_clock::now() - start).count();
  }));
  return seconds;
}

class Paced : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (const std::string why = unavailable(GetParam()); !why.empty()) {
      GTEST_SKIP() << why;
    }
  }
};

TEST_P(Paced, ALone64KilobyteMessageTakesThreeQuartersOfItsLineTime) {
  for (const double rate : {10e6, 50e6, 100e6}) {
    SCOPED_TRACE(rate);
    std::vector<std::byte> bytes[2] = {std::vector<std::byte>(64000),
                                       std::vector<std::byte>(64000)};
    const auto seconds = timed(GetParam(), 2, rate, [&](Rank self) {
      self.transport.broadcast(bytes[self.rank], 0, {}, self.context);
    });
    const double line_time = 64000 * 8 / rate;
    EXPECT_GE(seconds[1], 0.75 * line_time);
  }
}

TEST_P(Paced, LongTransfersKeepTheRate) {
  const size_t count = 3 << 20;  // bytes, several chunks
  const double rate = 200e6;
  std::vector<std::byte> bytes[2] = {std::vector<std::byte>(count), std::vector<std::byte>(count)};
  const auto seconds = timed(GetParam(), 2, rate, [&](Rank self) {
    self.transport.broadcast(bytes[self.rank], 0, {}, self.context);
  });
  EXPECT_GE(seconds[1], 0.97 * static_cast<double>(count) * 8 / rate);
}

TEST_P(Paced, ASenderSharesItsRateAmongItsReceivers) {
  const size_t count = 200000;
  const double rate = 100e6;
  std::vector<std::vector<std::byte>> bytes(4, std::vector<std::byte>(count));
  const auto seconds = timed(GetParam(), 4, rate, [&](Rank self) {
    self.transport.broadcast(bytes[static_cast<size_t>(self.rank)], 0, {}, self.context);
  });
  // The last of three receivers has its payload when all three have left.
  const double last = std::max({seconds[1], seconds[2], seconds[3]});
  EXPECT_GE(last, 0.95 * 3 * count * 8 / rate);
}

TEST_P(Paced, SeveralSendersShareTheReceiversRate) {
  // Only parts for rank 0 are not empty: three senders, one receiver.
  const size_t count = 200000;
  const double rate = 100e6;
  const auto seconds = timed(GetParam(), 4, rate, [&](Rank self) {
    std::vector<std::byte> send(4 * count), receive(4 * count);
    std::vector<size_t> send_lengths{count, 0, 0, 0}, lengths(4);
    self.transport.all_to_all({send, count, send_lengths}, {receive, count, lengths}, {},
                              self.context);
  });
  EXPECT_GE(seconds[0], 0.95 * 3 * count * 8 / rate);
}

TEST_P(Paced, BothDirectionsRunAtOnce) {
  // Full duplex: an all-to-all of n bytes each way takes at least one line time of what one rank
  // sends. That it does not take two is seen in the benchmarks, where time is not asserted.
  const size_t count = 250000;
  const double rate = 100e6;
  const auto seconds = timed(GetParam(), 3, rate, [&](Rank self) {
    std::vector<std::byte> all(3 * count);
    std::vector<size_t> lengths(3);
    const size_t length = count;
    self.transport.all_gather(length, std::span(all).first(count), {all, count, lengths}, {},
                              self.context);
  });
  for (const double s : seconds) {
    EXPECT_GE(s, 0.95 * 2 * count * 8 / rate);
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, Paced, testing::Values("in_process", "gloo"),
                         [](const auto& p) { return p.param; });

TEST(Pacing, TheBurstIsAMillisecondAndAtLeast8000Bytes) {
  EXPECT_EQ(Pacing{10e6}.burst_bytes(), 8000u);
  EXPECT_EQ(Pacing{64e6}.burst_bytes(), 8000u);
  EXPECT_EQ(Pacing{100e6}.burst_bytes(), 12500u);
  EXPECT_EQ(Pacing{1e9}.burst_bytes(), 125000u);
}

TEST(Pacing, RatesThatAreNoneAreRefused) {
  for (const double rate : {-1.0, 1.0, std::nan(""), HUGE_VAL}) {
    TransportOptions options;
    options.pacing.bits_per_second = rate;
    EXPECT_THROW(make_in_process_group(2, options), InvalidArgument) << rate;
  }
}

}  // namespace
}  // namespace gradwire::transport_test
