// What every exchange promises, over every row x compressor it accepts x dtype x world size.

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/comm/exchange_case.h"

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

DType dtype_sent(const CompressorSpec& spec, DType gradient) {
  return spec.values == ValueCodec::kFloat16    ? DType::kFloat16
         : spec.values == ValueCodec::kBFloat16 ? DType::kBFloat16
                                                : gradient;
}

// Elements rank r owns when whole chunks of 4096 are dealt out, the first ranks getting one more.
size_t owned_elements(size_t numel, int world_size, int r) {
  size_t owned = 0;
  const size_t chunks = (numel + 4095) / 4096;
  const size_t ranks = static_cast<size_t>(world_size);
  size_t chunk = 0;
  for (int owner = 0; owner < world_size; ++owner) {
    const size_t count = chunks / ranks + (static_cast<size_t>(owner) < chunks % ranks ? 1 : 0);
    for (size_t i = 0; i < count; ++i, ++chunk) {
      if (owner == r) {
        owned += std::min<size_t>(4096, numel - chunk * 4096);
      }
    }
  }
  return owned;
}

// A payload of `numel` elements that begin at a chunk, as kernels/compress/WIRE_FORMAT.md has it, for
// compressors that send every element.
size_t payload_bytes(const CompressorSpec& spec, DType dtype, size_t numel) {
  if (value_bits(spec.values, dtype) >= 16) {
    return 32 + size_of(dtype_sent(spec, dtype)) * numel;
  }
  const auto bits = static_cast<size_t>(value_bits(spec.values, dtype));
  size_t bytes = 32;
  for (size_t begin = 0; begin < numel; begin += 4096) {
    const size_t length = std::min<size_t>(4096, numel - begin);
    bytes += 4 * ((length + spec.block - 1) / spec.block) + (length * bits + 7) / 8;
  }
  return bytes;
}

// Floats of one all-reduce of the groups: values, 8 in the place of each header but the first, flags.
size_t summed_floats(const ExchangeCase& c) {
  size_t floats = 8 * (c.specs.size() - 1) + static_cast<size_t>(c.world_size);
  for (const size_t numel : c.numels) {
    floats += numel;
  }
  return floats;
}

// A message of a round: its header, its floats, and 4 bytes for each chunk of 128 KiB behind the
// first 8128 bytes.
uint64_t round_bytes(size_t floats) {
  const size_t bytes = 4 * floats;
  return 64 + bytes + (bytes > 8128 ? 4 * ((bytes - 8128 + 131071) / 131072) : 0);
}

// What rank r sends of `floats` that add up in flight, by the row's algorithm, step for step.
uint64_t expected_bytes_in_flight(const ExchangeCase& c, int r) {
  const size_t floats = summed_floats(c);
  const auto ranks = static_cast<size_t>(c.world_size), rank = static_cast<size_t>(r);
  const auto shard = [&](size_t owner) {
    return floats / ranks + (owner % ranks < floats % ranks ? 1 : 0);
  };
  uint64_t bytes = 0;
  if (c.exchange != "rabenseifner") {
    for (size_t step = 1; step < ranks; ++step) {
      bytes += c.exchange == "ring" ? round_bytes(shard(rank + ranks - step)) +
                                          round_bytes(shard(rank + ranks - step + 1))
                                    : 64 + 4 * shard(rank + step) + 64 + 4 * shard(rank);
    }
    return bytes;
  }
  size_t power = 1;
  while (2 * power <= ranks) {
    power *= 2;
  }
  const size_t pairs = ranks - power;
  size_t place = rank - pairs;
  if (rank < 2 * pairs) {
    bytes += round_bytes(floats);  // to the other of the pair: the values there, the sums back
    if (rank % 2 == 0) {
      return bytes;
    }
    place = rank / 2;
  }
  size_t shared = floats;
  for (; power > 1; power /= 2, place /= 2) {
    const size_t kept = place % 2 == 0 ? shared / 2 : shared - shared / 2;
    bytes += round_bytes(shared - kept) + round_bytes(kept);  // the latter later, on the way back
    shared = kept;
  }
  return bytes;
}

// Bytes rank r must send, frame headers of 64 bytes included.
uint64_t expected_bytes(const ExchangeCase& c, const RankResult& result, int r) {
  const auto others = static_cast<uint64_t>(c.world_size - 1);
  if (c.exchange == "sum" || c.exchange == "ring" || c.exchange == "rabenseifner") {
    return expected_bytes_in_flight(c, r);
  }
  if (c.exchange == "gather") {
    uint64_t message = 64;
    for (const GroupResult& group : result.groups) {
      message += group.payload_bytes;
    }
    return others * message;
  }
  uint64_t bytes = 0;
  for (int d = 0; d < c.world_size; ++d) {
    if (d == r) {
      continue;
    }
    bytes += 64 + 64;  // a frame of slices, a frame of merged payloads
    for (size_t g = 0; g < c.specs.size(); ++g) {
      const auto of_rank = [&](int owner) {
        return payload_bytes(c.specs[g], c.dtype, owned_elements(c.numels[g], c.world_size, owner));
      };
      bytes += of_rank(d) + of_rank(r);
    }
  }
  return bytes;
}

std::vector<RankResult> run(const ExchangeCase& c) {
  std::vector<RankResult> results(static_cast<size_t>(c.world_size));
  const auto ends = run_ranks(c.world_size, [&](Transport& transport) {
    results[static_cast<size_t>(transport.rank())] = exchange_on_rank(c, transport);
  });
  EXPECT_EQ(first_message(ends), "");
  return results;
}

void expect_bytes_as_stated(const ExchangeCase& c, const std::vector<RankResult>& results) {
  uint64_t sent = 0, received = 0;
  for (int r = 0; r < c.world_size; ++r) {
    const RankResult& result = results[static_cast<size_t>(r)];
    // Where lengths depend on what was chosen, the counter is compared with those the exchange
    // found, and with its bound.
    const bool follows =
        c.exchange == "gather" ||
        (c.exchange != "gtopk" && std::ranges::none_of(c.specs, [](const CompressorSpec& spec) {
           return find_compressor(spec.name).selector;
         }));
    const uint64_t expected =
        follows ? expected_bytes(c, result, r) : result.report.predicted_bytes_sent;
    EXPECT_EQ(result.counters.bytes_sent, expected);
    EXPECT_EQ(result.report.bytes_sent, expected);
    EXPECT_EQ(result.report.predicted_bytes_sent, expected);
    EXPECT_EQ(result.report.nonfinite_rank, -1);
    sent += result.report.bytes_sent;
    received += result.report.bytes_received;
    bool fixed = true;
    for (const GroupResult& group : result.groups) {
      EXPECT_LE(group.payload_bytes, group.capacity_bytes);
      fixed = fixed && group.fixed_length;
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
  const bool feedback = c.specs[g].error_feedback;
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

void expect_laws(const ExchangeCase& c) {
  SCOPED_TRACE(c.text());
  const auto results = run(c);
  if (testing::Test::HasFailure()) {
    return;
  }
  expect_bytes_as_stated(c, results);
  expect_same_bits(results);
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
  EXPECT_GE(cases, 2u * 5 * 5);  // one spec at least, with feedback and without
}

TEST_P(ExchangeLaws, HoldWhenTheGroupsOfABucketShareAMessage) {
  for (const DType dtype : kDTypes) {
    for (const CompressorSpec& spec : accepted_specs(GetParam(), dtype)) {
      for (const int world_size : {1, 3, 4}) {
        const char* const text = accepts(GetParam(), parse_spec("bf16"), dtype) ? "bf16" : "none";
        const bool carried = accepts(GetParam(), parse_spec(text), dtype);  // else the same beside it
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

INSTANTIATE_TEST_SUITE_P(Rows, ExchangeLaws,
                         testing::ValuesIn(flat_exchanges()),
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
