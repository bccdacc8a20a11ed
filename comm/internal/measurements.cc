#include "gradwire/comm/internal/measurements.h"

#include <algorithm>
#include <cstring>

#include "gradwire/comm/choose.h"
#include "gradwire/comm/fingerprint.h"
#include "gradwire/comm/internal/agree.h"
#include "gradwire/comm/stages.h"
#include "gradwire/kernels/compress/warmup.h"

namespace gradwire {
namespace {

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
    const double density = selects ? group.spec.choice.density : 1.0;
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

/// The rows that can run it, over a transport with these traits, by node or flat.
std::vector<std::string_view> candidates(const BucketLoad& bucket, const TransportTraits& traits,
                                         bool by_node) {
  std::vector<std::string_view> names;
  for (const ExchangeRow& row : exchange_registry()) {
    const bool all = std::ranges::all_of(bucket.compressors, [&](const auto& compressor) {
      return carries(row, *compressor, traits.device.type);
    });
    if (all && row.by_node == by_node && (traits.sums_in_any_order || !row.sums_in_any_order)) {
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

// As late as the first parameters of the forward pass.
void add_unreached(std::vector<GradientTiming>& timings, const Plan& plan) {
  std::vector<uint8_t> reached(plan.parameters.size());
  double last_s = 0;
  for (const GradientTiming& timing : timings) {
    check(timing.parameter < reached.size(), "replan: a timing is of parameter ", timing.parameter,
          ", must be below ", reached.size());
    reached[timing.parameter] = 1;
    last_s = std::max(last_s, timing.ready_s);
  }
  for (ParamId p = 0; p < reached.size(); ++p) {
    if (reached[p] == 0) {
      timings.push_back({p, last_s, plan.parameters[p].numel() * size_of(plan.dtype)});
    }
  }
}

/// Of the exchange that a bucket of the next plan should take: its row in the registry.
uint32_t choose_row(Epoch& epoch, const Plan& next, const PlanBucket& bucket,
                    const ReplanOptions& how, const Transport& transport) {
  const int ranks = transport.world_size(), per_node = next.ranks_per_node;
  const TransportTraits traits = transport.traits();
  const auto union_of = [&epoch](ParamId p) {
    const Epoch::Place at = epoch.place(p);
    return at.bucket.union_density(at.offset);
  };
  const BucketLoad flat = load_of(bucket, next.dtype, how.link, ranks, union_of);
  std::vector<ExchangeCost> costs = exchange_costs(flat.load, candidates(flat, traits, false));
  if (per_node > 1 && ranks > per_node && ranks % per_node == 0 &&
      how.node_link.beta_s_per_byte > 0) {
    // Nodes add up in float32, and that is what is compressed.
    BucketLoad nodes = load_of(bucket, DType::kFloat32, how.link, ranks, union_of);
    nodes.load.ranks_per_node = per_node;
    nodes.load.node_alpha_s = how.node_link.alpha_s;
    nodes.load.node_bytes_per_s = 1 / how.node_link.beta_s_per_byte;
    const std::vector<std::string_view> by_node = candidates(nodes, traits, true);
    if (!by_node.empty()) {
      nodes.load.between_nodes =
          exchange_between_nodes(pointers_to(nodes.compressors), ranks / per_node);
      costs.push_back(exchange_costs(nodes.load, by_node)[0]);
    }
  }
  const ExchangeRow& row = find_exchange(choose_exchange(costs, how.plan.mean));
  return static_cast<uint32_t>(&row - exchange_registry().data());
}

}  // namespace

void Measurements::begin_plan(size_t parameters, uint64_t frames_sent) {
  ready_us_.assign(parameters, 0.0);
  times_.assign(parameters, 0);
  begin_stage(frames_sent);
}

void Measurements::begin_stage(uint64_t frames_sent) {
  buckets_ = gradient_bytes_ = bytes_sent_ = codec_us_ = 0;
  frames_before_ = frames_sent;
}

void Measurements::add(const StepGradients& gradients, const Plan& plan, const StepTrace& times) {
  for (ParamId p = 0; p < times_.size(); ++p) {
    if (gradients.reached()[p] != 0) {
      ready_us_[p] += static_cast<double>(gradients.ready_us(p) - gradients.first_ready_us());
      ++times_[p];
    }
  }
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    buckets_ += 1;
    gradient_bytes_ += static_cast<double>(plan.buckets[b].numel * size_of(plan.dtype));
    bytes_sent_ += static_cast<double>(times.buckets[b].bytes_sent);
    codec_us_ += static_cast<double>(times.buckets[b].codec_us);
  }
}

std::vector<GradientTiming> Measurements::timings(const Plan& plan) const {
  std::vector<GradientTiming> timings;
  for (ParamId p = 0; p < times_.size(); ++p) {
    if (times_[p] > 0) {
      timings.push_back({.parameter = p,
                         .ready_s = ready_us_[p] * 1e-6 / times_[p],
                         .bytes = plan.parameters[p].numel() * size_of(plan.dtype)});
    }
  }
  return timings;
}

// A start-up for each message of a bucket, and for each byte of gradient what it became on the line
// and cost in codecs.
BucketCost Measurements::bucket_cost(const LinkCosts& link, uint64_t frames_sent) const {
  const auto frames = static_cast<double>(frames_sent - frames_before_);
  return {.startup_s = link.alpha_s * frames / buckets_,
          .seconds_per_byte =
              (link.beta_s_per_byte * bytes_sent_ + codec_us_ * 1e-6) / gradient_bytes_};
}

Plan replanned(Epoch& epoch, const Measurements& measured, ReplanOptions options,
               BucketPipeline& pipeline) {
  Transport& transport = pipeline.transport();
  const std::vector<ParamInfo>& parameters = epoch.plan.parameters;
  const bool chooses = options.plan.exchange == "auto" && options.link.beta_s_per_byte > 0 &&
                       transport.world_size() > 1;
  std::vector<Decided> decided(parameters.size());
  const auto decide = [&] {
    std::vector<GradientTiming> timings =
        options.timings.empty() ? measured.timings(epoch.plan) : options.timings;
    add_unreached(timings, epoch.plan);
    decided = flatten(merge_gradients(
        timings, {.cost = measured.bucket_cost(options.link, frames_sent(pipeline.lanes())),
                  .most_bytes = options.most_bytes,
                  .order = options.order}));
    if (chooses) {
      options.plan.buckets = unflatten(decided);
      const Plan merged = make_plan(parameters, options.plan);
      std::vector<uint32_t> rows;
      for (const PlanBucket& bucket : merged.buckets) {
        rows.push_back(choose_row(epoch, merged, bucket, options, transport));
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
    found = concat(make_plan(parameters, checked).describe(),
                   "exchanges chosen by link costs: ", chooses ? "yes" : "no", "\n");
    if (transport.rank() == 0) {
      decide();
    }
  } catch (const std::exception& refused) {
    error = std::current_exception();
    found = concat("refused on rank ", transport.rank(), ": ", refused.what(), "\n");
  }
  agree_or_rethrow("plan to be", found, error, transport, pipeline.context());
  const size_t bytes = decided.size() * sizeof(Decided);
  const std::string told = transport.gather_words(
      {reinterpret_cast<const char*>(decided.data()), transport.rank() == 0 ? bytes : 0}, bytes,
      {fnv1a("buckets"), "buckets"}, pipeline.context())[0];
  check(told.size() == bytes, "replan: rank 0 sent ", told.size(), " bytes of buckets, expected ",
        bytes);
  std::memcpy(decided.data(), told.data(), bytes);
  options.plan.buckets = unflatten(decided);
  if (chooses) {
    options.plan.exchanges.assign(options.plan.buckets.size(), {});
    for (const Decided& each : decided) {
      options.plan.exchanges.at(each.bucket) = exchange_registry()[each.exchange].name;
    }
  }
  return make_plan(parameters, options.plan);
}

}  // namespace gradwire
