#include "gradwire/planner/internal/candidates.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "gradwire/comm/choose.h"
#include "gradwire/kernels/compress/compressor.h"
#include "gradwire/kernels/core/error.h"
#include "gradwire/planner/internal/shaped_candidates.h"

namespace gradwire::planner {
namespace {

/// Labels of the dynamic program: a job waits for it, and the best few are timed anyway.
constexpr size_t kBeam = 16;
/// Pieces that buckets are made of: a search takes the square of their number.
constexpr size_t kMostPieces = 128;
/// What several buckets must gain of the step by their prediction, which is off by about so much: a
/// message costs more where ranks compute beside it than the probe of an idle link says. Nor may one
/// bucket lose much more of the gradient, as it would where several send most of it plain.
constexpr double kWorthMessages = 0.1;
/// Of an element: with these rounding changes a gradient by an eighth of its norm, with 2 by half.
constexpr int kLeastBits = 4;

std::vector<ParamId> order_of(std::span<const double> ready_s) {
  std::vector<ParamId> order(ready_s.size());
  std::iota(order.rbegin(), order.rend(), ParamId{0});  // of equal times as backward has them
  std::ranges::stable_sort(order, {}, [&](ParamId p) { return ready_s[p]; });
  return order;
}

/// Gradients, or neighbours among them where there are many: those that hold less than their share
/// of all elements travel together.
struct Pieces {
  std::vector<ReadyGradient> gradients = {};
  std::vector<size_t> begin = {0};  ///< in the order, of each; and the end of the last
};

Pieces pieces_of(std::span<const ParamId> order, const PredictedJob& job) {
  const size_t all = numel_of(job.parameters);
  const size_t least = order.size() > kMostPieces ? (all + kMostPieces - 1) / kMostPieces : 1;
  Pieces pieces;
  size_t numel = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const ParamInfo& parameter = job.parameters[order[i]];
    numel += parameter.numel();
    if (numel >= least || i + 1 == order.size()) {
      pieces.gradients.push_back({parameter.name, numel, job.costs.ready_s[order[i]]});
      pieces.begin.push_back(i + 1);
      numel = 0;
    }
  }
  return pieces;
}

/// The bf16 group of exempt parameters travels in the same message, so its exchanges count alone.
std::vector<std::string> common_exchanges(DeviceType device) {
  const auto compressor = make_compressor(parse_spec("bf16"), {.numel = 4096, .world_size = 2});
  const auto names = exchanges_that_carry(*compressor, device);
  return {names.begin(), names.end()};
}

/// `begin`: of the pieces that the plan counts, in the order.
PilotPlan plan_of(const BucketPlan& planned, std::span<const BucketOption> options,
                  std::span<const ParamId> order, std::span<const size_t> begin,
                  const PredictedJob& job) {
  PilotPlan made;
  made.plan = job.options.plan;
  made.plan.exchange = "auto";
  made.plan.last_bucket_bytes = 0;
  double most = -1;
  for (const PlannedBucket& bucket : planned.buckets) {
    const BucketOption& option = options[bucket.option];
    if (option.loss > most) {
      most = option.loss;
      made.spec = option.compressor;
    }
  }
  made.plan.spec = parse_spec(made.spec);
  made.loss = planned.loss;
  for (const PlannedBucket& bucket : planned.buckets) {
    const BucketOption& option = options[bucket.option];
    made.plan.buckets.emplace_back(order.begin() + static_cast<ptrdiff_t>(begin[bucket.begin]),
                                   order.begin() + static_cast<ptrdiff_t>(begin[bucket.end]));
    if (job.options.plan.rules.empty()) {  // else make_plan() finds what carries their specs too
      made.plan.exchanges.push_back(option.exchange);
    }
    if (option.compressor == made.spec) {
      continue;
    }
    // A rule comes before the exemption of 1-D parameters, so narrow ones are not for those.
    for (const ParamId p : made.plan.buckets.back()) {
      made.plan.rules.push_back({.spec = parse_spec(option.compressor),
                                 .name = job.parameters[p].name,
                                 .least_ndim = is_wide(option.compressor) ? size_t{0} : 2});
      if (!made.plan.rules.back().fits(job.parameters[p])) {
        made.plan.rules.pop_back();
      }
    }
  }
  made.name = name_of(made, job.parameters);
  made.waits = waits_of(made.plan, job.parameters);  // what cannot be made is no candidate: throws
  return made;
}

/// Of a parameter that is exempt for its one dimension, the one that it is exempt from.
std::string spec_of(const PilotPlan& plan, const ParamInfo& parameter) {
  const auto rule = std::ranges::find_if(
      plan.plan.rules, [&](const SpecRule& each) { return each.fits(parameter); });
  return rule == plan.plan.rules.end() ? plan.spec : to_string(rule->spec);
}

/// Whole per cents, but never 0 or 100 of what is some.
std::string share_text(size_t numel, size_t all) {
  const double percent = 100 * static_cast<double>(numel) / static_cast<double>(all);
  if (numel != 0 && percent < 1) {
    return "less than 1%";
  }
  return numel != all && percent > 99 ? "more than 99%" : concat(std::lround(percent), "%");
}

/// The plan's spec; where others travel too, each with its share, the plan's first and then the
/// largest.
std::string specs_text(const PilotPlan& plan, std::span<const ParamInfo> parameters) {
  std::vector<std::pair<std::string, size_t>> specs = {{plan.spec, 0}};
  const size_t all = numel_of(parameters);
  for (const ParamInfo& parameter : parameters) {
    const std::string spec = spec_of(plan, parameter);
    auto found = std::ranges::find(specs, spec, &std::pair<std::string, size_t>::first);
    if (found == specs.end()) {
      found = specs.insert(found, {spec, 0});
    }
    found->second += parameter.numel();
  }
  if (specs.size() == 1 || all == 0) {
    return plan.spec;
  }
  std::ranges::stable_sort(specs.begin() + 1, specs.end(), std::greater<>(),
                           &std::pair<std::string, size_t>::second);
  std::string text;
  for (const auto& [spec, numel] : specs) {
    text += concat(text.empty() ? "" : ", ", spec, " for ", share_text(numel, all),
                   text.empty() ? " of the gradient" : "");
  }
  return text;
}

std::vector<BucketOption> options_of(const PredictedJob& job) {
  Costs costs;
  costs.link = {
      .name = "measured", .alpha_s = job.costs.alpha_s, .bytes_per_s = job.costs.bytes_per_s};
  costs.codecs = job.costs.codecs;
  std::vector<std::string> specs = job.options.specs;
  std::erase_if(specs, depends_on_shapes);
  return make_bucket_options({.world_size = job.world_size,
                              .specs = specs,
                              .exchanges = common_exchanges(job.options.device),
                              .streams = {1},
                              .mean = job.options.plan.mean,
                              .device = job.options.device},
                             costs);
}

/// All gradients together, by the option that is through with them first, of those that `may`.
BucketPlan in_one_bucket(std::span<const ReadyGradient> gradients,
                         std::span<const BucketOption> options,
                         const std::function<bool(size_t option)>& may) {
  BucketPlan best;
  best.end_s = std::numeric_limits<double>::infinity();
  for (size_t option = 0; option < options.size(); ++option) {
    if (!may(option)) {
      continue;
    }
    std::vector<PlannedBucket> all = {{.begin = 0, .end = gradients.size(), .option = option}};
    const double end_s = price_buckets(gradients, options, all);
    if (end_s < best.end_s) {
      best.buckets = std::move(all);
      best.end_s = end_s;
      best.loss = options[option].loss;
    }
  }
  return best;
}

}  // namespace

bool is_wide(const std::string& text) {
  const CompressorSpec spec = parse_spec(text);
  return only_casts(spec) && spec.choice.start == 0;
}

bool may_lose(const std::string& text) {
  const CompressorSpec spec = parse_spec(text);
  const CompressorRow& row = find_compressor(spec.name);
  // Levels are of the norm of a block, which is several times its largest element.
  if (row.selector() || row.low_rank() || row.takes_levels || spec.feedback.ef21 ||
      keeps_velocity(spec)) {
    return true;
  }
  const int bits = value_bits(spec.codec.values, DType::kFloat32);
  return bits < 16 && (bits < kLeastBits || !spec.feedback.on || spec.feedback.decay < 1);
}

bool chooses_by_size(const std::string& spec) {
  return !find_compressor(parse_spec(spec).name).shared_choice() && !depends_on_shapes(spec);
}

size_t numel_of(std::span<const ParamInfo> parameters) {
  size_t numel = 0;
  for (const ParamInfo& parameter : parameters) {
    numel += parameter.numel();
  }
  return numel;
}

std::string name_of(const PilotPlan& plan, std::span<const ParamInfo> parameters) {
  std::string name = specs_text(plan, parameters);
  if (!plan.plan.buckets.empty()) {
    const size_t buckets = plan.plan.buckets.size();
    name += concat(", ", buckets, buckets == 1 ? " bucket" : " buckets");
  }
  if (plan.streams > 1) {
    name += concat(", ", plan.streams, " streams");
  }
  return name;
}

double waits_of(const PlanOptions& plan, std::span<const ParamInfo> parameters) {
  double waits = 0;
  for (const PlanBucket& bucket : make_plan(parameters, plan).buckets) {
    for (const PlanGroup& group : bucket.groups) {
      for (const Segment& segment : group.segments) {
        const auto numel = static_cast<double>(segment.numel);
        double density = group.spec.choice.density;
        if (group.spec.choice.rank != 0 && segment.rows > 1) {
          const auto rows = static_cast<double>(segment.rows);
          density = group.spec.choice.rank * (rows + numel / rows) / numel;
        }
        waits += numel * (1 / std::min(1.0, density) - 1);
      }
    }
  }
  return waits / static_cast<double>(numel_of(parameters));
}

double rest_of_step(const PredictedJob& job, const PlanOptions& ran, double step_s) {
  const double backward_s = *std::ranges::max_element(job.costs.ready_s);
  const double end_s = exchange_end_s(job, make_plan(job.parameters, ran));
  return std::max(step_s - std::max(0.0, end_s - backward_s), backward_s);
}

std::vector<PilotPlan> predict_candidates(const PredictedJob& job) {
  const std::vector<BucketOption> options = options_of(job);
  const std::vector<ParamId> order = order_of(job.costs.ready_s);
  const Pieces pieces = pieces_of(order, job);
  const std::vector<ReadyGradient>& gradients = pieces.gradients;
  const auto options_with = [&](std::span<const std::string> specs) {
    std::vector<BucketOption> some;
    std::ranges::copy_if(options, std::back_inserter(some), [&](const BucketOption& option) {
      return std::ranges::find(specs, option.compressor) != specs.end();
    });
    return some;
  };
  const std::string none[] = {"none"};
  const double backward_s = gradients.back().ready_s;
  std::vector<PilotPlan> plans;
  const auto known = [&](const std::string& spec) {
    return std::ranges::find(plans, spec, &PilotPlan::spec) != plans.end();
  };
  const auto consider = [&](std::vector<BucketOption> some, const std::string& spec, bool alone) {
    std::vector<BucketOption> searched = some;
    if (alone) {
      // The search wants an option called "none" to begin from.
      std::ranges::for_each(searched, [](BucketOption& option) { option.compressor = "none"; });
    }
    BucketPlan planned = plan_buckets(gradients, searched, {.beam = kBeam});
    const auto step_s = [&](double end_s) { return job.rest_s + std::max(0.0, end_s - backward_s); };
    if (job.few_messages) {
      BucketPlan one = in_one_bucket(gradients, searched, [&](size_t option) {
        return some[option].compressor == spec;
      });
      if ((1 - kWorthMessages) * step_s(one.end_s) <= step_s(planned.end_s) &&
          (1 - kWorthMessages) * one.loss <= planned.loss) {
        planned = std::move(one);
      }
    }
    PilotPlan plan = plan_of(planned, some, order, pieces.begin, job);
    plan.predicted_s = step_s(planned.end_s);
    if (!known(plan.spec)) {  // where a compressor does not pay, its plan is one of the others
      plans.push_back(std::move(plan));
    }
  };
  const std::string bf16[] = {"bf16"};
  consider(options_with(none), "none", true);
  consider(options_with(bf16), "bf16", true);
  for (const std::string& text : job.options.specs) {
    const std::string spec = to_string(parse_spec(text));
    if (depends_on_shapes(spec)) {
      auto plan = known(spec) ? std::nullopt : shaped_candidate(job, spec, order);
      if (plan) {
        plans.push_back(*std::move(plan));
      }
    } else if (!is_always_considered(spec)) {
      const std::string mixed[] = {"none", "bf16", spec};
      consider(options_with(mixed), spec, false);
    }
  }
  std::ranges::stable_sort(plans, {}, &PilotPlan::predicted_s);
  return plans;
}

size_t largest_bucket(const PilotPlan& plan, std::span<const ParamInfo> parameters,
                      size_t least_parameters) {
  size_t largest = 0;
  for (const std::vector<ParamId>& bucket : plan.plan.buckets) {
    size_t numel = 0;
    for (const ParamId p : bucket) {
      numel += parameters[p].numel();
    }
    largest = bucket.size() >= least_parameters ? std::max(largest, numel) : largest;
  }
  return largest;
}

PilotPlan with_largest_bucket(const PilotPlan& plan, std::span<const ParamInfo> parameters,
                              size_t numel) {
  PilotPlan made = plan;
  made.plan.buckets.clear();
  made.plan.exchanges.clear();
  // Buckets that travel alike have the same exchange and the same rules.
  std::string spec, exchange;
  size_t filled = 0;
  for (size_t b = 0; b < plan.plan.buckets.size(); ++b) {
    const std::string travels = plan.plan.exchanges.empty() ? "" : plan.plan.exchanges[b];
    for (const ParamId p : plan.plan.buckets[b]) {
      const size_t here = parameters[p].numel();
      const bool alike =
          !made.plan.buckets.empty() && travels == exchange && spec_of(plan, parameters[p]) == spec;
      if (!alike || filled + here > numel) {
        made.plan.buckets.emplace_back();
        if (!plan.plan.exchanges.empty()) {
          made.plan.exchanges.push_back(travels);
        }
        filled = 0;
      }
      made.plan.buckets.back().push_back(p);
      filled += here;
      spec = spec_of(plan, parameters[p]);
      exchange = travels;
    }
  }
  made.name = name_of(made, parameters);
  return made;
}

}  // namespace gradwire::planner
