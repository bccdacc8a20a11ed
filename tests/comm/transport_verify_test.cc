// The self-check that users run: it passes over every transport, and finds what a broken one does.

#include "gradwire/comm/verify.h"

#include "tests/comm/transport_ranks.h"
#include "tests/comm/wrapped_transport.h"

namespace gradwire::transport_test {
namespace {

class SelfCheck : public testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (const std::string why = unavailable(GetParam()); !why.empty()) {
      GTEST_SKIP() << why;
    }
  }
};

TEST_P(SelfCheck, PassesOnGroupsOfAllSizes) {
  for (const int size : {1, 2, 3, 4, 5, 8}) {
    SCOPED_TRACE(size);
    expect_all_fine(run_ranks(GetParam(), size, {}, [](Rank self) {
      verify_transport(self.transport, {}, self.context);
    }));
  }
}

TEST_P(SelfCheck, PassesOnAStreamWithAThreadAndSeveralCallsInFlight) {
  expect_all_fine(run_ranks(GetParam(), 3, {}, [](Rank self) {
    const auto stream = make_cpu_stream({.threads = 2, .name = "test"});
    Workspace workspace;
    Context context{*stream, workspace};
    verify_transport(self.transport, {.largest_bytes = 20'000, .calls_in_flight = 4}, context);
    verify_transport(self.transport, {.largest_bytes = 0, .calls_in_flight = 1}, context);
  }));
}

INSTANTIATE_TEST_SUITE_P(AllTransports, SelfCheck, testing::ValuesIn(kinds()),
                         [](const auto& p) { return p.param; });

/// What three ranks say when rank 1's transport is made by `wrap`.
std::vector<std::string> check_with(
    const std::function<std::unique_ptr<Transport>(Transport&)>& wrap) {
  return run_ranks("in_process", 3, {}, [&](Rank self) {
    const auto broken = self.rank == 1 ? wrap(self.transport) : nullptr;
    verify_transport(broken ? *broken : self.transport, {}, self.context);
  });
}

void expect_found(const std::vector<std::string>& errors, const std::string& text) {
  EXPECT_NE(errors[1].find(text), std::string::npos) << errors[1];
  for (const int other : {0, 2}) {  // they hear of it
    const std::string& error = errors[static_cast<size_t>(other)];
    EXPECT_NE(error.find("rank 1"), std::string::npos) << "rank " << other << ": " << error;
  }
}

using test::WrappedTransport;

const std::string kFound = "verify: in_process on rank 1, ";

TEST(SelfCheckTest, AFlippedByteOfAPartIsNamed) {
  expect_found(check_with([](Transport& inner) {
                 return std::make_unique<WrappedTransport>(inner, [](Parts parts) {
                   if (parts.lengths[2] > 5000) {
                     parts.part(2)[4321] ^= std::byte{0x10};
                   }
                 });
               }),
               kFound + "all_gather of 8123 bytes, call 0: byte 4321 of rank 2 is ");
}

TEST(SelfCheckTest, AFlippedByteBetweenPairsIsNamed) {
  expect_found(check_with([](Transport& inner) {
                 return std::make_unique<WrappedTransport>(inner, [](Parts parts) {
                   // The stride of all_to_all is 3 bytes more than the size, all_gather's 5.
                   if (parts.stride == 4096 + 3) {
                     parts.part(0)[7] ^= std::byte{1};
                   }
                 });
               }),
               kFound + "all_to_all of 4096 bytes, call 0: byte 7 of rank 0 is ");
}

TEST(SelfCheckTest, AShortenedLengthIsNamed) {
  expect_found(check_with([](Transport& inner) {
                 return std::make_unique<WrappedTransport>(inner, [](Parts parts) {
                   parts.lengths[0] -= parts.lengths[0] > 60 ? 1 : 0;
                 });
               }),
               kFound + "all_gather of 63 bytes, call 0: rank 0 sent 62 bytes, expected 63");
}

TEST(SelfCheckTest, BytesWrittenBehindTheBufferAreFound) {
  expect_found(check_with([](Transport& inner) {
                 return std::make_unique<WrappedTransport>(inner, [](Parts parts) {
                   *(parts.bytes.data() + parts.bytes.size()) = std::byte{0};
                 });
               }),
               "on rank 1: bytes behind the end of a receive buffer were written");
}

/// Flips the last byte of whatever has at least `bytes` bytes and arrives by sum or broadcast.
std::unique_ptr<Transport> flip_from(Transport& inner, size_t bytes) {
  return std::make_unique<WrappedTransport>(
      inner, [](Parts) {},
      [bytes](std::span<std::byte> arrived) {
        if (arrived.size() >= bytes) {
          arrived.back() ^= std::byte{0x80};
        }
      });
}

TEST(SelfCheckTest, AWrongSumIsNamed) {
  // Of 1 byte: 2 elements for 3 ranks; rank 1 has the second of them.
  expect_found(check_with([](Transport& inner) { return flip_from(inner, 4); }),
               kFound + "reduce_scatter of 1 bytes, call 0: element 1 (byte 4) "
                        "of the sum over ranks is ");
  // Of 63 bytes, that is 16 floats, for 3 ranks less one: only an all-reduce has 188 bytes.
  expect_found(check_with([](Transport& inner) { return flip_from(inner, 188); }),
               kFound + "all_reduce_sum of 63 bytes, call 0: element 46 (byte 184) "
                        "of the sum over ranks is ");
}

TEST(SelfCheckTest, AWrongBroadcastIsNamed) {
  expect_found(check_with([](Transport& inner) {
                 return std::make_unique<WrappedTransport>(
                     inner, [](Parts) {},
                     [](std::span<std::byte> arrived) {
                       if (arrived.size() == 63) {
                         arrived[9] ^= std::byte{1};
                       }
                     });
               }),
               kFound + "broadcast of 63 bytes, call 0: byte 9 of rank 0 is ");
}

TEST(SelfCheckTest, ABarrierThatHoldsNobodyIsFound) {
  class WithoutBarrier final : public WrappedTransport {
   public:
    using WrappedTransport::WrappedTransport;
    void barrier(CallTag, Context&) override {}
  };
  const auto errors = run_ranks("in_process", 3, {}, [&](Rank self) {
    WithoutBarrier broken(self.transport, [](Parts) {});
    verify_transport(broken, {}, self.context);
  });
  // Of whoever came last.
  EXPECT_NE((errors[0] + errors[1] + errors[2])
                .find("barrier of 0 bytes, call 0: it was left before rank "),
            std::string::npos)
      << errors[0] << "\n"
      << errors[1] << "\n"
      << errors[2];
}

TEST(SelfCheckTest, AGroupOfTheWrongRanksIsFound) {
  class WholeInsteadOfHalf final : public WrappedTransport {
   public:
    using WrappedTransport::WrappedTransport;
    std::unique_ptr<Transport> split(int) override { return WrappedTransport::split(0); }
  };
  const auto errors = run_ranks("in_process", 3, {}, [&](Rank self) {
    WholeInsteadOfHalf broken(self.transport, [](Parts) {});
    verify_transport(broken, {}, self.context);
  });
  EXPECT_NE((errors[0] + errors[1]).find("split by parity: rank "), std::string::npos) << errors[0];
}

TEST(SelfCheckTest, RefusesToRunNothing) {
  expect_all_fine(run_ranks("in_process", 1, {}, [](Rank self) {
    EXPECT_THROW(verify_transport(self.transport, {.calls_in_flight = 0}, self.context),
                 InvalidArgument);
  }));
}

}  // namespace
}  // namespace gradwire::transport_test
