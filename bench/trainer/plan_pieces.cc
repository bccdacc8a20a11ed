#include "bench/trainer/plan_pieces.h"

#include <algorithm>
#include <map>
#include <vector>

#include "gradwire/kernels/core/error.h"

namespace trainer {
namespace {

using gradwire::ParamId;

void add_text(std::string_view parameter, std::string_view name, std::string text,
              StateWriter& to) {
  to.bytes(parameter, name, std::as_writable_bytes(std::span(text)), gradwire::Device{});
}

std::string read_text(std::string_view parameter, std::string_view name, StateReader& from) {
  const auto bytes = from.bytes(parameter, name);
  gradwire::check(bytes.has_value(), from.name_of(parameter, name),
                  " is missing, must be there with the rest of its plan");
  return {reinterpret_cast<const char*>(bytes->data()), bytes->size()};
}

// Specs in an order in which every bucket has its groups: make_plan() takes them in one.
std::vector<gradwire::CompressorSpec> specs_in_order(const gradwire::Plan& plan) {
  std::vector<std::vector<gradwire::CompressorSpec>> left;
  for (const gradwire::PlanBucket& bucket : plan.buckets) {
    auto& specs = left.emplace_back();
    for (const gradwire::PlanGroup& group : bucket.groups) {
      specs.push_back(group.spec);
    }
  }
  std::vector<gradwire::CompressorSpec> order;
  while (std::erase_if(left, [](const auto& specs) { return specs.empty(); }), !left.empty()) {
    // One that stands behind no other: of one order there always is one.
    const auto first = std::ranges::find_if(left, [&](const auto& candidates) {
      return std::ranges::none_of(left, [&](const auto& specs) {
        return std::find(specs.begin() + 1, specs.end(), candidates.front()) != specs.end();
      });
    });
    gradwire::check(first != left.end(),
                    "plan: groups are in one order in one bucket and in "
                    "another order in another, expected one order");
    order.push_back(first->front());
    for (auto& specs : left) {
      std::erase(specs, order.back());
    }
  }
  return order;
}

}  // namespace

void add_plan(const gradwire::Plan& plan, StateWriter& to) {
  const std::vector<gradwire::CompressorSpec> order = specs_in_order(plan);
  for (size_t b = 0; b < plan.buckets.size(); ++b) {
    uint64_t place = 0;
    for (const gradwire::PlanGroup& group : plan.buckets[b].groups) {
      for (const gradwire::Segment& segment : group.segments) {
        const std::string& name = plan.parameters[segment.parameter].name;
        to.number(name, "bucket", b);
        to.number(name, "place", place++);
        to.number(name, "order",
                  static_cast<uint64_t>(std::ranges::find(order, group.spec) - order.begin()));
        add_text(name, "spec", gradwire::to_string(group.spec), to);
        add_text(name, "exchange", plan.buckets[b].exchange, to);
      }
    }
  }
}

std::optional<gradwire::Plan> read_plan(std::span<const gradwire::ParamInfo> parameters,
                                        gradwire::PlanOptions usual, StateReader& from) {
  if (parameters.empty() || !from.scalar(parameters[0].name, "bucket").has_value()) {
    return std::nullopt;
  }
  struct Bucket {
    std::map<uint64_t, ParamId> parameters;  // by place
    std::string exchange;
  };
  std::map<uint64_t, Bucket> buckets;
  std::multimap<uint64_t, gradwire::SpecRule> rules;  // by the order of their specs
  for (ParamId p = 0; p < parameters.size(); ++p) {
    const std::string& name = parameters[p].name;
    Bucket& bucket = buckets[from.number(name, "bucket")];
    bucket.parameters[from.number(name, "place")] = p;
    bucket.exchange = read_text(name, "exchange", from);
    rules.insert({from.number(name, "order"),
                  {.spec = gradwire::parse_spec(read_text(name, "spec", from)), .name = name}});
  }
  usual.rules.clear();
  for (const auto& [order, rule] : rules) {
    usual.rules.push_back(rule);
  }
  usual.buckets.clear();
  usual.exchanges.clear();
  for (const auto& [number, bucket] : buckets) {
    std::vector<ParamId>& members = usual.buckets.emplace_back();
    for (const auto& [place, p] : bucket.parameters) {
      members.push_back(p);
    }
    usual.exchanges.push_back(bucket.exchange);
  }
  return gradwire::make_plan(parameters, usual);
}

}  // namespace trainer
