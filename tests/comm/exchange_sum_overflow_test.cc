// Gradients that are finite and whose sum is not: every exchange, over every compressor it accepts
// and every dtype that can hold them, says so on all ranks, and blames none of them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/comm/exchange_case.h"

namespace gradwire::test {
namespace {

constexpr size_t kNumel = 9000;  // two chunks and a part of one
constexpr float kLarge = 3e38f;

/// Which elements are kLarge, on every rank.
struct Place {
  const char* name;
  size_t begin, end;
};
constexpr Place kPlaces[] = {{"all", 0, kNumel},
                             {"in the middle", 4999, 5000},
                             {"the last", kNumel - 1, kNumel},
                             {"nowhere", 0, 0}};

/// What one rank sent, and what an exchange made of it.
struct Found {
  std::vector<float> sent, left;
  std::vector<std::byte> mean;
  ExchangeReport report;
};

struct Case {
  std::string_view exchange;
  CompressorSpec spec;
  DType dtype;
  Place place;
  int ranks;
  bool handed_on = false;  ///< the result stays as payloads

  std::string text() const {
    return concat(exchange, " ", to_string(spec), " ", to_string(dtype), " ", place.name, " ",
                  ranks, " ranks", handed_on ? ", payloads" : "");
  }
};

Found exchange(const Case& c, Transport& transport) {
  const auto stream = make_inline_stream();
  Workspace workspace;
  Context context{*stream, workspace};
  const auto compressor = make_compressor(c.spec, {.numel = kNumel,
                                                   .dtype = c.dtype,
                                                   .seed = 5,
                                                   .rank = transport.rank(),
                                                   .world_size = c.ranks});
  std::vector<float> values = random_values(kNumel, static_cast<unsigned>(transport.rank()));
  std::fill(values.begin() + static_cast<ptrdiff_t>(c.place.begin),
            values.begin() + static_cast<ptrdiff_t>(c.place.end), kLarge);
  Found found{.sent = {}, .left = {}, .mean = as_bytes(values, c.dtype), .report = {}};
  const Gradient gradient{found.mean.data(), kNumel, c.dtype, {}};
  const std::vector<float> e(c.spec.feedback.on ? kNumel : 0);
  found.left.resize(e.size());
  std::vector<std::byte> payload(compressor->capacity_bytes());
  compressor->compress(gradient, e, found.left, payload, context);
  check(payload[offsetof(PayloadHeader, flags)] == std::byte{0}, "the gradient itself is flagged");
  GroupResult group;
  group.gradient.resize(kNumel);
  found.sent = decode(c.spec, c.dtype, group, payload, context);
  const auto exchange =
      make_exchange(c.exchange, {{compressor.get()}, &transport, {1, "bucket 0"}});
  const GroupSlot slot{compressor.get(), payload, found.left,
                       c.handed_on ? gradient.subview(0, 0) : gradient};
  exchange->run({&slot, 1}, found.report, context);
  stream->wait();
  return found;
}

// An element is enough. Values are of one sign where they are large, so that any order overflows.
bool sum_overflows(const std::vector<Found>& found) {
  for (size_t i = 0; i < kNumel; ++i) {
    float sum = 0;
    for (const Found& rank : found) {
      sum += rank.sent[i];
    }
    if (!std::isfinite(sum)) {
      return true;
    }
  }
  return false;
}

bool all_finite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float x) { return std::isfinite(x); });
}

// @returns whether the sum overflows.
bool expect_refused_where_it_overflows(const Case& c) {
  SCOPED_TRACE(c.text());
  std::vector<Found> found(static_cast<size_t>(c.ranks));
  const auto ends = run_ranks(c.ranks, [&](Transport& transport) {
    found[static_cast<size_t>(transport.rank())] = exchange(c, transport);
  });
  EXPECT_EQ(first_message(ends), "");
  if (testing::Test::HasFailure()) {
    return false;
  }
  const bool overflows = sum_overflows(found);
  for (const Found& rank : found) {
    EXPECT_EQ(rank.report.nonfinite_rank, -1) << "a rank is blamed";
    EXPECT_EQ(rank.report.overflows, found[0].report.overflows) << "ranks disagree";
    EXPECT_TRUE(!overflows || !rank.report.finite()) << "the infinite sum would be committed";
    EXPECT_TRUE(c.place.begin < c.place.end || rank.report.finite()) << "refused without a cause";
    if (rank.report.finite()) {
      EXPECT_TRUE(all_finite(rank.left)) << "an infinite residual would be committed";
      dispatch(c.dtype, [&]<class T>() {
        const std::span<const T> mean(reinterpret_cast<const T*>(rank.mean.data()), kNumel);
        EXPECT_TRUE(std::ranges::all_of(mean, [](T x) { return std::isfinite(to_float(x)); }))
            << "an infinite mean would be committed";
      });
    }
  }
  return overflows;
}

class SumsThatOverflow : public testing::TestWithParam<size_t> {};

TEST_P(SumsThatOverflow, AreRefusedOnEveryRankAndBlameNone) {
  const ExchangeRow row = flat_exchanges()[GetParam()];
  size_t cases = 0, overflowed = 0;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const CompressorSpec& spec : accepted_specs(row, dtype)) {
      size_t of_spec = 0;
      for (const Place& place : kPlaces) {
        for (const int ranks : {2, 3}) {
          ++cases;
          const bool overflows =
              expect_refused_where_it_overflows({row.name, spec, dtype, place, ranks});
          if (HasFailure()) {
            return;  // one case says enough
          }
          of_spec += overflows ? 1 : 0;
        }
      }
      // float16 saturates, and a clipped gradient is small.
      EXPECT_EQ(of_spec > 0, spec.codec.values != ValueCodec::kFloat16 && spec.feedback.clip == 0)
          << to_string(spec) << " " << to_string(dtype) << ": " << of_spec << " sums overflowed";
      overflowed += of_spec;
    }
  }
  std::printf("%zu of %zu sums overflowed\n", overflowed, cases);
}

TEST_P(SumsThatOverflow, AreRefusedWhereTheyAreHandedOnAsPayloads) {
  const ExchangeRow row = flat_exchanges()[GetParam()];
  for (const CompressorSpec& spec : accepted_specs(row, DType::kFloat32)) {
    for (const Place& place : kPlaces) {
      if (!find_compressor(spec.name).low_rank()) {
        expect_refused_where_it_overflows({row.name, spec, DType::kFloat32, place, 2, true});
      }
      if (HasFailure()) {
        return;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, SumsThatOverflow, testing::Range<size_t>(0, flat_exchanges().size()),
                         [](const auto& tested) {
                           return std::string(flat_exchanges()[tested.param].name);
                         });

// A NaN on another rank is that rank's doing, whatever else overflows.
TEST(SumsThatOverflowToo, LeaveTheBlameWithTheRankWhoseGradientHoldsNaN) {
  for (const ExchangeRow& row : flat_exchanges()) {
    SCOPED_TRACE(row.name);
    std::vector<ExchangeReport> reports(3);
    const auto ends = run_ranks(3, [&](Transport& transport) {
      const auto stream = make_inline_stream();
      Workspace workspace;
      Context context{*stream, workspace};
      const auto compressor = make_compressor(parse_spec("none"), {.numel = kNumel});
      std::vector<float> gradient(kNumel, kLarge);
      gradient[7] = transport.rank() == 2 ? NAN : kLarge;
      std::vector<std::byte> payload(compressor->capacity_bytes());
      const GroupSlot slot{compressor.get(), payload, {}, view_of(std::span(gradient))};
      compressor->compress(slot.mean, {}, {}, payload, context);
      const auto exchange = make_exchange(row.name, {{compressor.get()}, &transport, {1, "b"}});
      exchange->run({&slot, 1}, reports[static_cast<size_t>(transport.rank())], context);
      stream->wait();
    });
    EXPECT_EQ(first_message(ends), "");
    for (const ExchangeReport& report : reports) {
      EXPECT_EQ(report.nonfinite_rank, 2);
    }
  }
}

// What a meeting leaves out overflows in the residual of its lowest rank: the others, who keep
// nothing, hear of it, whichever meeting it was.
TEST(RestsThatOverflow, InOneRankOfATreeAreToldToAll) {
  for (const char* text : {"topk:25%", "chunktopk:1024/4096", "threshold:25%"}) {
    for (const int ranks : {2, 3, 4, 5}) {
      for (const int other : {1, ranks - 1}) {
        for (const float scale : {1.0f, 0.5f}) {
          SCOPED_TRACE(concat(text, " ", ranks, " ranks, with rank ", other, " times ", scale));
          std::vector<ExchangeReport> reports(static_cast<size_t>(ranks));
          std::vector<float> kept(reports.size());
          const auto ends = run_ranks(ranks, [&](Transport& transport) {
            const int rank = transport.rank();
            const auto stream = make_inline_stream();
            Workspace workspace;
            Context context{*stream, workspace};
            const auto compressor = make_compressor(parse_spec(text), {.numel = 4, .rank = rank});
            // Rank 0 sends element 0 and keeps 3e38 of element 1, of which the other one sends
            // less.
            std::vector<float> gradient(4, 0.0f);
            if (rank == 0) {
              gradient = {3.3e38f * scale, 3e38f * scale, 0, 0};
            } else if (rank == other) {
              gradient[1] = 1e38f * scale;
            }
            const std::vector<float> e(4);
            std::vector<float> left(4);
            std::vector<std::byte> payload(compressor->capacity_bytes());
            compressor->compress(view_of(std::span<const float>(gradient)), e, left, payload,
                                 context);
            const auto exchange =
                make_exchange("gtopk", {{compressor.get()}, &transport, {1, "b"}});
            std::vector<float> mean(4);
            const GroupSlot slot{compressor.get(), payload, left, view_of(std::span(mean))};
            ExchangeReport& report = reports[static_cast<size_t>(rank)];
            exchange->run({&slot, 1}, report, context);
            stream->wait();
            check(report.bytes_sent == report.predicted_bytes_sent, report.bytes_sent, " bytes, ",
                  report.predicted_bytes_sent, " predicted");
            kept[static_cast<size_t>(rank)] = left[1];
          });
          EXPECT_EQ(first_message(ends), "");
          EXPECT_EQ(std::isfinite(kept[0]), scale < 1) << "rank 0 keeps " << kept[0];
          for (const ExchangeReport& report : reports) {
            EXPECT_EQ(report.nonfinite_rank, -1);
            EXPECT_EQ(report.overflows, scale == 1);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace gradwire::test
