#include "gradwire/planner/bucket_options.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "gradwire/comm/choose.h"
#include "gradwire/kernels/compress/compressor.h"
#include "gradwire/kernels/compress/segments.h"
#include "gradwire/kernels/compress/warmup.h"
#include "gradwire/kernels/core/error.h"

namespace gradwire::planner {
namespace {

constexpr size_t kSampleNumel = size_t{1} << 20;

/// What an option needs of a spec.
struct PricedSpec {
  SpecTraffic traffic;  // with the exchanges that are asked for
  CodecCost codec = {};
};

CodecCost codec_of(const CompressorSpec& spec, const Costs& costs) {
  const std::string text = to_string(spec);
  const auto found = costs.codecs.find(text);
  if (found != costs.codecs.end()) {
    validate(found->second, text);
    return found->second;
  }
  std::vector<std::string_view> known;
  for (const auto& [name, cost] : costs.codecs) {
    known.push_back(name);
  }
  if (!asks_for_nothing(text)) {
    throw_unknown_name("costs of codec", text, known);
  }
  return {};
}

PricedSpec priced(const std::string& text, const BucketOptionRequest& request, const Costs& costs) {
  PricedSpec of{.traffic = spec_traffic(text, request.world_size, request.device),
                .codec = codec_of(parse_spec(text), costs)};
  std::erase_if(of.traffic.exchanges, [&](std::string_view exchange) {
    const bool asked = request.exchanges.empty() ||
                       std::ranges::find(request.exchanges, exchange) != request.exchanges.end();
    const bool allowed =
        request.mean == MeanBits::kSameOnAllRanks || find_exchange(exchange).rank_order;
    return !asked || !allowed || find_exchange(exchange).sums_in_any_order;
  });
  return of;
}

BucketOption option_of(const PricedSpec& spec, std::string_view exchange, int streams,
                       const BucketOptionRequest& request, const Costs& costs) {
  const double payloads = exchange == "gather" ? request.world_size : 1;
  const auto dense = [](size_t numel) { return 4.0 * static_cast<double>(numel); };
  BucketOption option;
  const SpecTraffic& traffic = spec.traffic;
  option.name = concat(traffic.spec, ", ", exchange);
  if (streams > 1) {
    option.name += concat(", ", streams, " streams");
  }
  option.compressor = traffic.spec;
  option.exchange = exchange;
  option.streams = streams;
  option.loss = asks_for_nothing(traffic.spec) ? 0 : std::max(0.0, 1 - traffic.bytes_per_element / 4);
  option.encode_s = [codec = spec.codec, dense](size_t m) { return codec.encode_s(dense(m)); };
  option.decode_s = [codec = spec.codec, dense, payloads](size_t m) {
    return codec.decode_s(dense(m), payloads);
  };
  option.exchange_s = [traffic, exchange = std::string(exchange), streams, costs,
                       world_size = request.world_size](size_t m) {
    ExchangeLoad load;
    load.world_size = world_size;
    load.numel = m;
    load.payload_bytes =
        static_cast<size_t>(std::ceil(traffic.bytes_per_element * static_cast<double>(m)));
    load.density = traffic.density;
    return exchange_seconds(exchange, load, costs, streams);
  };
  return option;
}

}  // namespace

SpecTraffic spec_traffic(const std::string& text, int world_size, DeviceType device) {
  const CompressorSpec spec = parse_spec(text);
  check(spec.choice.rank == 0, "bucket options: what '", text,
        "' sends depends on the shapes of parameters, expected a spec that does not");
  const auto compressor =
      make_compressor(lasting_spec(spec), {.numel = kSampleNumel, .world_size = world_size});
  return {.spec = to_string(spec),
          .bytes_per_element =
              static_cast<double>(compressor->capacity_bytes()) / static_cast<double>(kSampleNumel),
          .density = find_compressor(spec.name).selector() ? spec.choice.density : 1.0,
          .exchanges = exchanges_that_carry(*compressor, device)};
}

std::vector<BucketOption> make_bucket_options(const BucketOptionRequest& request,
                                              const Costs& costs) {
  validate(costs.link);
  check(request.world_size >= 1, "bucket options: world_size is ", request.world_size,
        ", must be at least 1");
  check(!request.streams.empty(), "bucket options: 0 numbers of streams, expected at least 1");
  std::vector<std::string> specs(kAlwaysConsidered.begin(), kAlwaysConsidered.end());
  for (const std::string& text : request.specs) {
    const std::string spec = to_string(parse_spec(text));
    if (std::ranges::find(specs, spec) == specs.end()) {
      specs.push_back(spec);
    }
  }
  for (const std::string& exchange : request.exchanges) {
    find_exchange(exchange);  // an unknown name lists the known ones
  }
  std::vector<BucketOption> options;
  for (const std::string& text : specs) {
    const PricedSpec spec = priced(text, request, costs);
    check(!spec.traffic.exchanges.empty(),
          "bucket options: none of the exchanges asked for carries '", text, "', expected one");
    for (const std::string_view exchange : spec.traffic.exchanges) {
      for (const int streams : request.streams) {
        check(streams >= 1, "bucket options: ", streams, " streams, expected at least 1");
        options.push_back(option_of(spec, exchange, streams, request, costs));
      }
    }
  }
  return options;
}

PlanMemory memory_of(std::span<const ReadyGradient> gradients, std::span<const BucketOption> options,
                     std::span<const PlannedBucket> buckets, int world_size) {
  Plan plan;
  for (const PlannedBucket& planned : buckets) {
    const BucketOption& option = options[planned.option];
    PlanGroup group{.spec = parse_spec(option.compressor), .numel = planned.numel, .segments = {}};
    for (size_t g = planned.begin; g < planned.end; ++g) {
      group.segments.push_back(whole_parameter(static_cast<ParamId>(g), std::array{gradients[g].numel}));
    }
    plan.buckets.push_back({.numel = planned.numel, .exchange = option.exchange, .groups = {group}});
  }
  return gradwire::memory_of(plan, world_size);
}

std::vector<ReadyGradient> ready_gradients(const Profile& profile) {
  validate(profile);
  std::vector<ReadyGradient> gradients;
  double now_s = 0;
  for (const BackwardPart& part : backward_parts(profile)) {
    now_s += part.seconds;
    if (part.layer != kNoLayer && profile.layers[part.layer].numel > 0) {
      const LayerProfile& layer = profile.layers[part.layer];
      gradients.push_back({layer.name, layer.numel, now_s});
    }
  }
  check(!gradients.empty(), "profile '", profile.model, "': none of ", profile.layers.size(),
        " layers has a gradient, expected at least 1");
  return gradients;
}

}  // namespace gradwire::planner
