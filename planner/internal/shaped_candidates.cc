#include "gradwire/planner/internal/shaped_candidates.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "gradwire/comm/choose.h"
#include "gradwire/kernels/compress/warmup.h"
#include "gradwire/kernels/core/error.h"
#include "gradwire/planner/internal/bucket_prices.h"

namespace gradwire::planner {
namespace {

// Elements at which a bucket is closed: 1, 4 and the 25 MiB that DDP has by default, and never.
constexpr size_t kCaps[] = {size_t{1} << 18, size_t{1} << 20, 25 * (size_t{1} << 18),
                            std::numeric_limits<size_t>::max()};

std::vector<std::vector<ParamId>> split_at(size_t cap, const PredictedJob& job,
                                           std::span<const ParamId> order) {
  std::vector<std::vector<ParamId>> buckets(1);
  size_t numel = 0;
  for (const ParamId p : order) {
    if (numel >= cap) {
      buckets.emplace_back();
      numel = 0;
    }
    buckets.back().push_back(p);
    numel += job.parameters[p].numel();
  }
  return buckets;
}

/// What a rank sends of a group in a step: of all rounds, on average over the sides.
struct GroupBytes {
  double mean = 0;
  bool factors = false;
};

CompressorShape shape_of(const PlanGroup& group, int world_size) {
  return {.numel = group.numel, .segments = group.segments, .world_size = world_size};
}

GroupBytes bytes_of(const PlanGroup& group, const Compressor* compressor, int world_size) {
  const auto floats = [&](bool transposed) {  // of one side's factors, which two rounds send alone
    CompressorSpec both = group.spec;
    both.choice.rounds = 2;
    CompressorShape shape = shape_of(group, world_size);
    for (Segment& segment : shape.segments) {
      segment.rows = transposed && segment.rows > 0 ? segment.numel / segment.rows : segment.rows;
    }
    const size_t bytes = make_compressor(both, shape)->first_bytes();
    return bytes == 0 ? 0.0 : static_cast<double>(bytes - sizeof(PayloadHeader));
  };
  GroupBytes bytes{.mean = static_cast<double>(compressor->capacity_bytes())};
  if (group.spec.choice.rank == 0) {
    return bytes;
  }
  const double left = floats(false), right = floats(true);
  bytes.factors = left > 0;
  if (compressor->rounds() == 1) {  // the capacity is the larger side's, and what is sent plain
    bytes.mean += (left + right) / 2 - std::max(left, right);
  } else {  // the first round's, and the right side with what is sent plain
    bytes.mean += static_cast<double>(compressor->first_bytes()) + right - std::max(left, right);
  }
  return bytes;
}

/// A bucket as the model sees it.
struct ShapedBucket {
  std::string exchange = {};
  Price price = {};
  double ready_s = 0;
  double bytes = 0;      // of one rank's payload
  bool factors = false;  // of the spec that is asked for
};

/// By the exchange that is through with it first, or the one that is named.
ShapedBucket priced(const PlanBucket& bucket, const PredictedJob& job, const std::string& spec,
                    std::string_view exchange = {}) {
  ShapedBucket made;
  ExchangeLoad load{.alpha_s = job.costs.alpha_s,
                    .bytes_per_s = job.costs.bytes_per_s,
                    .world_size = job.world_size,
                    .numel = bucket.numel};
  std::vector<std::string_view> carriers;
  // One rank's factors are added to another's before they are multiplied; the rest is decoded each.
  double encode_s = 0, decode_s = 0, decode_each_s = 0;
  const PlanGroup& largest = *std::ranges::max_element(bucket.groups, {}, &PlanGroup::numel);
  if (find_compressor(largest.spec.name).selector()) {
    load.density = largest.spec.choice.density;
  }
  for (const PlanGroup& group : bucket.groups) {
    for (const Segment& segment : group.segments) {
      made.ready_s = std::max(made.ready_s, job.costs.ready_s[segment.parameter]);
    }
    const auto compressor = make_compressor(lasting_spec(group.spec), shape_of(group, job.world_size));
    const GroupBytes bytes = bytes_of(group, compressor.get(), job.world_size);
    made.bytes += bytes.mean;
    made.factors = made.factors || (bytes.factors && to_string(group.spec) == spec);
    load.rounds = std::max(load.rounds, compressor->rounds());
    const std::vector<std::string_view> rows =
        exchanges_that_carry(*compressor, job.options.device);
    if (&group == &bucket.groups.front()) {
      carriers = rows;
    }
    std::erase_if(carriers, [&](std::string_view row) {
      return std::ranges::find(rows, row) == rows.end() || find_exchange(row).sums_in_any_order;
    });
    const auto codec = job.costs.codecs.find(to_string(group.spec));
    if (codec != job.costs.codecs.end()) {
      const double dense_bytes = sizeof(float) * static_cast<double>(group.numel);
      encode_s += codec->second.encode_s(dense_bytes);
      (group.spec.choice.rank != 0 ? decode_s : decode_each_s) +=
          codec->second.decode_s(dense_bytes);
    }
  }
  if (!exchange.empty()) {
    carriers = {exchange};
  }
  check(!carriers.empty(), "pilot: no exchange carries '", to_string(bucket.groups.front().spec),
        "' together with what else a bucket has, expected one");
  load.payload_bytes = static_cast<size_t>(std::ceil(made.bytes));
  std::vector<ExchangeCost> costs = exchange_costs(load, carriers);
  for (ExchangeCost& cost : costs) {
    cost.seconds += decode_s + decode_each_s * (cost.exchange == "gather" ? job.world_size : 1);
  }
  made.exchange = exchange.empty() ? choose_exchange(costs, job.options.plan.mean) : exchange;
  const auto chosen = std::ranges::find(costs, made.exchange, &ExchangeCost::exchange);
  made.price = {.encode_s = encode_s, .line_s = chosen->seconds};
  return made;
}

}  // namespace

bool depends_on_shapes(const std::string& spec) { return parse_spec(spec).choice.rank != 0; }

double exchange_end_s(const PredictedJob& job, const Plan& plan) {
  Moment moment;
  for (const PlanBucket& bucket : plan.buckets) {
    const ShapedBucket each = priced(bucket, job, {}, bucket.exchange);
    moment = moment.after(each.price, each.ready_s);
  }
  return moment.end_s;
}

std::optional<PilotPlan> shaped_candidate(const PredictedJob& job, const std::string& spec,
                                          std::span<const ParamId> order) {
  const double backward_s = *std::ranges::max_element(job.costs.ready_s);
  PilotPlan best;
  for (const size_t cap : kCaps) {
    PilotPlan made;
    made.spec = spec;
    made.plan = job.options.plan;
    made.plan.spec = parse_spec(spec);
    made.plan.exchange = "auto";
    made.plan.last_bucket_bytes = 0;
    made.plan.buckets = split_at(cap, job, order);
    const Plan plan = make_plan(job.parameters, made.plan);
    Moment moment;
    double bytes = 0, dense_bytes = 0;
    bool factors = false;
    for (const PlanBucket& bucket : plan.buckets) {
      const ShapedBucket each = priced(bucket, job, spec);
      moment = moment.after(each.price, each.ready_s);
      bytes += each.bytes;
      factors = factors || each.factors;
      dense_bytes += sizeof(float) * static_cast<double>(bucket.numel);
      made.plan.exchanges.push_back(each.exchange);
    }
    if (!factors || bytes >= dense_bytes) {
      return std::nullopt;
    }
    made.loss = 1 - bytes / dense_bytes;
    made.predicted_s = job.rest_s + std::max(0.0, moment.end_s - backward_s);
    made.name = name_of(made, job.parameters);
    if (best.name.empty() || made.predicted_s < best.predicted_s) {
      best = std::move(made);
    }
  }
  best.waits = waits_of(best.plan, job.parameters);  // what cannot be made is no candidate: throws
  return best;
}

}  // namespace gradwire::planner
