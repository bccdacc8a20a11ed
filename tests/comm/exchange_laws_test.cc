// What every exchange promises, over every row x compressor it accepts x dtype x world size.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "tests/comm/exchange_case.h"
#include "tests/comm/exchange_sparse_bytes.h"

namespace gradwire {

void PrintTo(const ExchangeRow& row, std::ostream* out) { *out << row.name; }

}  // namespace gradwire

namespace gradwire::test {
namespace {

constexpr DType kDTypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
constexpr int kWorldSizes[] = {1, 2, 3, 4, 7};
// ThreadSanitizer looks for races, which do not depend on the case: a quarter of them in its time.
#if defined(__SANITIZE_THREAD__)
constexpr size_t kEvery = 4;
#else
constexpr size_t kEvery = 1;
#endif
constexpr size_t kNumels[] = {1, 5, 4096, 4097, 40000};

// Largest relative error of rounding to nearest in this dtype, and the absolute one where it is
// subnormal.
double relative_rounding(DType dtype) {
  return dtype == DType::kFloat32 ? 0x1p-24 : dtype == DType::kFloat16 ? 0x1p-11 : 0x1p-8;
}
double absolute_rounding(DType dtype) { return dtype == DType::kFloat16 ? 0x1p-25 : 0x1p-130; }

std::vector<RankResult> run(const ExchangeCase& c) {
  std::vector<RankResult> results(static_cast<size_t>(c.world_size));
  const auto ends = run_ranks(c.world_size, [&](Transport& transport) {
    results[static_cast<size_t>(transport.rank())] = exchange_on_rank(c, transport);
  });
  EXPECT_EQ(first_message(ends), "");
  return results;
}

// Of the formats that WIRE_FORMAT.md calls dense, block-quantized, drawn and, here without a
// matrix, low rank; of sparse payloads those with float32 values, of which none is rounded to 0.
void expect_length_as_stated(const CompressorSpec& spec, DType dtype, const GroupResult& group) {
  if (group.format == 1 || group.format == 2 || group.format == 4 || group.format == 5) {
    EXPECT_TRUE(group.fixed_length);
    EXPECT_EQ(group.payload_bytes, payload_bytes(spec, dtype, group.gradient.size()));
  } else if (group.format == 3 && spec.codec.values == ValueCodec::kFloat32) {
    EXPECT_EQ(group.payload_bytes, sparse_payload_bytes(spec, group.sent.size(), group.sent));
  }
}

// Ranks whose bytes followed from payloads and the exchange's definition, and those whose did not.
size_t g_stated = 0, g_found = 0;

void expect_bytes_as_stated(const ExchangeCase& c, const std::vector<RankResult>& results) {
  uint64_t sent = 0, received = 0;
  for (int r = 0; r < c.world_size; ++r) {
    const RankResult& result = results[static_cast<size_t>(r)];
    // Where an exchange's lengths depend on values rounded on the way, the counter is compared with
    // those the exchange found, and with its bound.
    const auto stated = stated_bytes(c, results, r);
    const uint64_t expected = stated ? *stated : result.report.predicted_bytes_sent;
    (stated ? g_stated : g_found) += 1;
    EXPECT_EQ(result.counters.bytes_sent, expected);
    EXPECT_EQ(result.report.bytes_sent, expected);
    EXPECT_EQ(result.report.predicted_bytes_sent, expected);
    EXPECT_EQ(result.report.nonfinite_rank, -1);
    sent += result.report.bytes_sent;
    received += result.report.bytes_received;
    bool fixed = true;
    for (size_t g = 0; g < c.specs.size(); ++g) {
      const GroupResult& group = result.groups[g];
      EXPECT_LE(group.payload_bytes, group.capacity_bytes);
      fixed = fixed && group.fixed_length;
      expect_length_as_stated(c.specs[g], c.dtype, group);
    }
    if (fixed) {
      EXPECT_EQ(result.predicted_from_capacity, expected);
    } else {
      EXPECT_GE(result.predicted_from_capacity, expected);
    }
  }
  EXPECT_EQ(sent, received);
}

void expect_same_bits(const std::vector<RankResult>& results) {
  for (size_t r = 1; r < results.size(); ++r) {
    for (size_t g = 0; g < results[r].groups.size(); ++g) {
      EXPECT_TRUE(results[r].groups[g].mean == results[0].groups[g].mean)
          << "ranks 0 and " << r << " differ in group " << g;
    }
  }
}

// The bits of a float32 loop over the ranks, unless the mean is rounded once more on the way.
void expect_serial_sum(const ExchangeCase& c, const std::vector<RankResult>& results, size_t g) {
  const float scale = 1.0f / static_cast<float>(c.world_size);
  std::vector<float> sums(c.numels[g], 0.0f);
  for (const RankResult& result : results) {
    for (size_t i = 0; i < sums.size(); ++i) {
      sums[i] += result.groups[g].sent[i];
    }
  }
  for (float& sum : sums) {
    sum *= scale;
  }
  EXPECT_TRUE(results[0].groups[g].mean == as_bytes(sums, c.dtype)) << "group " << g;
}

// world_size * mean + put-backs == what was sent, and with feedback also == g + e - e_next.
void expect_nothing_lost(const ExchangeCase& c, const std::vector<RankResult>& results, size_t g) {
  const double ranks = c.world_size;
  const DType wire = dtype_sent(c.specs[g], c.dtype);
  const bool feedback = c.specs[g].feedback.on;
  std::vector<double> means(c.numels[g]);
  for (size_t i = 0; i < means.size(); ++i) {
    for (const RankResult& result : results) {
      means[i] += double{result.groups[g].sent[i]} / ranks;
    }
  }
  for (size_t i = 0; i < c.numels[g]; ++i) {
    double sent = 0, put_back = 0, given = 0, kept = 0, magnitude = 0;
    for (const RankResult& result : results) {
      const GroupResult& group = result.groups[g];
      sent += group.sent[i];
      put_back += double{group.after[i]} - double{group.kept[i]};
      given += double{group.gradient[i]} + double{group.before[i]};
      kept += group.after[i];
      magnitude += std::abs(double{group.gradient[i]}) + std::abs(double{group.before[i]}) +
                   std::abs(double{group.sent[i]});
    }
    const double mean = results[0].groups[g].mean_at(i, c.dtype);
    double bound = 4 * (ranks + 2) * 0x1p-24 * magnitude;  // float32 sums and residuals
    bound += ranks * (relative_rounding(c.dtype) * std::abs(mean) + absolute_rounding(c.dtype));
    if (results[0].reencodes && !feedback) {  // rounded on the way and not put back
      bound += ranks * (relative_rounding(wire) * std::abs(mean) * 1.01 + absolute_rounding(wire));
      bound += ranks * quantum(c.specs[g], means, i);
      if (c.exchange == "gtopk") {  // of partial sums, at every meeting
        bound += 4 * relative_rounding(wire) * magnitude;
      }
    }
    const double lost = sent - ranks * mean - put_back;
    const double lost_of_given = feedback ? given - ranks * mean - kept : 0.0;
    if (!(std::abs(lost) <= bound && std::abs(lost_of_given) <= bound)) {
      ADD_FAILURE() << "element " << i << ": " << lost << " of what was sent and " << lost_of_given
                    << " of what was given are lost, at most " << bound << " may be";
      return;
    }
  }
}

// Elements of residuals that exchanges changed behind compressors of one round.
size_t g_put_back = 0;

void expect_put_backs_as_stated(const ExchangeCase& c, const std::vector<RankResult>& results) {
  for (const RankResult& result : results) {
    for (const GroupResult& group : result.groups) {
      for (size_t i = 0; i < group.kept.size() && group.rounds == 1; ++i) {
        g_put_back += group.after[i] != group.kept[i] ? 1 : 0;
      }
    }
  }
  EXPECT_TRUE(find_exchange(c.exchange).puts_back || g_put_back == 0);
}

void expect_laws(const ExchangeCase& c) {
  SCOPED_TRACE(c.text());
  const auto results = run(c);
  if (testing::Test::HasFailure()) {
    return;
  }
  expect_bytes_as_stated(c, results);
  expect_same_bits(results);
  expect_put_backs_as_stated(c, results);
  for (size_t g = 0; g < c.specs.size(); ++g) {
    if (!results[0].reencodes && find_exchange(c.exchange).rank_order) {
      expect_serial_sum(c, results, g);
    }
    expect_nothing_lost(c, results, g);
  }
}

class ExchangeLaws : public testing::TestWithParam<ExchangeRow> {};

TEST_P(ExchangeLaws, HoldForEveryCompressorDTypeWorldSizeAndLength) {
  size_t cases = 0;
  g_stated = g_found = g_put_back = 0;
  for (const DType dtype : kDTypes) {
    for (const CompressorSpec& spec : accepted_specs(GetParam(), dtype)) {
      for (const int world_size : kWorldSizes) {
        for (const size_t numel : kNumels) {
          if (cases++ % kEvery != 0) {
            continue;
          }
          expect_laws({.exchange = std::string(GetParam().name),
                       .specs = {spec},
                       .numels = {numel},
                       .dtype = dtype,
                       .world_size = world_size});
          if (HasFailure()) {
            return;  // one case says enough
          }
        }
      }
    }
  }
  std::printf("bytes of %zu ranks follow, of %zu are compared with those found on the way\n",
              g_stated, g_found);
  EXPECT_GT(g_stated, 0u);
  EXPECT_EQ(g_put_back > 0, GetParam().puts_back);
  EXPECT_GE(cases, 2u * 5 * 5);  // one spec at least, with feedback and without
}

TEST_P(ExchangeLaws, HoldWhenTheGroupsOfABucketShareAMessage) {
  g_put_back = 0;
  for (const DType dtype : kDTypes) {
    for (const CompressorSpec& spec : accepted_specs(GetParam(), dtype)) {
      for (const int world_size : {1, 3, 4}) {
        const char* const text = accepts(GetParam(), parse_spec("bf16"), dtype) ? "bf16" : "none";
        const bool carried =
            accepts(GetParam(), parse_spec(text), dtype);  // else the same beside it
        const CompressorSpec beside = carried ? parse_spec(text) : spec;
        expect_laws({.exchange = std::string(GetParam().name),
                     .specs = {beside, spec, beside},
                     .numels = {33, 20001, 4097},
                     .dtype = dtype,
                     .world_size = world_size});
        if (HasFailure()) {
          return;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, ExchangeLaws, testing::ValuesIn(flat_exchanges()),
                         [](const auto& tested) { return std::string(tested.param.name); });

TEST(Exchange, OfNoneInFloat32IsTheSerialSumOfTheGradients) {
  for (const ExchangeRow& row : flat_exchanges()) {
    if (!row.rank_order) {
      continue;
    }
    const ExchangeCase c{.exchange = std::string(row.name),
                         .specs = {parse_spec("none")},
                         .numels = {9001},
                         .world_size = 3};
    SCOPED_TRACE(c.text());
    const auto results = run(c);
    for (size_t i = 0; i < 9001; ++i) {
      float sum = 0.0f;
      for (unsigned r = 0; r < 3; ++r) {
        sum += results[r].groups[0].gradient[i];
      }
      const float mean = results[2].groups[0].mean_at(i, DType::kFloat32);
      if (row.rank_order) {
        ASSERT_EQ(mean, sum * (1.0f / 3.0f)) << i;
      } else {
        ASSERT_NEAR(mean, sum * (1.0f / 3.0f), 1e-5f) << i;
      }
    }
  }
}

TEST(Exchange, RunsAgainInTheSameBuffers) {
  for (const ExchangeRow& row : flat_exchanges()) {
    SCOPED_TRACE(row.name);
    const auto ends = run_ranks(3, [&](Transport& transport) {
      const auto stream = make_inline_stream();
      Workspace workspace;
      Context context{*stream, workspace};
      CompressorShape shape;
      shape.numel = 5000;
      const auto compressor = make_compressor(parse_spec("none"), shape);
      const auto exchange =
          make_exchange(row.name, {{compressor.get()}, &transport, {1, "bucket 0"}});
      std::vector<std::byte> payload(compressor->capacity_bytes());
      for (int step = 0; step < 5; ++step) {
        std::vector<float> gradient(shape.numel, static_cast<float>(step + transport.rank()));
        const GroupSlot slot{compressor.get(), payload, {}, view_of(std::span(gradient))};
        compressor->compress(slot.mean, {}, {}, payload, context);
        ExchangeReport report;
        exchange->run({&slot, 1}, report, context);
        stream->wait();
        const float expected = static_cast<float>(3 * step + 3) * (1.0f / 3.0f);
        check(gradient == std::vector<float>(shape.numel, expected), "step ", step);
      }
    });
    EXPECT_EQ(first_message(ends), "");
  }
}

}  // namespace
}  // namespace gradwire::test
