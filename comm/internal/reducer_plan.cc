// A plan gives way to another one, which the steps before it may have decided.

#include <algorithm>
#include <array>

#include "gradwire/comm/choose.h"
#include "gradwire/comm/fingerprint.h"
#include "gradwire/comm/internal/reducer_state.h"
#include "gradwire/comm/stages.h"
#include "gradwire/kernels/compress/warmup.h"

namespace gradwire {
namespace {

bool same_parameters(const Plan& a, const Plan& b) {
  return a.dtype == b.dtype &&
         std::equal(a.parameters.begin(), a.parameters.end(), b.parameters.begin(),
                    b.parameters.end(), [](const ParamInfo& x, const ParamInfo& y) {
                      return x.name == y.name && x.shape == y.shape;
                    });
}

/// A parameter's place in a plan that rank 0 has decided, as it travels.
struct Decided {
  ParamId parameter = 0;
  uint32_t bucket = 0;
  uint32_t exchange = 0;  // its row in the registry
};

/// What a bucket of the next plan has to exchange.
struct BucketLoad {
  ExchangeLoad load;
  std::vector<std::unique_ptr<Compressor>> compressors;
};

/// `union_of` a parameter: what the ranks' selections of it were together, 0 where nobody knows.
template <class UnionOf>
BucketLoad load_of(const PlanBucket& bucket, DType dtype, const LinkCosts& link, int world_size,
                   const UnionOf& union_of) {
  BucketLoad made{.load = {.alpha_s = link.alpha_s,
                           .bytes_per_s = 1 / link.beta_s_per_byte,
                           .world_size = world_size,
                           .numel = bucket.numel},
                  .compressors = {}};
  double entries = 0, together = 0;
  for (const PlanGroup& group : bucket.groups) {
    made.compressors.push_back(make_compressor(
        lasting_spec(group.spec), {.numel = group.numel, .dtype = dtype, .segments = group.segments}));
    const Compressor& compressor = *made.compressors.back();
    made.load.payload_bytes += compressor.first_bytes() + compressor.capacity_bytes();
    made.load.rounds = std::max(made.load.rounds, compressor.rounds());
    const bool selects = find_compressor(group.spec.name).selector();
    const double density = selects ? group.spec.density : 1.0;
    entries += static_cast<double>(group.numel) * density;
    for (const Segment& segment : group.segments) {
      const double seen = selects ? union_of(segment.parameter) : 1.0;
      together += static_cast<double>(segment.numel) *
                  (seen > 0 ? std::max(seen, density) : independent_union(density, world_size));
    }
  }
  made.load.density = entries / static_cast<double>(bucket.numel);
  made.load.union_density = std::min(1.0, together / static_cast<double>(bucket.numel));
  return made;
}

std::vector<Compressor*> pointers_to(std::span<const std::unique_ptr<Compressor>> compressors) {
  std::vector<Compressor*> pointers;
  for (const auto& compressor : compressors) {
    pointers.push_back(compressor.get());
  }
  return pointers;
}

/// The rows that can run it, over a transport with these traits, without those by node.
std::vector<std::string_view> flat_candidates(const BucketLoad& bucket,
                                              const TransportTraits& traits) {
  std::vector<std::string_view> names;
  for (const ExchangeRow& row : exchange_registry()) {
    const bool carries = std::ranges::all_of(
        bucket.compressors, [&](const auto& compressor) { return row.accepts(*compressor); });
    if (carries && !row.by_node && (traits.sums_in_any_order || !row.sums_in_any_order)) {
      names.push_back(row.name);
    }
  }
  return names;
}

std::vector<Decided> flatten(const std::vector<std::vector<ParamId>>& buckets) {
  std::vector<Decided> decided;
  for (uint32_t b = 0; b < buckets.size(); ++b) {
    for (const ParamId p : buckets[b]) {
      decided.push_back({p, b, 0});
    }
  }
  return decided;
}

std::vector<std::vector<ParamId>> unflatten(std::span<const Decided> decided) {
  std::vector<std::vector<ParamId>> buckets;
  for (const Decided& each : decided) {
    if (buckets.empty() || each.bucket != decided[&each - decided.data() - 1].bucket) {
      buckets.emplace_back();
    }
    buckets.back().push_back(each.parameter);
  }
  return buckets;
}

}  // namespace

void Reducer::State::begin_plan(uint64_t committed_steps) {
  changes_at = next_change(plan, committed_steps);
  measured = {.ready_us = std::vector<double>(plan.parameters.size(), 0.0),
              .times = std::vector<uint32_t>(plan.parameters.size(), 0),
              .frames_before = frames_sent()};
  compresses_first = std::ranges::any_of(buckets, &Bucket::compresses_first);
  begin_step();
}

uint64_t Reducer::State::frames_sent() const {
  uint64_t frames = 0;
  for (const Lane& lane : lanes) {
    frames += lane.transport->counters().frames_sent + lane.groups->frames_sent();
  }
  return frames;
}

// Called when a step has been recorded.
void Reducer::State::measure() {
  for (size_t p = 0; p < ready_us.size(); ++p) {
    if (reached[p] != 0) {
      measured.ready_us[p] += static_cast<double>(ready_us[p] - first_ready_us);
      ++measured.times[p];
    }
  }
  for (size_t b = 0; b < buckets.size(); ++b) {
    measured.buckets += 1;
    measured.gradient_bytes += static_cast<double>(plan.buckets[b].numel * size_of(plan.dtype));
    measured.bytes_sent += static_cast<double>(times.buckets[b].bytes_sent);
    measured.codec_us += static_cast<double>(times.buckets[b].codec_us);
  }
}

// A start-up for each message of a bucket, and for each byte of gradient what it became on the line
// and cost in codecs.
BucketCost Reducer::State::bucket_cost(const LinkCosts& link) const {
  const auto frames = static_cast<double>(frames_sent() - measured.frames_before);
  return {
      .startup_s = link.alpha_s * frames / measured.buckets,
      .seconds_per_byte = (link.beta_s_per_byte * measured.bytes_sent + measured.codec_us * 1e-6) /
                          measured.gradient_bytes};
}

uint32_t Reducer::State::choose_row(const Plan& next, const PlanBucket& bucket,
                                    const ReplanOptions& how) const {
  const int ranks = transport->world_size(), per_node = next.ranks_per_node;
  const auto union_of = [this](ParamId p) {
    return buckets[plan.places[p].bucket].union_density(plan.places[p].offset);
  };
  const BucketLoad flat = load_of(bucket, next.dtype, how.link, ranks, union_of);
  std::vector<ExchangeCost> costs =
      exchange_costs(flat.load, flat_candidates(flat, transport->traits()));
  if (per_node > 1 && ranks > per_node && ranks % per_node == 0 &&
      how.node_link.beta_s_per_byte > 0) {
    // Nodes add up in float32, and that is what is compressed.
    BucketLoad nodes = load_of(bucket, DType::kFloat32, how.link, ranks, union_of);
    const ExchangeRow& by_node = find_exchange("hierarchical");
    const bool carries = std::ranges::all_of(
        nodes.compressors, [&](const auto& compressor) { return by_node.accepts(*compressor); });
    nodes.load.ranks_per_node = per_node;
    nodes.load.node_alpha_s = how.node_link.alpha_s;
    nodes.load.node_bytes_per_s = 1 / how.node_link.beta_s_per_byte;
    if (carries) {
      nodes.load.between_nodes =
          exchange_between_nodes(pointers_to(nodes.compressors), ranks / per_node);
      costs.push_back(exchange_costs(nodes.load, std::array{by_node.name})[0]);
    }
  }
  const ExchangeRow& row = find_exchange(choose_exchange(costs, how.plan.mean));
  return static_cast<uint32_t>(&row - exchange_registry().data());
}

std::vector<GradientTiming> Reducer::gradient_timings() const {
  const State& s = *state_;
  std::vector<GradientTiming> timings;
  for (ParamId p = 0; p < s.measured.times.size(); ++p) {
    if (s.measured.times[p] > 0) {
      timings.push_back({.parameter = p,
                         .ready_s = s.measured.ready_us[p] * 1e-6 / s.measured.times[p],
                         .bytes = s.plan.parameters[p].numel() * size_of(s.plan.dtype)});
    }
  }
  return timings;
}

void Reducer::replan(ReplanOptions options) {
  State& s = *state_;
  s.refuse_on_gpu("replan");
  s.throw_if_finished();
  check(!s.begun, "replan: step ", s.step,
        " has begun, expected a call between wait() and the next grad_ready()");
  check(s.measured.buckets > 0,
        "replan: 0 steps since the last plan, expected at least one to measure");
  const bool chooses = options.plan.exchange == "auto" && options.link.beta_s_per_byte > 0 &&
                       s.transport->world_size() > 1;
  std::vector<Decided> decided(s.plan.parameters.size());
  const auto decide = [&] {
    std::vector<GradientTiming> timings = gradient_timings();
    // What was never reached counts as late as the first parameters of the forward pass.
    double last_s = 0;
    for (const GradientTiming& timing : timings) {
      last_s = std::max(last_s, timing.ready_s);
    }
    for (ParamId p = 0; p < s.measured.times.size(); ++p) {
      if (s.measured.times[p] == 0) {
        timings.push_back({p, last_s, s.plan.parameters[p].numel() * size_of(s.plan.dtype)});
      }
    }
    decided = flatten(merge_gradients(timings, {.cost = s.bucket_cost(options.link),
                                                .most_bytes = options.most_bytes,
                                                .order = options.order}));
    if (chooses) {
      options.plan.buckets = unflatten(decided);
      const Plan merged = make_plan(s.plan.parameters, options.plan);
      std::vector<uint32_t> rows;
      for (const PlanBucket& bucket : merged.buckets) {
        rows.push_back(s.choose_row(merged, bucket, options));
      }
      for (Decided& each : decided) {
        each.exchange = rows[each.bucket];
      }
    }
  };
  // What one rank refuses the others hear of before they wait for a decision.
  std::string found;
  std::exception_ptr error;
  try {
    PlanOptions checked = options.plan;
    checked.buckets.clear();  // rank 0 decides them
    checked.exchanges.clear();
    found = concat(make_plan(s.plan.parameters, checked).describe(),
                   "exchanges chosen by link costs: ", chooses ? "yes" : "no", "\n");
    if (s.transport->rank() == 0) {
      decide();
    }
  } catch (const std::exception& refused) {
    error = std::current_exception();
    found = concat("refused on rank ", s.transport->rank(), ": ", refused.what(), "\n");
  }
  try {
    s.transport->agree("plan to be", found, s.compression.context);
  } catch (const InvalidArgument&) {
    if (!error) {
      throw;
    }
  }
  if (error) {
    std::rethrow_exception(error);
  }
  s.transport->broadcast(std::as_writable_bytes(std::span(decided)), 0,
                         {fnv1a("buckets"), "buckets"}, s.compression.context);
  s.compression.stream->wait();
  options.plan.buckets = unflatten(decided);
  if (chooses) {
    options.plan.exchanges.assign(options.plan.buckets.size(), {});
    for (const Decided& each : decided) {
      options.plan.exchanges.at(each.bucket) = exchange_registry()[each.exchange].name;
    }
  }
  set_plan(make_plan(s.plan.parameters, options.plan));
}

void Reducer::set_plan(Plan plan) {
  State& s = *state_;
  s.throw_if_finished();
  check(!s.begun, "set_plan: step ", s.step,
        " has begun, expected a call between wait() and the next grad_ready()");
  check(
      same_parameters(s.plan, plan),
      "set_plan: the new plan's parameters or dtype differ from the old one's, expected the same");
  s.check_everywhere(plan, *s.transport);
  const State::Counts now = s.counts();
  synchronize();
  std::shared_ptr<DeviceState> shared = s.make_commits(now.committed, now.skipped);
  std::deque<Bucket> buckets = s.make_buckets(plan, s.lanes, now.committed, shared);
  for (const Bucket& old : s.buckets) {
    old.release_scratch();  // else the old plan's memory is all there beside the new one's
  }
  s.carry_over(buckets, plan);
  s.plan = std::move(plan);
  s.adopt(std::move(buckets), std::move(shared));
  s.begin_plan(now.committed);
}

}  // namespace gradwire
