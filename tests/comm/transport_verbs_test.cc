// One suite for all transports: every verb against a naive result, at the sizes where the protocol
// changes its course.

#include <atomic>

#include "tests/comm/verb_data.h"

namespace gradwire::transport_test {
namespace {

TEST_P(Verbs, AllGatherDeliversEveryPartToEveryone) {
  on_ranks([](Rank self) {
    for (const size_t length : sizes()) {
      SCOPED_TRACE(length);
      // Ranks differ in length: true lengths travel, not capacities.
      const auto length_of = [&](int r) {
        return length == 0 ? 0 : length - static_cast<size_t>(r) % 3 % length;
      };
      Buffers all(self.size, length + 5);
      const size_t mine_length = length_of(self.rank);
      std::vector<std::byte> mine(length + 5);
      fill(mine, self.rank, -1);
      self.transport.all_gather(mine_length, mine, all.parts, kTag, self.context);
      self.context.stream.wait();
      for (int r = 0; r < self.size; ++r) {
        all.expect_part(r, length_of(r), r, -1);
      }
    }
  });
}

TEST_P(Verbs, AllGatherTakesTheOwnPartInPlace) {
  on_ranks([](Rank self) {
    const size_t stride = 100000, length = 90001;
    Buffers all(self.size, stride);
    const auto own = all.parts.bytes.subspan(static_cast<size_t>(self.rank) * stride, stride);
    fill(own.first(length), self.rank, -1);
    self.transport.all_gather(length, own, all.parts, kTag, self.context);
    self.context.stream.wait();
    for (int r = 0; r < self.size; ++r) {
      all.expect_part(r, length, r, -1);
    }
  });
}

TEST_P(Verbs, GatherWordsDeliversWhatEachHasPassed) {
  on_ranks([](Rank self) {
    const auto words_of = [](int r) {
      return std::string(static_cast<size_t>(r) * 1000, static_cast<char>('a' + r));
    };
    const auto all =
        self.transport.gather_words(words_of(self.rank), 1000 * 100, kTag, self.context);
    ASSERT_EQ(all.size(), static_cast<size_t>(self.size));
    for (int r = 0; r < self.size; ++r) {
      EXPECT_EQ(all[static_cast<size_t>(r)], words_of(r));
    }
  });
}

TEST_P(Verbs, AllToAllDeliversToEachItsOwnPart) {
  on_ranks([](Rank self) {
    for (const size_t length : sizes()) {
      SCOPED_TRACE(length);
      const auto length_of = [&](int from, int to) {
        return length == 0 ? 0 : length - static_cast<size_t>(from + 2 * to) % 4 % length;
      };
      Buffers send(self.size, length + 3), receive(self.size, length + 3);
      for (int d = 0; d < self.size; ++d) {
        const auto index = static_cast<size_t>(d);
        send.lengths[index] = length_of(self.rank, d);
        fill(send.parts.part(index), self.rank, d);
      }
      self.transport.all_to_all(send.parts, receive.parts, kTag, self.context);
      self.context.stream.wait();
      for (int r = 0; r < self.size; ++r) {
        receive.expect_part(r, length_of(r, self.rank), r, self.rank);
      }
    }
  });
}

TEST(VerbsTest, TheValuesTellOrdersOfSummationApart) {
  size_t differ = 0;
  for (size_t i = 0; i < 1000; ++i) {
    differ += (value_of(0, i) + value_of(1, i)) + value_of(2, i) !=
              value_of(0, i) + (value_of(1, i) + value_of(2, i));
  }
  EXPECT_GT(differ, 100u);
}

TEST_P(Verbs, AllReduceSumsInRankOrderToTheBit) {
  on_ranks([](Rank self) {
    for (const size_t count : kCounts) {
      SCOPED_TRACE(count);
      std::vector<float> values = values_of(self.rank, count);
      self.transport.all_reduce_sum(values, kTag, self.context);
      self.context.stream.wait();
      const std::vector<float> sum = sum_in_rank_order(self.size, count);
      EXPECT_TRUE(count == 0 || std::memcmp(values.data(), sum.data(), 4 * count) == 0);
    }
  });
}

TEST_P(Verbs, ReduceScatterGivesEachRankItsShard) {
  on_ranks([](Rank self) {
    for (const size_t count : kCounts) {
      SCOPED_TRACE(count);
      const std::vector<float> values = values_of(self.rank, count);
      // Balanced to within one, in order: the first count % size shards have one more.
      const size_t size = static_cast<size_t>(self.size), rank = static_cast<size_t>(self.rank);
      size_t begin = 0, length = 0;
      for (size_t r = 0; r <= rank; ++r) {
        begin += length;
        length = count / size + (r < count % size ? 1 : 0);
      }
      std::vector<float> out(length, -1.0f);
      self.transport.reduce_scatter(values, out, kTag, self.context);
      self.context.stream.wait();
      const std::vector<float> sum = sum_in_rank_order(self.size, count);
      EXPECT_TRUE(length == 0 || std::memcmp(out.data(), sum.data() + begin, 4 * length) == 0);
    }
  });
}

TEST_P(Verbs, BroadcastDeliversFromEveryRoot) {
  on_ranks([](Rank self) {
    for (int root = 0; root < self.size; ++root) {
      for (const size_t length : {size_t{0}, size_t{1}, kInline + 1, 2 * kMiB + 13}) {
        SCOPED_TRACE(length);
        std::vector<std::byte> bytes(length);
        if (self.rank == root) {
          fill(bytes, root, -1);
        }
        self.transport.broadcast(bytes, root, kTag, self.context);
        self.context.stream.wait();
        EXPECT_EQ(first_difference(bytes, root, -1), length);
      }
    }
  });
}

TEST_P(Verbs, BarrierHoldsUntilTheLastHasEntered) {
  std::atomic<int> entered[6] = {};
  on_ranks([&](Rank self) {
    for (int round = 1; round <= 20; ++round) {
      ++entered[self.size];
      self.transport.barrier(kTag, self.context);
      self.context.stream.wait();
      EXPECT_GE(entered[self.size].load(), round * self.size);
    }
  });
}

TEST_P(Verbs, CountersAreExactlyPayloadsPlusFrames) {
  if (GetParam() == "carrier") return;  // counted in transport_carrier_test.cc
  on_ranks([](Rank self) {
    const uint64_t peers = static_cast<uint64_t>(self.size) - 1;
    uint64_t sent = 0, received = 0, frames = 0;
    const auto expect = [&](const char* what) {
      const TrafficCounters now = self.transport.counters();
      EXPECT_EQ(now.bytes_sent, sent) << what;
      EXPECT_EQ(now.bytes_received, received) << what;
      EXPECT_EQ(now.frames_sent, frames) << what;
    };
    expect("nothing yet");
    const size_t stride = 2 * kMiB;
    const auto length_of = [](int r) { return size_t{100000} * static_cast<size_t>(r + 1) + 1; };
    Buffers all(self.size, stride);
    std::vector<std::byte> mine(length_of(self.rank));
    self.transport.all_gather(mine.size(), mine, all.parts, kTag, self.context);
    self.context.stream.wait();
    sent += peers * (kHeader + mine.size());
    for (int r = 0; r < self.size; ++r) {
      received += r == self.rank ? 0 : kHeader + length_of(r);
    }
    frames += peers;
    expect("all_gather");

    // All-to-all of shards, then all-gather of sums; shard r of 1003 floats.
    const auto shard = [&](int r) {
      return uint64_t{1003} / static_cast<uint64_t>(self.size) +
             (static_cast<uint64_t>(r) < uint64_t{1003} % static_cast<uint64_t>(self.size) ? 1 : 0);
    };
    std::vector<float> values(1003, 1.0f);
    self.transport.all_reduce_sum(values, kTag, self.context);
    self.context.stream.wait();
    const uint64_t own = 4 * shard(self.rank), others = 4 * 1003 - own;
    sent += peers * kHeader + others + peers * (kHeader + own);
    received += peers * (kHeader + own) + peers * kHeader + others;
    frames += 2 * peers;
    expect("all_reduce_sum");

    self.transport.barrier(kTag, self.context);
    self.context.stream.wait();
    sent += peers * kHeader;
    received += peers * kHeader;
    frames += peers;
    expect("barrier");

    std::vector<std::byte> news(12345);
    self.transport.broadcast(news, 0, kTag, self.context);
    self.context.stream.wait();
    sent += self.rank == 0 ? peers * (kHeader + 12345) : 0;
    received += self.rank == 0 ? 0 : kHeader + 12345;
    frames += self.rank == 0 ? peers : 0;
    expect("broadcast");
  });
}

TEST_P(Verbs, SplitMakesGroupsThatDoNotMix) {
  on_ranks([](Rank self) {
    // Even and odd ranks; then everyone alone; both while the parent goes on.
    const auto half = self.transport.split(self.rank % 2);
    const auto alone = self.transport.split(self.rank);
    EXPECT_EQ(half->rank(), self.rank / 2);
    EXPECT_EQ(half->world_size(), (self.size + 1 - self.rank % 2) / 2);
    EXPECT_EQ(alone->world_size(), 1);
    for (int round = 0; round < 3; ++round) {
      std::vector<float> world(10, 1.0f), part(10, static_cast<float>(self.rank)), own(10, 5.0f);
      self.transport.all_reduce_sum(world, kTag, self.context);
      half->all_reduce_sum(part, kTag, self.context);
      alone->all_reduce_sum(own, kTag, self.context);
      self.context.stream.wait();
      float expected = 0;
      for (int r = self.rank % 2; r < self.size; r += 2) {
        expected += static_cast<float>(r);
      }
      EXPECT_EQ(world, std::vector<float>(10, static_cast<float>(self.size)));
      EXPECT_EQ(part, std::vector<float>(10, expected));
      EXPECT_EQ(own, std::vector<float>(10, 5.0f));
    }
    // A group split from a group.
    const auto reunited = half->split(0);
    EXPECT_EQ(reunited->world_size(), half->world_size());
    EXPECT_EQ(reunited->counters().bytes_sent, 0u);
  });
}

TEST_P(Verbs, GroupsMayRunAtTheSameTimeOnStreamsOfTheirOwn) {
  on_ranks([](Rank self) {
    const auto half = self.transport.split(self.rank % 2);
    const auto first = make_cpu_stream(), second = make_cpu_stream();
    Workspace first_workspace, second_workspace;
    Context here{*first, first_workspace}, there{*second, second_workspace};
    std::vector<float> world(50000, 1.0f), part(50000, 1.0f);
    float expected_world = 1.0f, expected_part = 1.0f;
    // Ranks begin with different groups, and the groups' calls interleave as they like.
    for (int round = 0; round < 5; ++round) {
      if (self.rank < 2) {
        self.transport.all_reduce_sum(world, kTag, here);
        half->all_reduce_sum(part, kTag, there);
      } else {
        half->all_reduce_sum(part, kTag, there);
        self.transport.all_reduce_sum(world, kTag, here);
      }
      expected_world *= static_cast<float>(self.size);
      expected_part *= static_cast<float>(half->world_size());
    }
    first->wait();
    second->wait();
    EXPECT_EQ(world, std::vector<float>(50000, expected_world));
    EXPECT_EQ(part, std::vector<float>(50000, expected_part));
  });
}

TEST_P(Verbs, CallsQueueOnAStreamWithoutWaiting) {
  on_ranks([](Rank self) {
    const auto stream = make_cpu_stream({.threads = 2, .name = "test"});
    Workspace workspace;
    Context context{*stream, workspace};
    std::vector<float> values(5000, 1.0f);
    size_t length = 0;  // read when the stream reaches the call
    std::vector<std::byte> mine(64);
    Buffers all(self.size, 64);
    for (int i = 0; i < 3; ++i) {
      self.transport.all_reduce_sum(values, kTag, context);
    }
    stream->enqueue([&] { length = 40; });
    self.transport.all_gather(length, mine, all.parts, kTag, context);
    stream->wait();
    const float size = static_cast<float>(self.size);
    EXPECT_EQ(values, std::vector<float>(5000, size * size * size));
    EXPECT_EQ(all.lengths, std::vector<size_t>(static_cast<size_t>(self.size), 40));
  });
}

INSTANTIATE_TEST_SUITE_P(AllTransports, Verbs, testing::ValuesIn(kinds()),
                         [](const auto& p) { return p.param; });

}  // namespace
}  // namespace gradwire::transport_test
