// The all-reduces and all-gathers that run in rounds, over every transport: what they deliver, to the
// bit, and what they send.

#include "tests/comm/verb_data.h"

namespace gradwire::transport_test {
namespace {

/// Groups of up to 6 ranks: one and two levels, with and without ranks left over.
class Rounds : public Verbs {
 protected:
  void on_ranks(const std::function<void(Rank)>& body) const {
    for (const int size : {1, 2, 3, 4, 6}) {
      SCOPED_TRACE(testing::Message() << size << " ranks");
      expect_all_fine(run_ranks(GetParam(), size, {}, body));
    }
  }
};

uint64_t shard_size(size_t count, int size, int r) {
  const auto ranks = static_cast<uint64_t>(size);
  const auto index = static_cast<uint64_t>((r + size) % size);
  return count / ranks + (index < count % ranks ? 1 : 0);
}

/// Of the checksums behind the chunks of a message with room for so many bytes: chunks have an eighth
/// of it in units of 128 KiB, at least one and at most 8 of them.
uint64_t checksums_behind(uint64_t bytes) {
  const uint64_t chunk = kChunk * std::clamp<uint64_t>(bytes / 8 / kChunk, 1, 8);
  return bytes <= kInline ? 0 : 4 * ((bytes - kInline + chunk - 1) / chunk);
}

/// Shard s: s + 1 first, around to s.
std::vector<float> sum_around(int size, size_t count) {
  std::vector<float> sum;
  for (int s = 0; s < size; ++s) {
    for (uint64_t n = shard_size(count, size, s); n-- > 0;) {
      const size_t i = sum.size();
      float total = value_of((s + 1) % size, i);
      for (int step = 2; step <= size; ++step) {
        total += value_of((s + step) % size, i);
      }
      sum.push_back(total);
    }
  }
  return sum;
}

/// First the ranks beyond the power of two are folded in, then pairs, pairs of pairs, ...
std::vector<float> sum_of_pairs(int size, size_t count) {
  int power = 1;
  while (2 * power <= size) {
    power *= 2;
  }
  std::vector<float> sum(count);
  for (size_t i = 0; i < count; ++i) {
    std::vector<float> terms;
    for (int r = 0; r < size; ++r) {
      if (r < 2 * (size - power) && r % 2 == 1) {
        terms.back() += value_of(r, i);
      } else {
        terms.push_back(value_of(r, i));
      }
    }
    while (terms.size() > 1) {
      for (size_t pair = 0; pair < terms.size() / 2; ++pair) {
        terms[pair] = terms[2 * pair] + terms[2 * pair + 1];
      }
      terms.resize(terms.size() / 2);
    }
    sum[i] = terms[0];
  }
  return sum;
}

TEST_P(Rounds, AllReducesSumInTheirStatedOrderToTheBit) {
  on_ranks([](Rank self) {
    for (const AllReduce algorithm : kAllReduces) {
      for (const size_t count : kCounts) {
        SCOPED_TRACE(testing::Message() << int(algorithm) << ", " << count << " values");
        std::vector<float> values = values_of(self.rank, count);
        self.transport.all_reduce_sum(values, by(algorithm), self.context);
        self.context.stream.wait();
        const std::vector<float> sum = algorithm == AllReduce::kRing
                                           ? sum_around(self.size, count)
                                           : sum_of_pairs(self.size, count);
        EXPECT_TRUE(count == 0 || std::memcmp(values.data(), sum.data(), 4 * count) == 0);
      }
    }
  });
}

TEST_P(Rounds, AllGathersDeliverEveryPartToEveryoneAtItsTrueLength) {
  on_ranks([](Rank self) {
    for (const AllGather algorithm : kAllGathers) {
      for (const size_t length : sizes()) {
        SCOPED_TRACE(testing::Message() << int(algorithm) << ", " << length << " bytes");
        // Some ranks have nothing, one has much less than the others.
        const auto length_of = [&](int r) {
          return r % 4 == 2 ? 0 : r % 4 == 3 ? length / 7 : length - std::min<size_t>(length, 3);
        };
        Buffers all(self.size, length + 5);
        const size_t mine_length = length_of(self.rank);
        std::vector<std::byte> mine(length + 5);
        fill(mine, self.rank, -1);
        self.transport.all_gather(mine_length, mine, all.parts, by(algorithm), self.context);
        self.context.stream.wait();
        for (int r = 0; r < self.size; ++r) {
          all.expect_part(r, length_of(r), r, -1);
        }
      }
    }
  });
}

TEST_P(Rounds, AllGathersTakeTheOwnPartInPlace) {
  on_ranks([](Rank self) {
    for (const AllGather algorithm : kAllGathers) {
      const size_t stride = 100000, length = 90001;
      Buffers all(self.size, stride);
      const auto own = all.parts.bytes.subspan(static_cast<size_t>(self.rank) * stride, stride);
      fill(own.first(length), self.rank, -1);
      self.transport.all_gather(length, own, all.parts, by(algorithm), self.context);
      self.context.stream.wait();
      for (int r = 0; r < self.size; ++r) {
        all.expect_part(r, length, r, -1);
      }
    }
  });
}

TEST_P(Rounds, CountersAreExactlyPayloadsPlusFrames) {
  on_ranks([](Rank self) {
    const auto steps = static_cast<uint64_t>(self.size - 1);
    const auto sent_by = [&](const std::function<void()>& call) {
      const TrafficCounters before = self.transport.counters();
      call();
      self.context.stream.wait();
      const TrafficCounters after = self.transport.counters();
      return std::pair{after.bytes_sent - before.bytes_sent,
                       after.frames_sent - before.frames_sent};
    };
    for (const size_t count : {size_t{3}, size_t{1003}, size_t{100001}}) {
      SCOPED_TRACE(count);
      std::vector<float> values(count, 1.0f);
      const auto reduce = [&](AllReduce algorithm) {
        return sent_by([&] {
          self.transport.all_reduce_sum(values, by(algorithm), self.context);
        });
      };
      const auto ring = reduce(AllReduce::kRing);
      // All shards but the own, then all sums but the next rank's.
      uint64_t bytes = 2 * steps * kHeader;
      for (int r = 0; r < self.size; ++r) {
        const uint64_t shard = 4 * shard_size(count, self.size, r);
        const uint64_t times = r == self.rank || r == (self.rank + 1) % self.size ? 1 : 2;
        bytes += self.size == 1 ? 0 : times * (shard + checksums_behind(shard));
      }
      EXPECT_EQ(ring.first, bytes);
      EXPECT_EQ(ring.first, all_reduce_bytes_sent(AllReduce::kRing, count,
                                                  {self.rank, self.size}));
      EXPECT_EQ(ring.second, 2 * steps);
      EXPECT_EQ(reduce(AllReduce::kRabenseifner).first,
                all_reduce_bytes_sent(AllReduce::kRabenseifner, count, {self.rank, self.size}));
      EXPECT_EQ(reduce(AllReduce::kRankOrder).first,
                all_reduce_bytes_sent(AllReduce::kRankOrder, count, {self.rank, self.size}));
    }

    const auto length_of = [&](int r) {
      return size_t{10000} * static_cast<size_t>((r + self.size) % self.size + 1) + 1;
    };
    Buffers all(self.size, kMiB);
    std::vector<std::byte> mine(length_of(self.rank));
    const auto gather = [&](AllGather algorithm) {
      const size_t length = mine.size();
      return sent_by([&] {
        self.transport.all_gather(length, mine, all.parts, by(algorithm), self.context);
      });
    };
    uint64_t around = 0, doubling = 0, messages = 0;
    for (int back = 0; back < self.size - 1; ++back) {
      around += kHeader + length_of(self.rank - back) + checksums_behind(kMiB);
    }
    for (int distance = 1; distance < self.size; distance *= 2, ++messages) {
      const int parts = std::min(distance, self.size - distance);
      doubling += kHeader + checksums_behind(static_cast<uint64_t>(parts) * (8 + kMiB));
      for (int back = 0; back < parts; ++back) {
        doubling += 8 + length_of(self.rank - back);
      }
    }
    EXPECT_EQ(gather(AllGather::kRing), (std::pair{around, steps}));
    EXPECT_EQ(gather(AllGather::kBruck), (std::pair{doubling, messages}));
  });
}

TEST(AllReduceBytes, OfRabenseifnerAreTwiceAllShardsButOneAndTheWholeWhereRanksAreFoldedIn) {
  // 4 ranks: a half and a quarter out, a quarter and a half back.
  EXPECT_EQ(all_reduce_bytes_sent(AllReduce::kRabenseifner, 400, {0, 4}), 4 * 600 + 4 * 64u);
  EXPECT_EQ(all_reduce_bytes_sent(AllReduce::kRabenseifner, 400, {3, 4}), 4 * 600 + 4 * 64u);
  // 6 ranks: 0 and 2 hand everything to 1 and 3, which hand the sum back.
  EXPECT_EQ(all_reduce_bytes_sent(AllReduce::kRabenseifner, 400, {0, 6}), 4 * 400 + 64u);
  EXPECT_EQ(all_reduce_bytes_sent(AllReduce::kRabenseifner, 400, {3, 6}), 4 * 1000 + 5 * 64u);
  EXPECT_EQ(all_reduce_bytes_sent(AllReduce::kRabenseifner, 400, {5, 6}), 4 * 600 + 4 * 64u);
  // Chunks of 128 KiB behind the first 8128 bytes: halves of 400 000 bytes have 3, quarters 2.
  EXPECT_EQ(all_reduce_bytes_sent(AllReduce::kRabenseifner, 200'000, {3, 4}),
            4 * 300'000 + 4 * 64 + 4 * (3 + 2 + 2 + 3u));
}

TEST_P(Rounds, CallsOfAllAlgorithmsFollowEachOther) {
  on_ranks([](Rank self) {
    std::vector<float> values(30000, 1.0f);
    float expected = 1.0f;
    std::vector<std::byte> mine(20000);
    fill(mine, self.rank, -1);
    for (int round = 0; round < 3; ++round) {
      Buffers around(self.size, 20000), doubling(self.size, 20000);
      const size_t length = mine.size();
      for (const AllReduce algorithm :
           {AllReduce::kRankOrder, AllReduce::kRing, AllReduce::kRabenseifner}) {
        self.transport.all_reduce_sum(values, by(algorithm), self.context);
        expected *= static_cast<float>(self.size);
      }
      self.transport.all_gather(length, mine, around.parts, by(AllGather::kRing), self.context);
      self.transport.all_gather(length, mine, doubling.parts, by(AllGather::kBruck), self.context);
      self.context.stream.wait();
      for (int r = 0; r < self.size; ++r) {
        around.expect_part(r, 20000, r, -1);
        doubling.expect_part(r, 20000, r, -1);
      }
    }
    EXPECT_EQ(values, std::vector<float>(30000, expected));
  });
}

INSTANTIATE_TEST_SUITE_P(AllTransports, Rounds, testing::ValuesIn(point_to_point_kinds()),
                         [](const auto& p) { return p.param; });

}  // namespace
}  // namespace gradwire::transport_test
