// What two_shot promises beyond the laws of every exchange: balanced regions, bounded messages,
// owners that keep the largest sums, and results that stay sparse.

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <numeric>

#include "gradwire/comm/exchange/regions.h"
#include "tests/comm/two_shot_rank.h"

namespace gradwire::test {
namespace {

constexpr size_t kNumel = 40 * 4096 + 100;
constexpr double kDensity = 0.01;

/// Which elements of `numel` a rank's gradient has large values at.
using Support = std::vector<size_t> (*)(size_t numel, int rank, int world_size);

std::vector<size_t> drawn(size_t numel, size_t begin, size_t end, unsigned seed) {
  std::mt19937 generator(seed);
  std::uniform_int_distribution<size_t> place(begin, end - 1);
  std::vector<size_t> support;
  for (size_t i = 0; i < static_cast<size_t>(kDensity * static_cast<double>(numel)); ++i) {
    support.push_back(place(generator));
  }
  return support;
}

struct NamedSupport {
  const char* name;
  Support support;
};
const NamedSupport kSupports[] = {
    {"random", [](size_t n, int rank, int) { return drawn(n, 0, n, 70u + static_cast<unsigned>(rank)); }},
    {"skewed", [](size_t n, int rank, int) { return drawn(n, 0, n / 8, 80u + static_cast<unsigned>(rank)); }},
    {"overlapping", [](size_t n, int, int) { return drawn(n, 0, n, 90u); }},
    {"disjoint",
     [](size_t n, int rank, int size) {
       const auto r = static_cast<size_t>(rank), p = static_cast<size_t>(size);
       return drawn(n, n * r / p, n * (r + 1) / p, 91u);
     }},
    {"one_chunk", [](size_t n, int rank, int) { return drawn(n, 8192, 12288, 95u + static_cast<unsigned>(rank)); }},
    {"empty", [](size_t, int, int) { return std::vector<size_t>{}; }},
};

void fill(std::span<float> gradient, std::span<const size_t> support, unsigned seed) {
  std::ranges::fill(gradient, 0.0f);
  const std::vector<float> values = random_values(support.size(), seed);
  for (size_t i = 0; i < support.size(); ++i) {
    gradient[support[i]] += values[i];
  }
}

TEST(TwoShot, LosesNothingAndSendsEveryElementOnceForAnySupport) {
  for (const char* text : {"topk:1%", "topk:1%,int4", "threshold:1%", "chunktopk:41/4096"}) {
    for (const NamedSupport& named : kSupports) {
      for (const int size : {1, 2, 3, 5, 8}) {
        SCOPED_TRACE(concat(text, ", ", named.name, ", ", size, " ranks"));
        std::vector<std::vector<float>> left(static_cast<size_t>(size)), means(left), given(left);
        const auto ends = run_ranks(size, [&](Transport& transport) {
          const auto r = static_cast<size_t>(transport.rank());
          Rank rank(parse_spec(text), transport, kNumel);
          const auto support = named.support(kNumel, transport.rank(), size);
          fill(rank.gradient, support, 40u + static_cast<unsigned>(r));
          given[r] = rank.gradient;
          means[r].resize(kNumel);
          rank.step(means[r]);
          left[r] = rank.residual[rank.parity];
          check(rank.report.bytes_sent == rank.report.predicted_bytes_sent, "bytes sent are ",
                rank.report.bytes_sent, ", predicted ", rank.report.predicted_bytes_sent);
        });
        ASSERT_EQ(first_message(ends), "");
        for (size_t i = 0; i < kNumel; ++i) {
          double lost = -size * double{means[0][i]}, magnitude = 0;
          for (size_t r = 0; r < means.size(); ++r) {
            lost += double{given[r][i]} - double{left[r][i]};
            magnitude += std::abs(double{given[r][i]});
          }
          ASSERT_LE(std::abs(lost), 1e-6 * magnitude) << "element " << i;
        }
        for (const std::vector<float>& mean : means) {
          ASSERT_TRUE(mean == means[0]);
        }
      }
    }
  }
}

// Entries of all ranks, as the gradients have them: the k largest of each.
TEST(TwoShot, KeepsTheLargestSumsOfEveryRegion) {
  constexpr int kRanks = 4;
  std::vector<std::vector<float>> means(kRanks), sums(1, std::vector<float>(kNumel));
  std::vector<uint64_t> edges;
  std::mutex mutex;
  const auto ends = run_ranks(kRanks, [&](Transport& transport) {
    Rank rank(parse_spec("topk:1%"), transport, kNumel);
    const auto r = static_cast<size_t>(transport.rank());
    const auto support = kSupports[0].support(kNumel, transport.rank(), kRanks);
    fill(rank.gradient, support, 7u + static_cast<unsigned>(r));
    means[r].resize(kNumel);
    rank.step(means[r]);
    GroupResult group;
    group.gradient = rank.gradient;
    const auto sent =
        decode(parse_spec("topk:1%"), DType::kFloat32, group, rank.payload, rank.context);
    std::lock_guard lock(mutex);
    for (size_t i = 0; i < kNumel; ++i) {
      sums[0][i] += sent[i];
    }
    edges = rank.exchange->state();
  });
  ASSERT_EQ(first_message(ends), "");
  ASSERT_EQ(edges.size(), size_t{kRanks} + 1);
  const auto most = static_cast<size_t>(std::ceil(1.25 * std::ceil(kDensity * kNumel) / kRanks));
  for (size_t r = 0; r < kRanks; ++r) {
    size_t kept = 0;
    float smallest_kept = INFINITY, largest_left = 0;
    for (size_t i = edges[r] * 4096; i < std::min<size_t>(edges[r + 1] * 4096, kNumel); ++i) {
      if (means[0][i] != 0) {
        ++kept;
        smallest_kept = std::min(smallest_kept, std::abs(sums[0][i]));
      } else {
        largest_left = std::max(largest_left, std::abs(sums[0][i]));
      }
    }
    EXPECT_LE(kept, most);
    EXPECT_GE(kept, most - most / 4) << "region " << r;
    EXPECT_GE(smallest_kept, 0.9999f * largest_left);  // sums here are not in rank order
  }
}

TEST(TwoShot, SendsAtMostTwoAndAFifthPayloads) {
  for (const int size : {4, 8, 16}) {
    const auto ends = run_ranks(size, [&](Transport& transport) {
      constexpr size_t kLarge = 400 * 4096;
      Rank rank(parse_spec("topk:1%"), transport, kLarge);
      rank.gradient = random_values(kLarge, 31u * static_cast<unsigned>(transport.rank()));
      std::mt19937 generator(static_cast<unsigned>(transport.rank()));
      std::shuffle(rank.gradient.begin(), rank.gradient.end(), generator);
      std::vector<float> none;
      rank.step(none);  // cuts the regions
      rank.step(none);
      check(10 * rank.report.bytes_sent <= 22 * rank.payload_bytes, "sent ", rank.report.bytes_sent,
            " bytes of a payload of ", rank.payload_bytes);
    });
    EXPECT_EQ(first_message(ends), "") << size << " ranks";
  }
}

// Gradients all in one chunk find little room: what does must change from step to step.
TEST(TwoShot, LetsEveryElementThroughInTheEnd) {
  const auto ends = run_ranks(4, [](Transport& transport) {
    constexpr size_t kSmall = 8 * 4096;
    Rank rank(parse_spec("topk:10%"), transport, kSmall);
    std::vector<double> total(kSmall);
    std::vector<float> mean(kSmall);
    constexpr int kSteps = 40;
    for (int step = 0; step < kSteps; ++step) {
      std::ranges::fill(rank.gradient, 0.0f);
      std::fill_n(rank.gradient.begin() + 4096, 4096, 1.0f);
      rank.step(mean);
      std::transform(total.begin(), total.end(), mean.begin(), total.begin(), std::plus<>());
    }
    for (size_t i = 4096; i < 8192; ++i) {
      check(total[i] > kSteps / 2, "element ", i, " got ", total[i], " of ", kSteps);
    }
  });
  EXPECT_EQ(first_message(ends), "");
}

TEST(TwoShot, LeavesTheMeanAsPayloadsWhereNoneIsAskedFor) {
  const auto ends = run_ranks(3, [](Transport& transport) {
    Rank dense(parse_spec("topk:1%"), transport, kNumel), sparse(parse_spec("topk:1%"), transport, kNumel);
    dense.gradient = sparse.gradient =
        random_values(kNumel, 3u + static_cast<unsigned>(transport.rank()));
    std::vector<float> mean(kNumel), none, decoded(kNumel);
    dense.step(mean);
    sparse.step(none);
    const ExchangeResult result = sparse.exchange->result(0);
    sparse.compressor->decompress(result.parts, result.scale, view_of(std::span(decoded)),
                                  sparse.context);
    sparse.stream->wait();
    check(decoded == mean, "the payloads decode to another mean");
  });
  EXPECT_EQ(first_message(ends), "");
}

TEST(TwoShot, ContinuesFromItsState) {
  const auto ends = run_ranks(3, [](Transport& transport) {
    Rank whole(parse_spec("topk:1%"), transport, kNumel), resumed(parse_spec("topk:1%"), transport, kNumel);
    std::vector<float> mean(kNumel), again(kNumel);
    for (unsigned step = 0; step < 5; ++step) {
      const auto gradient = random_values(kNumel, 9 * step + static_cast<unsigned>(transport.rank()));
      whole.gradient = resumed.gradient = gradient;
      whole.step(mean);
      if (step == 2) {  // as a checkpoint would
        resumed.residual[0] = whole.residual[whole.parity];
        resumed.compressor->set_step(whole.compressor->step());
        resumed.exchange->set_state(whole.exchange->state());
      } else if (step > 2) {
        resumed.step(again);
        check(again == mean, "step ", step, " differs");
      }
    }
  });
  EXPECT_EQ(first_message(ends), "");
}

TEST(TwoShot, SaysWhetherMeansAreRounded) {
  for (const auto& [spec, rounded] : std::vector<std::pair<const char*, bool>>{
           {"none", false}, {"randomk:1%", false}, {"bf16", true}, {"randomk:1%,int8", true},
           {"topk:1%", true}, {"dgc:1%", true}}) {
    const auto ends = run_ranks(2, [spec = spec, rounded = rounded](Transport& transport) {
      const Rank rank(parse_spec(spec), transport, 5000);
      check(rank.exchange->reencodes() == rounded, spec, ": expected ", rounded);
    });
    EXPECT_EQ(first_message(ends), "");
  }
}

TEST(TwoShot, RefusesASelectionWithoutFeedbackAndAForeignState) {
  const auto ends = run_ranks(2, [](Transport& transport) {
    CompressorShape shape;
    shape.numel = 100;
    const auto lossy = make_compressor(parse_spec("topk:1%,noef"), shape);
    try {
      make_exchange("two_shot", {{lossy.get()}, &transport, {}});
      check(false, "accepted");
    } catch (const InvalidArgument& error) {
      check(std::string(error.what()).find("error feedback") != std::string::npos, error.what());
    }
    Rank rank(parse_spec("topk:1%"), transport, kNumel);
    for (const std::vector<uint64_t>& state : {std::vector<uint64_t>{1, 2}, {0, 41, 40}, {0, 7, 99}}) {
      try {
        rank.exchange->set_state(state);
        check(false, "accepted");
      } catch (const InvalidArgument& error) {
        check(std::string(error.what()).find("expected") != std::string::npos, error.what());
      }
    }
    check(rank.exchange->state().empty(), "kept a part of it");
  });
  EXPECT_EQ(first_message(ends), "");
}

TEST(BalancedRegions, AreWithinHalfAChunkOfTheQuantiles) {
  std::mt19937 generator(4);
  for (int round = 0; round < 200; ++round) {
    const size_t chunks = 1 + generator() % 60;
    const int ranks = 1 + static_cast<int>(generator() % 9);
    std::vector<float> weights(chunks);
    for (float& weight : weights) {
      weight = static_cast<float>(generator() % 3 == 0 ? generator() % 400 : 0);
    }
    const size_t numel = chunks * 4096 - generator() % 4096;
    const auto regions = balanced_regions(numel, weights, ranks);
    ASSERT_EQ(regions.size(), static_cast<size_t>(ranks));
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    const double widest = *std::max_element(weights.begin(), weights.end());
    size_t end = 0;
    double before = 0;
    for (int r = 0; r < ranks; ++r) {
      const Region region = regions[static_cast<size_t>(r)];
      if (region.numel() > 0) {
        ASSERT_EQ(region.begin, end);
        for (size_t c = region.begin / 4096; c < (region.end + 4095) / 4096; ++c) {
          before += double{weights[c]};
        }
        end = region.end;
      }
      if (total > 0) {
        ASSERT_LE(std::abs(before - total * (r + 1) / ranks), widest / 2 + 1e-6);
      }
    }
    ASSERT_EQ(end, numel);
    ASSERT_EQ(regions_between(region_edges(regions, numel), numel), regions);
  }
}

}  // namespace
}  // namespace gradwire::test
