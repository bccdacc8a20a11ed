#include "gradwire/comm/plan.h"

#include <algorithm>
#include <sstream>
#include <unordered_set>

#include "gradwire/comm/exchange.h"
#include "gradwire/comm/fingerprint.h"

namespace gradwire {
namespace {

bool narrower_than_16_bits(const CompressorSpec& spec, DType dtype) {
  return find_compressor(spec.name).selector || value_bits(spec.values, dtype) < 16;
}

// Exempt parameters travel in 16 bits: a 16-bit gradient is then sent as it is.
CompressorSpec exempt_spec(DType dtype) {
  return parse_spec(dtype == DType::kFloat32 ? "bf16" : "none");
}

std::string shape_text(const ParamInfo& parameter) {
  std::ostringstream out;
  out << "[";
  for (size_t i = 0; i < parameter.shape.size(); ++i) {
    out << (i == 0 ? "" : ", ") << parameter.shape[i];
  }
  out << "]";
  return out.str();
}

CompressorShape shape_of(const Plan& plan, const PlanGroup& group) {
  return {.numel = group.numel,
          .dtype = plan.dtype,
          .device = {},
          .segments = group.segments,
          .seed = plan.seed,
          .rank = 0};
}

void check_parameters(std::span<const ParamInfo> parameters, const PlanOptions& options) {
  check(!parameters.empty(), "plan: 0 parameters, expected at least one");
  check(options.ranks_per_node >= 1, "plan: ranks_per_node is ", options.ranks_per_node,
        ", must be at least 1");
  check(options.bucket_bytes > 0, "plan: bucket_bytes is 0, must be positive");
  std::unordered_set<std::string_view> names;
  for (const ParamInfo& parameter : parameters) {
    check(parameter.numel() > 0, "plan: parameter '", parameter.name, "' of shape ",
          shape_text(parameter), " has no elements, expected at least one");
    check(parameter.name.find('\n') == std::string::npos, "plan: the name of a parameter, '",
          parameter.name, "', has a line break, expected one line");
    check(names.insert(parameter.name).second, "plan: two parameters are named '", parameter.name,
          "', expected different names");
  }
}

// What the forward pass needs first leaves alone.
void split_last(std::span<const ParamInfo> parameters, const PlanOptions& options,
                std::vector<std::vector<ParamId>>& buckets) {
  std::vector<ParamId>& whole = buckets.back();
  size_t kept = 0, bytes = 0;
  while (kept < whole.size()) {
    bytes += parameters[whole[whole.size() - 1 - kept]].numel() * size_of(options.dtype);
    if (bytes > options.last_bucket_bytes && kept > 0) {
      break;
    }
    ++kept;
  }
  if (kept < whole.size()) {
    const auto first = whole.end() - static_cast<std::ptrdiff_t>(kept);
    std::vector<ParamId> last(first, whole.end());
    whole.erase(first, whole.end());
    buckets.push_back(std::move(last));
  }
}

// Which parameters share a bucket: the last of the forward pass first, because backward makes their
// gradients first.
std::vector<std::vector<ParamId>> fill_buckets(std::span<const ParamInfo> parameters,
                                               const PlanOptions& options) {
  std::vector<std::vector<ParamId>> buckets;
  size_t filled_bytes = 0;
  for (size_t i = parameters.size(); i-- > 0;) {
    const size_t bytes = parameters[i].numel() * size_of(options.dtype);
    if (buckets.empty() || filled_bytes + bytes > options.bucket_bytes) {
      buckets.emplace_back();
      filled_bytes = 0;
    }
    buckets.back().push_back(static_cast<ParamId>(i));
    filled_bytes += bytes;
  }
  if (options.last_bucket_bytes > 0) {
    split_last(parameters, options, buckets);
  }
  return buckets;
}

void check_buckets(std::span<const std::vector<ParamId>> buckets, size_t parameters) {
  std::vector<bool> seen(parameters, false);
  for (size_t b = 0; b < buckets.size(); ++b) {
    check(!buckets[b].empty(), "plan: bucket ", b, " has 0 parameters, expected at least one");
    for (const ParamId p : buckets[b]) {
      check(p < parameters, "plan: bucket ", b, " holds parameter ", p, ", there are ", parameters);
      check(!seen[p], "plan: parameter ", p, " is in two places of the buckets, expected one");
      seen[p] = true;
    }
  }
  const auto missing = std::find(seen.begin(), seen.end(), false);
  check(missing == seen.end(), "plan: parameter ", missing - seen.begin(),
        " is in no bucket, expected every parameter in one");
}

// Appends a group holding `members` in their order, unless there are none.
void add_group(const CompressorSpec& spec, std::span<const ParamId> members, BucketId id,
               Plan& plan) {
  if (members.empty()) {
    return;
  }
  PlanBucket& bucket = plan.buckets[id];
  PlanGroup group{.spec = spec, .offset = bucket.numel, .numel = 0, .segments = {}};
  for (const ParamId p : members) {
    const size_t numel = plan.parameters[p].numel();
    plan.places[p] = {.bucket = id, .offset = group.offset + group.numel};
    group.segments.push_back({.parameter = p, .offset_in_parameter = 0, .numel = numel});
    group.numel += numel;
  }
  bucket.numel += group.numel;
  bucket.groups.push_back(std::move(group));
}

// make_exchange() would say so too, but only when every rank has joined.
bool carries(const ExchangeRow& row, const Plan& plan, const PlanGroup& group) {
  return row.accepts(*make_compressor(group.spec, shape_of(plan, group)));
}

// What the caller asked for comes first: of an exchange that carries neither that nor the exempt
// groups, the latter would be the wrong thing to hear of.
void check_exchanges(const Plan& plan, const CompressorSpec& asked) {
  for (const PlanBucket& bucket : plan.buckets) {
    const ExchangeRow& row = find_exchange(bucket.exchange);
    for (const PlanGroup& group : bucket.groups) {
      check(group.spec != asked || carries(row, plan, group), "plan: exchange '", row.name,
            "' cannot carry '", to_string(group.spec), "', expected ", row.carries);
    }
  }
  for (const PlanBucket& bucket : plan.buckets) {
    const ExchangeRow& row = find_exchange(bucket.exchange);
    for (const PlanGroup& group : bucket.groups) {
      check(group.spec == asked || carries(row, plan, group), "plan: exchange '", row.name,
            "' cannot carry the 1-D parameters beside '", to_string(asked), "' (the first is '",
            plan.parameters[group.segments[0].parameter].name,
            "'): lossy specs narrower than 16 bits exempt them, so that they travel as '",
            to_string(group.spec), "' of ", to_string(plan.dtype), "; expected ", row.carries,
            ", or exempt_1d = never");
    }
  }
}

void describe_group(const Plan& plan, const PlanGroup& group, size_t index, std::ostream& out) {
  const auto compressor = make_compressor(group.spec, shape_of(plan, group));
  out << "  group " << index << ": " << to_string(group.spec) << ", " << group.numel
      << " elements, capacity " << compressor->capacity_bytes() << " bytes\n";
  for (const Segment& segment : group.segments) {
    const ParamInfo& parameter = plan.parameters[segment.parameter];
    out << "    parameter " << segment.parameter << ": " << parameter.name << " "
        << shape_text(parameter) << " at " << plan.places[segment.parameter].offset << "\n";
  }
}

}  // namespace

size_t ParamInfo::numel() const {
  size_t product = 1;
  for (const size_t extent : shape) {
    product *= extent;
  }
  return product;
}

std::string Plan::describe() const {
  size_t numel = 0;
  for (const PlanBucket& bucket : buckets) {
    numel += bucket.numel;
  }
  std::ostringstream out;
  out << "plan: " << parameters.size() << " parameters, " << numel << " elements, "
      << to_string(dtype) << ", seed " << seed << ", " << buckets.size() << " buckets"
      << (ranks_per_node > 1 ? concat(", ", ranks_per_node, " ranks per node") : std::string())
      << "\n";
  for (size_t b = 0; b < buckets.size(); ++b) {
    const bool rank_order = find_exchange(buckets[b].exchange).rank_order;
    out << "bucket " << b << ": " << buckets[b].exchange
        << (rank_order ? "" : " (the same bits on all ranks, not of the rank-order sum)") << ", "
        << buckets[b].numel << " elements, " << buckets[b].numel * size_of(dtype) << " bytes\n";
    for (size_t g = 0; g < buckets[b].groups.size(); ++g) {
      describe_group(*this, buckets[b].groups[g], g, out);
    }
  }
  return out.str();
}

uint64_t Plan::fingerprint() const { return fnv1a(describe()); }

Plan make_plan(std::span<const ParamInfo> parameters, const PlanOptions& options) {
  validate(options.spec);
  check_parameters(parameters, options);
  const ExchangeRow& row =
      find_exchange(options.exchange == "auto" ? default_exchange(options.spec) : options.exchange);
  const bool exempts = options.exempt_1d == PlanOptions::Exempt1D::kAuto &&
                       narrower_than_16_bits(options.spec, options.dtype);

  Plan plan{.dtype = options.dtype,
            .seed = options.seed,
            .ranks_per_node = options.ranks_per_node,
            .parameters = {parameters.begin(), parameters.end()},
            .buckets = {},
            .places = std::vector<Plan::Place>(parameters.size())};
  if (!options.buckets.empty()) {
    check_buckets(options.buckets, parameters.size());
  }
  check(options.exchanges.empty() || options.exchanges.size() == options.buckets.size(), "plan: ",
        options.exchanges.size(), " exchanges for ", options.buckets.size(),
        " buckets, expected one for each or none");
  for (const std::vector<ParamId>& members :
       options.buckets.empty() ? fill_buckets(parameters, options) : options.buckets) {
    std::vector<ParamId> exempt, others;
    for (const ParamId p : members) {
      (exempts && parameters[p].shape.size() <= 1 ? exempt : others).push_back(p);
    }
    const auto id = static_cast<BucketId>(plan.buckets.size());
    const ExchangeRow& own = options.exchanges.empty() ? row : find_exchange(options.exchanges[id]);
    plan.buckets.push_back({.numel = 0, .exchange = std::string(own.name), .groups = {}});
    add_group(exempt_spec(options.dtype), exempt, id, plan);
    add_group(options.spec, others, id, plan);
  }
  check_exchanges(plan, options.spec);
  return plan;
}

}  // namespace gradwire
