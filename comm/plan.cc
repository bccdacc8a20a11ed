#include "gradwire/comm/plan.h"

#include <algorithm>
#include <sstream>
#include <unordered_set>

#include "gradwire/comm/exchange.h"
#include "gradwire/comm/fingerprint.h"
#include "gradwire/comm/plan_memory.h"
#include "gradwire/kernels/compress/segments.h"
#include "gradwire/kernels/compress/warmup.h"

namespace gradwire {
namespace {

bool narrower_than_16_bits(const CompressorSpec& spec, DType dtype) {
  return find_compressor(spec.name).selector() || value_bits(spec.codec.values, dtype) < 16;
}

// Exempt parameters travel in 16 bits: a 16-bit gradient is then sent as it is.
// In the steps in which all others are dense, they are too.
CompressorSpec exempt_spec(const CompressorSpec& asked, DType dtype) {
  CompressorSpec exempt = parse_spec(dtype == DType::kFloat32 ? "bf16" : "none");
  const bool starts_raw = asked.choice.start_values == ValueCodec::kRaw;
  exempt.choice.start = starts_raw && dtype == DType::kFloat32 ? asked.choice.start : 0;
  return exempt;
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

/// Whether `text` is `pattern` with some characters, or none, in the place of each `*`.
bool matches(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0;
  size_t after_star = std::string_view::npos, resume = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      after_star = ++p;
      resume = t;
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (after_star != std::string_view::npos) {  // the last star takes one more
      p = after_star;
      t = ++resume;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == std::string_view::npos;
}

void check_dtype(const CompressorSpec& spec, DType dtype) {
  check(!spec.feedback.ef21 || dtype == DType::kFloat32, "plan: '", to_string(spec), "' of ",
        to_string(dtype), " gradients, expected float32: the estimate adds up in the gradient");
}

void check_rules(std::span<const SpecRule> rules, DType dtype) {
  for (size_t r = 0; r < rules.size(); ++r) {
    const SpecRule& rule = rules[r];
    validate(rule.spec);
    check_dtype(rule.spec, dtype);
    check(!rule.name.empty(), "plan: the name of rule ", r, " is empty, expected a pattern");
    check(rule.least_ndim <= rule.most_ndim, "plan: least_ndim of rule ", r, " is ",
          rule.least_ndim, ", must be at most most_ndim, ", rule.most_ndim);
    check(rule.least_numel <= rule.most_numel, "plan: least_numel of rule ", r, " is ",
          rule.least_numel, ", must be at most most_numel, ", rule.most_numel);
  }
}

/// Null: none fits.
const SpecRule* rule_for(const ParamInfo& parameter, std::span<const SpecRule> rules) {
  const auto rule = std::ranges::find_if(
      rules, [&](const SpecRule& each) { return each.fits(parameter); });
  return rule == rules.end() ? nullptr : &*rule;
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
    check(parameter.numel() <= kMostNumel, "plan: parameter '", parameter.name, "' of shape ",
          shape_text(parameter), " has more than ", kMostNumel,
          " elements, expected at most so many");
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
    plan.places[p] = {.bucket = id, .offset = group.offset + group.numel};
    group.segments.push_back(whole_parameter(p, plan.parameters[p].shape));
    group.numel += group.segments.back().numel;
  }
  bucket.numel += group.numel;
  bucket.groups.push_back(std::move(group));
}

// make_exchange() would say so too, but only when every rank has joined.
bool carries(const ExchangeRow& row, const Plan& plan, const PlanGroup& group) {
  return row.accepts(*make_compressor(lasting_spec(group.spec), shape_of(plan, group)));
}

bool carries_all(const ExchangeRow& row, const Plan& plan, const PlanBucket& bucket) {
  return std::ranges::all_of(
      bucket.groups, [&](const PlanGroup& group) { return carries(row, plan, group); });
}

std::string_view exchange_of(const Plan& plan, BucketId id, const PlanOptions& options) {
  if (!options.exchanges.empty()) {
    return options.exchanges[id];
  }
  if (options.exchange != "auto") {
    return options.exchange;
  }
  const PlanBucket& bucket = plan.buckets[id];
  const std::string_view usual = default_exchange(options.spec);
  if (options.rules.empty() || carries_all(find_exchange(usual), plan, bucket)) {
    return usual;
  }
  for (const PlanGroup& group : bucket.groups) {
    const std::string_view other = default_exchange(group.spec);
    if (carries_all(find_exchange(other), plan, bucket)) {
      return other;
    }
  }
  return usual;  // of which check_exchanges() says what it cannot carry
}

// What the caller asked for comes first: of an exchange that carries neither that nor the exempt
// groups, the latter would be the wrong thing to hear of.
void check_exchanges(const Plan& plan, const PlanOptions& options) {
  const CompressorSpec& asked = options.spec;
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
      const ParamInfo& first = plan.parameters[group.segments[0].parameter];
      const SpecRule* const rule = rule_for(first, options.rules);
      check(rule == nullptr || carries(row, plan, group), "plan: exchange '", row.name,
            "' cannot carry '", to_string(group.spec), "', which rule ",
            rule == nullptr ? 0 : rule - options.rules.data(), " gives to '", first.name,
            "', expected ", row.carries);
      check(group.spec == asked || carries(row, plan, group), "plan: exchange '", row.name,
            "' cannot carry the 1-D parameters beside '", to_string(asked), "' (the first is '",
            first.name, "'): lossy specs narrower than 16 bits exempt them, so that they travel as '",
            to_string(group.spec), "' of ", to_string(plan.dtype), "; expected ", row.carries,
            ", or exempt_1d = never");
    }
  }
}

void describe_group(const Plan& plan, const PlanGroup& group, size_t index, std::ostream& out) {
  const auto compressor = make_compressor(lasting_spec(group.spec), shape_of(plan, group));
  out << "  group " << index << ": " << to_string(group.spec) << ", " << group.numel
      << " elements, capacity " << compressor->capacity_bytes() << " bytes";
  if (changes_by_step(group.spec)) {
    const CompressorSpec first = spec_in_step(group.spec, 0);
    out << ", in the first step " << to_string(first) << " of "
        << make_compressor(first, shape_of(plan, group))->capacity_bytes() << " bytes";
  }
  out << "\n";
  for (const Segment& segment : group.segments) {
    const ParamInfo& parameter = plan.parameters[segment.parameter];
    out << "    parameter " << segment.parameter << ": " << parameter.name << " "
        << shape_text(parameter) << " at " << plan.places[segment.parameter].offset << "\n";
  }
}

std::string description_of(const Plan& plan, ResidualMemory residual_memory) {
  size_t numel = 0;
  for (const PlanBucket& bucket : plan.buckets) {
    numel += bucket.numel;
  }
  std::ostringstream out;
  out << "plan: " << plan.parameters.size() << " parameters, " << numel << " elements, "
      << to_string(plan.dtype) << ", seed " << plan.seed << ", " << plan.buckets.size()
      << " buckets"
      << (plan.ranks_per_node > 1 ? concat(", ", plan.ranks_per_node, " ranks per node")
                                  : std::string())
      << "\n";
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    const PlanBucket& bucket = plan.buckets[b];
    const bool rank_order = find_exchange(bucket.exchange).rank_order;
    out << "bucket " << b << ": " << bucket.exchange
        << (rank_order ? "" : " (the same bits on all ranks, not of the rank-order sum)") << ", "
        << bucket.numel << " elements, " << bucket.numel * size_of(plan.dtype) << " bytes\n";
    for (size_t g = 0; g < bucket.groups.size(); ++g) {
      describe_group(plan, bucket.groups[g], g, out);
    }
  }
  const bool on_host = residual_memory == ResidualMemory::kHost;
  const PlanMemory kept = kept_between_steps(plan);
  out << "kept on each rank: gradients " << kept.gradients << " bytes, residuals (two buffers"
      << (on_host ? " in memory of the host" : "") << ") " << kept.residuals
      << " bytes of float32 and " << kept.narrow << " bytes of bfloat16, estimates "
      << kept.estimates << " bytes, in compressors " << kept.compressors << " bytes\n";
  if (on_host) {
    out << "on a GPU, in place of residuals: at most " << kept.scratch
        << " bytes to compress, and as many for each stream\n";
  }
  return out.str();
}

}  // namespace

size_t ParamInfo::numel() const { return whole_parameter(0, shape).numel; }

std::string Plan::describe() const { return description_of(*this, residual_memory); }

bool SpecRule::fits(const ParamInfo& parameter) const {
  const size_t ndim = parameter.shape.size(), numel = parameter.numel();
  return least_ndim <= ndim && ndim <= most_ndim && least_numel <= numel && numel <= most_numel &&
         matches(name, parameter.name);
}

uint64_t Plan::fingerprint() const { return fnv1a(description_of(*this, ResidualMemory::kDevice)); }

Plan make_plan(std::span<const ParamInfo> parameters, const PlanOptions& options) {
  validate(options.spec);
  check_dtype(options.spec, options.dtype);
  check_rules(options.rules, options.dtype);
  check_parameters(parameters, options);
  const bool exempts = options.exempt_1d == PlanOptions::Exempt1D::kAuto &&
                       narrower_than_16_bits(options.spec, options.dtype);

  Plan plan{.dtype = options.dtype,
            .seed = options.seed,
            .ranks_per_node = options.ranks_per_node,
            .residual_memory = options.residual_memory,
            .parameters = {parameters.begin(), parameters.end()},
            .buckets = {},
            .places = std::vector<Plan::Place>(parameters.size())};
  if (!options.buckets.empty()) {
    check_buckets(options.buckets, parameters.size());
  }
  check(options.exchanges.empty() || options.exchanges.size() == options.buckets.size(), "plan: ",
        options.exchanges.size(), " exchanges for ", options.buckets.size(),
        " buckets, expected one for each or none");
  // The groups of a bucket in their order, those of fixed length first where nobody rules.
  std::vector<CompressorSpec> specs{exempt_spec(options.spec, options.dtype)};
  for (const SpecRule& rule : options.rules) {
    specs.push_back(rule.spec);
  }
  specs.push_back(options.spec);
  const auto place_of = [&](const CompressorSpec& spec) {
    return static_cast<size_t>(std::ranges::find(specs, spec) - specs.begin());
  };
  for (const std::vector<ParamId>& members :
       options.buckets.empty() ? fill_buckets(parameters, options) : options.buckets) {
    std::vector<std::vector<ParamId>> groups(specs.size());
    for (const ParamId p : members) {
      const SpecRule* const rule = rule_for(parameters[p], options.rules);
      const bool exempt = exempts && parameters[p].shape.size() <= 1;
      groups[rule != nullptr ? place_of(rule->spec) : exempt ? 0 : place_of(options.spec)]
          .push_back(p);
    }
    const auto id = static_cast<BucketId>(plan.buckets.size());
    plan.buckets.emplace_back();
    for (size_t g = 0; g < specs.size(); ++g) {
      add_group(specs[g], groups[g], id, plan);
    }
    plan.buckets[id].exchange = find_exchange(exchange_of(plan, id, options)).name;
  }
  check_exchanges(plan, options);
  return plan;
}

}  // namespace gradwire
