// The NCCL transport, with stand-ins for the library and the GPUs: what it enqueues, in which
// states its communicators are left, and that a call in progress keeps nothing waiting.

#include "gradwire/comm/verify.h"
#include "tests/comm/nccl_ranks.h"

namespace gradwire::transport_test {
namespace {

class NcclTransport : public testing::Test {
 protected:
  void SetUp() override { fake_nccl().reset(); }
  void TearDown() override {
    EXPECT_EQ(fake_nccl().alive, 0) << "communicators are left";
    EXPECT_EQ(fake_nccl().misuses, 0);
    EXPECT_EQ(fake_nccl().registered, 0);
  }
};

void verify_all(const NcclGroup& group, std::initializer_list<int> sizes) {
  for (const int size : sizes) {
    SCOPED_TRACE(testing::Message() << size << " ranks");
    expect_all_fine(run_nccl_ranks(size, group, [](NcclRank self) {
      verify_transport(*self.transport, {.largest_bytes = 9000}, self.context);
    }));
  }
}

TEST_F(NcclTransport, MovesEveryByteAndAddsEveryValue) {
  verify_all({}, {1, 2, 3, 4, 5, 8});
  EXPECT_EQ(fake_nccl().aborted, 0);
  EXPECT_EQ(fake_nccl().finalized, fake_nccl().destroyed);
}

TEST_F(NcclTransport, MovesThemWithALibraryThatHasTheRequiredFunctionsAlone) {
  NcclLibrary library = make_fake_nccl();
  library.functions.all_to_all = nullptr;
  library.functions.comm_register = nullptr;
  verify_all({.library = &library}, {1, 2, 3, 5});
}

TEST_F(NcclTransport, MovesThemWhileEveryCallIsCompared) {
  verify_all({.options = {.compare = NcclOptions::Compare::kEveryCall}}, {2, 3});
}

TEST_F(NcclTransport, SendsWholeStridesAndSaysSo) {
  expect_all_fine(run_nccl_ranks(3, {}, [](NcclRank self) {
    const TransportTraits traits = self.transport->traits();
    EXPECT_EQ(traits.device, (Device{DeviceType::kCuda, self.rank}));
    EXPECT_FALSE(traits.true_lengths);
    EXPECT_FALSE(traits.sums_in_rank_order);
    const size_t stride = 100, length = 7;
    OnGpu<std::byte> all(3 * stride);
    const auto own = all.bytes().subspan(static_cast<size_t>(self.rank) * stride, stride);
    std::vector<std::byte> mine(stride, static_cast<std::byte>(self.rank + 1)), back(3 * stride);
    copy_bytes(own, traits.device, mine, {}, self.context.stream);
    std::vector<size_t> lengths(3, 0);
    self.transport->all_gather(length, own, {all.bytes(), stride, lengths}, {}, self.context);
    EXPECT_EQ(lengths, (std::vector<size_t>(3, stride)));
    copy_bytes(back, {}, all.bytes(), traits.device, self.context.stream);
    self.wait();
    for (size_t i = 0; i < back.size(); ++i) {
      ASSERT_EQ(static_cast<size_t>(back[i]), i / stride + 1) << "byte " << i;
    }
    EXPECT_EQ(self.transport->counters().bytes_sent, 2 * stride);
    EXPECT_EQ(self.transport->counters().frames_sent, 2u);
  }));
}

TEST_F(NcclTransport, ReturnsWhileTheOthersAreStillMissing) {
  std::atomic<bool> rank_0_has_called{false};
  expect_all_fine(run_nccl_ranks(2, {}, [&](NcclRank self) {
    OnGpu<float> values(1000);
    if (self.rank == 1) {
      while (!rank_0_has_called) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    for (int call = 0; call < 5; ++call) {  // in order, behind one another
      self.transport->all_reduce_sum(values.span(), {}, self.context);
    }
    rank_0_has_called = rank_0_has_called || self.rank == 0;
    self.wait();
  }));
}

TEST_F(NcclTransport, UsesEventsAgainAndNoNewMemory) {
  expect_all_fine(run_nccl_ranks(2, {}, [](NcclRank self) {
    OnGpu<float> values(10);
    const auto step = [&] {
      for (int call = 0; call < 4; ++call) {
        self.transport->all_reduce_sum(values.span(), {}, self.context);
      }
      self.wait();
      // The watchdog gives events back a moment later.
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    };
    step();
    self.barrier();
    const int events = test::fake_gpu_counts().events;
    const int allocations = test::fake_gpu_counts().allocations;
    self.barrier();
    for (int i = 0; i < 25; ++i) {
      step();
    }
    // Two ranks, two events a call: 400 without using them again.
    EXPECT_LT(test::fake_gpu_counts().events - events, 150);
    EXPECT_EQ(test::fake_gpu_counts().allocations, allocations);
  }));
}

TEST_F(NcclTransport, CanBeCapturedAndReplayed) {
  expect_all_fine(run_nccl_ranks(3, {}, [](NcclRank self) {
    OnGpu<float> values(6);
    const Device gpu = self.transport->traits().device;
    std::vector<float> ones(6, 1.0f), back(6);
    copy_bytes(values.bytes(), gpu, std::as_bytes(std::span(ones)), {}, self.context.stream);
    self.barrier();
    self.barrier();
    const int events = test::fake_gpu_counts().events;  // of all ranks
    const int allocations = test::fake_gpu_counts().allocations;
    self.transport->agree("events", std::to_string(events), self.context);
    self.stream().begin_capture();
    self.transport->all_reduce_sum(values.span(), {}, self.context);
    self.transport->all_reduce_sum(values.span(), {}, self.context);
    self.stream().end_capture();
    EXPECT_EQ(test::fake_gpu_counts().events, events) << "nothing is recorded in a graph";
    EXPECT_EQ(test::fake_gpu_counts().allocations, allocations);
    self.stream().replay();
    self.stream().replay();
    self.wait();
    copy_bytes(std::as_writable_bytes(std::span(back)), {}, values.bytes(), gpu,
               self.context.stream);
    self.wait();
    EXPECT_EQ(back, (std::vector<float>(6, 81.0f)));
    self.barrier("the end");
  }));
}

TEST_F(NcclTransport, RegistersBuffersUntilTheyAreLetGo) {
  expect_all_fine(run_nccl_ranks(2, {}, [](NcclRank self) {
    OnGpu<float> values(1000);
    const auto registration = self.transport->register_buffer(values.bytes());
    EXPECT_NE(registration, nullptr);
    EXPECT_GE(fake_nccl().registered, 1);
    self.transport->all_reduce_sum(values.span(), {}, self.context);
    self.wait();
  }));
}

TEST_F(NcclTransport, HandsItsOptionsToTheLibrary) {
  expect_all_fine(run_nccl_ranks(2, {.options = {.max_ctas = 2}}, [](NcclRank self) {
    self.barrier();
    EXPECT_EQ(fake_nccl().last_max_ctas, 2);
  }));
}

TEST_F(NcclTransport, AgreesOnAText) {
  expect_all_fine(run_nccl_ranks(3, {}, [](NcclRank self) {
    self.transport->agree("plan", "one\ntwo\n", self.context);
    try {
      self.transport->agree("plan", self.rank == 2 ? "one\n2\n" : "one\ntwo\n", self.context);
      ADD_FAILURE() << "rank " << self.rank << " did not notice";
    } catch (const InvalidArgument& error) {
      EXPECT_STREQ(error.what(),
                   "rank 2's plan differs from rank 0's at line 2: '2' expected 'two'");
    }
    self.barrier();  // and the group lives on
  }));
}

// More of them than go at once, and of lengths of their own.
TEST_F(NcclTransport, GathersWordsOfTheHostInRounds) {
  expect_all_fine(run_nccl_ranks(3, {}, [](NcclRank self) {
    const size_t capacity = 70000;
    const auto words_of = [](int rank) {
      std::string words;
      for (size_t i = 0; i < (rank == 1 ? 0 : 60000 + static_cast<size_t>(rank)); ++i) {
        words += static_cast<char>((i * i + static_cast<size_t>(rank)) % 251);
      }
      return words;
    };
    for (const size_t room : {capacity, size_t{60002}}) {
      const auto all =
          self.transport->gather_words(words_of(self.rank), room, {7, "words"}, self.context);
      ASSERT_EQ(all.size(), 3u);
      for (int r = 0; r < 3; ++r) {
        EXPECT_TRUE(all[static_cast<size_t>(r)] == words_of(r)) << r;
      }
    }
    self.barrier();
  }));
}

TEST_F(NcclTransport, TellsWordsOfAnotherFingerprintOrSizeApart) {
  for (const bool sizes : {false, true}) {
    expect_all_fine(run_nccl_ranks(3, {}, [sizes](NcclRank self) {
      const bool other = self.rank == 2;
      const CallTag tag{other && !sizes ? 8u : 7u, "a window"};
      try {
        self.transport->gather_words("abc", other && sizes ? 9 : 10, tag, self.context);
        ADD_FAILURE() << "rank " << self.rank << " did not notice";
      } catch (const TransportError& error) {
        EXPECT_EQ(error.peer(), 2);
        EXPECT_STREQ(error.what(),
                     sizes ? "a window: rank 2 passed 3 of at most 9 bytes, rank 0 at most 10: "
                             "ranks disagree on sizes"
                           : "a window: rank 2 passed the fingerprint 8, rank 0 7: ranks disagree "
                             "on what they exchange");
      }
      EXPECT_THROW(self.transport->agree("plan", "", self.context), TransportError);
    }));
  }
}

TEST_F(NcclTransport, RefusesWhatIsNotOfItsGpu) {
  expect_all_fine(run_nccl_ranks(2, {}, [](NcclRank self) {
    OnGpu<float> values(10);
    FakeGpuStream other((self.rank + 1) % 2);
    const auto cpu = make_inline_stream();
    Context wrong{other, self.context.workspace}, host{*cpu, self.context.workspace};
    std::vector<size_t> lengths(2);
    EXPECT_THROW(self.transport->all_reduce_sum(values.span(), {}, wrong), InvalidArgument);
    EXPECT_THROW(self.transport->all_reduce_sum(values.span(), {}, host), InvalidArgument);
    EXPECT_THROW(self.transport->all_gather(1, values.bytes().first(4), {values.bytes(), 20, lengths},
                                            {}, self.context),
                 InvalidArgument)
        << "mine is shorter than the stride";
    EXPECT_THROW(self.transport->broadcast(values.bytes(), 2, {}, self.context), InvalidArgument);
    EXPECT_THROW(self.transport->split(-1), InvalidArgument);
    self.barrier();  // and the group lives on
  }));
}

TEST_F(NcclTransport, RefusesOptionsThatCannotBe) {
  TransportOptions options;
  options.store = "file:/nowhere";
  const auto expect = [&](const char* text) {
    try {
      make_nccl_transport(make_fake_nccl(), options);
      ADD_FAILURE() << "expected: " << text;
    } catch (const InvalidArgument& error) {
      EXPECT_STREQ(error.what(), text);
    }
  };
  options.nccl.device_index = 8;
  expect("nccl: device_index is 8, must be in [0, 8)");
  options.nccl = {.traffic_class = 3};
  options.timeout = std::chrono::milliseconds(0);
  expect("nccl: timeout is 0 ms, must be positive");
  options.timeout = std::chrono::milliseconds(100);
  options.pacing.bits_per_second = 1e6;
  expect("nccl: links cannot be paced here");
}

}  // namespace
}  // namespace gradwire::transport_test
