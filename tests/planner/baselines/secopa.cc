#include "tests/planner/baselines/secopa.h"

#include <algorithm>
#include <map>

namespace gradwire::planner::testing {
namespace {

constexpr double kRatio = 16;  // compressed payloads have a sixteenth of the elements

/// max(floor, w x + b) of x elements.
struct Step {
  double w, b, floor;

  double operator()(double elements) const { return std::max(floor, w * elements + b); }
};

constexpr Step kEncode{1.4133e-8, .058938, .05408};
constexpr Step kDecode{6.2041e-9, .13956, .07287};
constexpr Step kRingStep{8.5005e-7, .20337, .09766};

struct ServerSteps {
  Step gather, broadcast;
};

const ServerSteps& server_steps(int nodes) {
  static const std::map<int, ServerSteps> measured = {
      {4, {{2.7156e-6, .4193, .15573}, {2.7157e-6, .22156, .1482}}},
      {8, {{6.1167e-6, .80768, .28778}, {6.1172e-6, .27285, .29666}}},
      {16, {{1.2937e-5, 1.4406, .59503}, {1.2915e-5, .45538, .58353}}},
  };
  return measured.at(nodes);
}

double ms_of(SeCoPaPattern pattern, int nodes, double part, bool compress, int parts) {
  const double sent = compress ? part / kRatio : part;
  if (pattern == SeCoPaPattern::kRing) {
    const double coding = compress ? nodes * (kEncode(part) + kDecode(sent)) : 0;
    return 2 * (nodes - 1) * kRingStep(sent) + coding;
  }
  const ServerSteps& steps = server_steps(nodes);
  const double moved = steps.gather(sent) + steps.broadcast(sent);
  if (!compress) {
    return moved;
  }
  return moved + std::min(parts + 1, nodes) * kEncode(part) +
         std::min(nodes - 1 + parts, 2 * (nodes - 1)) * kDecode(sent);
}

}  // namespace

SeCoPaChoice secopa_cost(SeCoPaPattern pattern, int nodes, double numel, bool compress) {
  SeCoPaChoice best{compress, 0, 0};
  for (int parts = 1; parts <= nodes; ++parts) {
    const double ms = ms_of(pattern, nodes, numel / parts, compress, parts);
    if (best.parts == 0 || ms < best.ms) {
      best = {compress, parts, ms};
    }
  }
  return best;
}

SeCoPaChoice secopa_choose(SeCoPaPattern pattern, int nodes, double numel) {
  const SeCoPaChoice dense = secopa_cost(pattern, nodes, numel, false);
  const SeCoPaChoice compressed = secopa_cost(pattern, nodes, numel, true);
  return dense.ms > compressed.ms ? compressed : dense;
}

std::vector<BucketOption> secopa_options(SeCoPaPattern pattern, int nodes) {
  std::vector<BucketOption> options;
  for (const bool compress : {false, true}) {
    BucketOption option;
    option.name = option.compressor = compress ? "compressed" : "none";
    option.loss = compress ? 1 : 0;
    option.exchange_s = [=](size_t m) {
      return 1e-3 * secopa_cost(pattern, nodes, static_cast<double>(m), compress).ms;
    };
    options.push_back(std::move(option));
  }
  return options;
}

}  // namespace gradwire::planner::testing
