#pragma once
// A Reducer with one bucket per size, and the digest of what all ranks have of it: on the CPU and on
// emulated GPUs alike.

#include <functional>

#include "gradwire/comm/reducer.h"
#include "tests/digests/cases.h"
#include "tests/digests/recorded.h"
#include "tests/support/generators.h"
#include "tests/support/ranks.h"

namespace gradwire::digests {

inline constexpr const char* kReducerHead =
    "# spec exchange | digests of float32, float16, bfloat16 with 2 ranks, the same with 3, and of\n"
    "# float32 with 2 ranks over 200 steps; ranks of the exchange by node share nodes of 2 where they "
    "can\n";

struct ReducerCase {
  std::string spec, exchange;
  DType dtype = DType::kFloat32;
  int ranks = 2;
  int steps = kSteps;

  std::string name() const {
    return concat(spec, " ", exchange, " ", to_string(dtype), " ", ranks, " ranks, ", steps,
                  " steps");
  }
  std::vector<ParamInfo> parameters() const {
    std::vector<ParamInfo> all;
    for (const size_t numel : kSizes) {
      if (numel == 0 || (steps == kLongSteps && numel != kLongSize)) {
        continue;
      }
      const size_t rows = matrix_rows(numel);
      const bool is_matrix = rows > 0 && numel % rows == 0;
      all.push_back({concat("p", numel), is_matrix ? std::vector<size_t>{rows, numel / rows}
                                                   : std::vector<size_t>{numel}});
    }
    return all;
  }
  Plan plan() const {
    PlanOptions options;
    options.spec = parse_spec(spec);
    options.exchange = exchange;
    options.dtype = dtype;
    options.seed = kSeed;
    options.exempt_1d = PlanOptions::Exempt1D::kNever;
    options.bucket_bytes = 1;  // a parameter each
    if (exchange == "hierarchical" && ranks % 2 == 0) {
      options.ranks_per_node = 2;
    }
    return make_plan(parameters(), options);
  }
  /// Whether the exchange carries it.
  bool carried() const {
    try {
      plan();
      return true;
    } catch (const InvalidArgument&) {
      return false;
    }
  }
  std::vector<std::byte> gradient_of(ParamId p, int rank, int step) const {
    const size_t numel = parameters()[p].numel();
    return testing::tensor_of(gradient(numel, rank, step, size_t{p} << 20), dtype).bytes;
  }
};

/// What a rank has after each step.
struct Steps {
  std::vector<std::vector<std::byte>> means;
  std::vector<std::string> checkpoints;  ///< after the second step and the last

  void keep(const ReducerCase& c, int step, const Reducer& reducer,
            const std::function<std::vector<std::byte>(ParamId)>& mean_of) {
    std::vector<std::byte>& all = means.emplace_back();
    for (ParamId p = 0; p < reducer.plan().parameters.size(); ++p) {
      const std::vector<std::byte> mean = mean_of(p);
      all.insert(all.end(), mean.begin(), mean.end());
    }
    if (step == 1 || step + 1 == c.steps) {
      std::ostringstream out;
      reducer.save(out);
      checkpoints.push_back(out.str());
    }
  }
};

inline std::string digest_of(const ReducerCase& c, const std::vector<Steps>& ranks) {
  Hash hash;
  hash.add("plan", concat(c.plan().fingerprint()));
  for (size_t step = 0; step < ranks[0].means.size(); ++step) {
    hash.add(concat(c.name(), ": mean of step ", step), ranks[0].means[step]);
    for (const Steps& rank : ranks) {
      EXPECT_TRUE(step < rank.means.size() && rank.means[step] == ranks[0].means[step])
          << c.name() << ": ranks differ in step " << step;
    }
  }
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (size_t i = 0; i < ranks[r].checkpoints.size(); ++i) {
      hash.add(concat(c.name(), ": checkpoint ", i, " of rank ", r), ranks[r].checkpoints[i]);
    }
  }
  return hash.text();
}

/// "spec exchange" of everything that some case of it carries.
inline std::vector<std::string> rows() {
  std::vector<std::string> names;
  for (const std::string& spec : reducer_specs()) {
    for (const ExchangeRow& row : exchange_registry()) {
      const ReducerCase c{spec, std::string(row.name)};
      if (c.carried()) {
        names.push_back(concat(spec, " ", row.name));
      }
    }
  }
  return names;
}

/// The cases of a row's columns.
inline std::vector<ReducerCase> cases_of(const std::string& row) {
  const size_t space = row.rfind(' ');
  const std::string spec = row.substr(0, space), exchange = row.substr(space + 1);
  std::vector<ReducerCase> cases;
  for (const int ranks : {2, 3}) {
    for (const DType dtype : kDTypes) {
      cases.push_back({spec, exchange, dtype, ranks});
    }
  }
  cases.push_back({spec, exchange, DType::kFloat32, 2, kLongSteps});
  return cases;
}

}  // namespace gradwire::digests
