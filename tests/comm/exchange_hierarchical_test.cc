// Ranks that share nodes: the reducer with the hierarchical exchange, against double-precision
// sums.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "gradwire/comm/reducer.h"
#include "tests/comm/exchange_case.h"
#include "tests/comm/reducer_case.h"

namespace gradwire::test {
namespace {

constexpr int kSteps = 6;

struct Topology {
  int world_size, ranks_per_node;
};
constexpr Topology kTopologies[] = {{1, 1}, {3, 1}, {2, 2}, {4, 2}, {6, 3}, {6, 2}, {8, 2}, {8, 8}};

Plan plan_of(const char* spec, DType dtype, int ranks_per_node) {
  const std::vector<ParamInfo> parameters = {
      {"bias", {5}}, {"weight", {90, 110}}, {"scalar", {}}, {"embedding", {30, 41}}};
  return make_plan(parameters, {.spec = parse_spec(spec),
                                .exchange = "hierarchical",
                                .bucket_bytes = 30000,
                                .dtype = dtype,
                                .seed = 3,
                                .ranks_per_node = ranks_per_node});
}

/// Gradients of one rank and step, of all parameters one after another.
std::vector<float> gradients(size_t numel, int rank, int step) {
  return random_values(numel, static_cast<unsigned>(100 * step + rank));
}

struct Ran {
  std::vector<double> given, means, residuals;  ///< sums over steps; residuals over the ranks too
  bool same_bits = true;
  uint64_t between = 0, predicted = 0;
};

/// With `changes_plan`, the first half of the steps gathers over all ranks.
Ran run(const char* spec, DType dtype, Topology topology, bool changes_plan = false) {
  const Plan plan = plan_of(spec, dtype, topology.ranks_per_node);
  Plan flat = plan;
  for (PlanBucket& bucket : flat.buckets) {
    bucket.exchange = "gather";
  }
  size_t numel = 0;
  for (const ParamInfo& parameter : plan.parameters) {
    numel += parameter.numel();
  }
  const auto ranks = static_cast<size_t>(topology.world_size);
  std::vector<std::vector<float>> means(ranks * kSteps), residuals(ranks);
  Ran ran{std::vector<double>(numel), std::vector<double>(numel), std::vector<double>(numel)};
  const auto ends = run_ranks(topology.world_size, [&](Transport& transport) {
    Reducer reducer(changes_plan ? flat : plan, transport, {.streams = 2});
    const auto r = static_cast<size_t>(transport.rank());
    for (int step = 0; step < kSteps; ++step) {
      if (changes_plan && step == kSteps / 2) {
        reducer.set_plan(plan);  // residuals of all elements become residuals of shares
      }
      const std::vector<float> values = gradients(numel, transport.rank(), step);
      size_t begin = 0;
      for (ParamId p = 0; p < plan.parameters.size(); ++p) {
        const Gradient g = reducer.gradient(p);
        const auto bytes = as_bytes({values.begin() + static_cast<ptrdiff_t>(begin),
                                     values.begin() + static_cast<ptrdiff_t>(begin + g.numel)},
                                    dtype);
        std::memcpy(g.data, bytes.data(), bytes.size());
        begin += g.numel;
        reducer.grad_ready(p);
      }
      check(reducer.wait() == StepOutcome::kCommitted, "skipped");
      std::vector<float>& mean = means[static_cast<size_t>(step) * ranks + r];
      for (ParamId p = 0; p < plan.parameters.size(); ++p) {
        const Gradient g = reducer.gradient(p);
        dispatch(dtype, [&]<class T>() {
          for (const T value : g.as<T>()) {
            mean.push_back(to_float(value));
          }
        });
      }
      for (const BucketTrace& bucket : reducer.trace().last().buckets) {
        check(bucket.bytes_sent == bucket.predicted_bytes_sent, "sent ", bucket.bytes_sent,
              " bytes, predicted ", bucket.predicted_bytes_sent);
      }
    }
    for (ParamId p = 0; p < plan.parameters.size(); ++p) {
      const ConstResidual residual = reducer.residual(p);
      residuals[r].insert(residuals[r].end(), residual.begin(), residual.end());
      residuals[r].resize(residuals[r].size() + plan.parameters[p].numel() - residual.size());
    }
  });
  EXPECT_EQ(first_message(ends), "");
  for (size_t step = 0; step < kSteps && first_message(ends).empty(); ++step) {
    for (size_t r = 0; r < ranks; ++r) {
      ran.same_bits = ran.same_bits && means[step * ranks + r] == means[step * ranks];
      const auto given = gradients(numel, static_cast<int>(r), static_cast<int>(step));
      for (size_t i = 0; i < numel; ++i) {
        dispatch(dtype, [&]<class T>() { ran.given[i] += to_float(from_float<T>(given[i])); });
        ran.residuals[i] += step == 0 ? double{residuals[r][i]} : 0.0;
      }
    }
    for (size_t i = 0; i < numel; ++i) {
      ran.means[i] += double{means[step * ranks][i]};
    }
  }
  return ran;
}

TEST(Hierarchical, LosesNothingOverManyStepsAndGivesAllRanksTheSameBits) {
  for (const char* spec : {"none", "fp16,ef", "int4", "1bit", "topk:5%", "topk:5%,int8",
                           "chunktopk:200/4096", "threshold:5%"}) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const Topology topology : kTopologies) {
        SCOPED_TRACE(concat(spec, " of ", to_string(dtype), ", ", topology.world_size, " ranks, ",
                            topology.ranks_per_node, " per node"));
        const Ran ran = run(spec, dtype, topology);
        if (HasFailure()) {
          return;
        }
        EXPECT_TRUE(ran.same_bits);
        // 1-D parameters travel as bf16 without feedback; means are rounded to the dtype.
        const double rounding = 0x1p-8 * kSteps;
        for (size_t i = 0; i < ran.given.size(); ++i) {
          const double lost = ran.given[i] - topology.world_size * ran.means[i] - ran.residuals[i];
          const bool exact = dtype == DType::kFloat32 && i >= 5 && i != 5 + 9900;
          const double bound = (exact ? 1e-5 : 4 * rounding) * topology.world_size * 4;
          ASSERT_LE(std::abs(lost), bound) << "element " << i;
        }
      }
    }
  }
}

TEST(Hierarchical, TakesOverTheResidualsOfAFlatPlan) {
  for (const char* spec : {"int4", "topk:5%"}) {
    SCOPED_TRACE(spec);
    const Ran ran = run(spec, DType::kFloat32, {4, 2}, true);
    EXPECT_TRUE(ran.same_bits);
    for (size_t i = 5; i < 5 + 9900; ++i) {
      ASSERT_LE(std::abs(ran.given[i] - 4 * ran.means[i] - ran.residuals[i]), 2e-4) << i;
    }
  }
}

TEST(Hierarchical, SendsBetweenNodesAShareOfThePayload) {
  const auto ends = run_ranks(4, [](Transport& transport) {
    const auto stream = make_inline_stream();
    Workspace workspace;
    Context context{*stream, workspace};
    constexpr size_t kNumel = 100'001;
    const Region share = node_share(kNumel, transport.rank(), 2);
    CompressorShape shape;
    shape.numel = share.numel();
    const auto compressor = make_compressor(parse_spec("topk:1%"), shape);
    SubGroups groups(transport);
    const auto exchange = make_exchange("hierarchical", {.compressors = {compressor.get()},
                                                         .transport = &transport,
                                                         .tag = {1, "bucket 0"},
                                                         .groups = &groups,
                                                         .ranks_per_node = 2,
                                                         .group_numels = {kNumel}});
    std::vector<float> gradient = random_values(kNumel, 5), e(share.numel()), e_next(e);
    std::vector<std::byte> payload(compressor->capacity_bytes());
    const GroupSlot slot{compressor.get(), payload, e_next, view_of(std::span(gradient)), e};
    ExchangeReport report;
    exchange->run({&slot, 1}, report, context);
    stream->wait();
    const uint64_t between =
        groups.part("places in nodes of 2", transport.rank() % 2).counters().bytes_sent;
    check(between <= 500 * 8 + 2000, "sent ", between, " bytes between nodes");
    check(report.bytes_sent == groups.counters().bytes_sent, "reported ", report.bytes_sent);
  });
  EXPECT_EQ(first_message(ends), "");
}

TEST(Hierarchical, NamesARankThatWasNotFiniteAndRefusesUnevenNodes) {
  const auto ends = run_ranks(6, [](Transport& transport) {
    Reducer reducer(plan_of("topk:5%", DType::kFloat32, 2), transport);
    for (ParamId p = 0; p < reducer.plan().parameters.size(); ++p) {
      const Gradient g = reducer.gradient(p);
      std::fill_n(g.as<float>().begin(), g.numel, 1.0f);
      if (p == 3 && transport.rank() == 3) {
        g.as<float>()[7] = std::nanf("");
      }
      reducer.grad_ready(p);
    }
    const std::string said = message_of<NonFiniteGradient>([&] { reducer.wait(); });
    check(contains(said, "rank 3's gradient"), said);
  });
  EXPECT_EQ(first_message(ends), "");
  for (const int ranks : {3, 1}) {
    const auto refused = run_ranks(ranks, [ranks](Transport& transport) {
      const std::string said = message_of<InvalidArgument>(
          [&] { Reducer reducer(plan_of("none", DType::kFloat32, 2), transport); });
      check(contains(said, concat("ranks_per_node is 2, must divide the world size, ", ranks)),
            said);
    });
    EXPECT_EQ(first_message(refused), "");
  }
}

}  // namespace
}  // namespace gradwire::test
