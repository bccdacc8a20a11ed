#include "gradwire/optimizers/parameter_set.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "gradwire/optimizers/step.h"

namespace gradwire {
namespace {

constexpr size_t kStateAlignment = 16;  // floats: 64 bytes

void check_view(const Parameter& parameter, std::string_view what, const TensorView& view) {
  check(view.dtype == DType::kFloat32, "parameter '", parameter.name, "': ", what, " is ",
        to_string(view.dtype), ", expected float32");
  check(view.device.type == DeviceType::kCpu, "parameter '", parameter.name, "': ", what,
        " is in CUDA memory, expected CPU memory");
  check(view.data != nullptr || view.numel == 0, "parameter '", parameter.name, "': ", what,
        " has no memory, expected a pointer to ", view.numel, " elements");
}

void check_parameter(const Parameter& parameter, size_t group_count) {
  check(parameter.value.numel == parameter.gradient.numel, "parameter '", parameter.name,
        "': the gradient has ", parameter.gradient.numel, " elements, expected ",
        parameter.value.numel, " as the value has");
  check_view(parameter, "value", parameter.value);
  check_view(parameter, "gradient", parameter.gradient);
  check(parameter.group < group_count, "parameter '", parameter.name, "': group is ",
        parameter.group, ", must be below ", group_count, ", the number of groups");
}

void check_group(const ParamGroup& group, size_t index) {
  const double decay = group.weight_decay.value_or(0.0);
  check(std::isfinite(decay) && decay >= 0.0, "group ", index, ": weight_decay is ", decay,
        ", must be >= 0");
  const double momentum = group.momentum.value_or(0.0);
  check(momentum >= 0.0 && momentum < 1.0, "group ", index, ": momentum is ", momentum,
        ", must be in [0, 1)");
  check(std::isfinite(group.learning_rate_scale) && group.learning_rate_scale >= 0.0, "group ",
        index, ": learning_rate_scale is ", group.learning_rate_scale, ", must be >= 0");
}

// An update writes values while it reads gradients and other values: they must not share memory.
void check_disjoint(const std::vector<Parameter>& parameters) {
  struct Run {
    const std::byte *begin, *end;
    const Parameter* parameter;
    bool written;
  };
  std::vector<Run> runs;
  for (const Parameter& parameter : parameters) {
    for (const TensorView* view : {&parameter.value, &parameter.gradient}) {
      if (view->numel == 0) {
        continue;
      }
      const auto* begin = static_cast<const std::byte*>(view->data);
      runs.push_back({begin, begin + view->size_bytes(), &parameter, view == &parameter.value});
    }
  }
  std::sort(runs.begin(), runs.end(),
            [](const Run& a, const Run& b) { return std::less<>()(a.begin, b.begin); });
  const Run* furthest = nullptr;          // of all runs so far
  const Run* furthest_written = nullptr;  // of the values among them
  for (const Run& run : runs) {
    const Run* other = run.written ? furthest : furthest_written;
    check(other == nullptr || !std::less<>()(run.begin, other->end), "parameter '",
          run.parameter->name, "': its ", run.written ? "value" : "gradient",
          " shares memory with the ", other != nullptr && other->written ? "value" : "gradient",
          " of '", other != nullptr ? other->parameter->name : "", "', expected memory of its own");
    if (furthest == nullptr || std::less<>()(furthest->end, run.end)) {
      furthest = &run;
    }
    if (run.written &&
        (furthest_written == nullptr || std::less<>()(furthest_written->end, run.end))) {
      furthest_written = &run;
    }
  }
}

}  // namespace

ParameterSet::ParameterSet(const OptimizerSpec& spec, const std::vector<Parameter>& parameters,
                           const std::vector<ParamGroup>& groups) {
  check(!parameters.empty(), spec.name, ": there are 0 parameters, expected at least 1");
  for (size_t i = 0; i < groups.size(); ++i) {
    check_group(groups[i], i);
  }
  items_.reserve(parameters.size());  // blocks keep pointers to items
  for (const Parameter& parameter : parameters) {
    check_parameter(parameter, groups.size());
    add(spec, parameter, groups);
  }
  check_disjoint(parameters);
  finite_.resize(blocks_.size());
}

void ParameterSet::add(const OptimizerSpec& spec, const Parameter& parameter,
                       const std::vector<ParamGroup>& groups) {
  const ParamGroup& group = groups[parameter.group];
  const size_t numel = parameter.value.numel;
  const double decay = group.weight_decay.value_or(spec.weight_decay);
  items_.push_back({.name = parameter.name,
                    .value = parameter.value.as<float>(),
                    .gradient = parameter.gradient.as<float>(),
                    .weight_decay = to_rate(decay),
                    .momentum = static_cast<float>(group.momentum.value_or(spec.momentum)),
                    .learning_rate_scale = group.learning_rate_scale,
                    .adapt = group.adapt && (spec.adapt_undecayed || decay > 0.0),
                    .state_offset = state_numel_,
                    .first_block = blocks_.size(),
                    .block_count = (numel + kStepBlock - 1) / kStepBlock});
  state_numel_ += (numel + kStateAlignment - 1) / kStateAlignment * kStateAlignment;
  for (size_t offset = 0; offset < numel; offset += kStepBlock) {
    blocks_.push_back({.item = &items_.back(),
                       .index = blocks_.size(),
                       .offset = offset,
                       .count = std::min(kStepBlock, numel - offset)});
  }
}

TensorView ParameterSet::state_view(const Buffer& buffer, const Item& item) const {
  return view_of(buffer.as<float>().subspan(item.state_offset, item.value.size()));
}

void ParameterSet::check_gradients(ThreadPool& pool) {
  for_each_block(pool, [this](const Block& block) {
    finite_[block.index] = cpu::all_finite(block.gradient()) ? 1 : 0;
  });
  const auto found = std::find(finite_.begin(), finite_.end(), 0);
  if (found == finite_.end()) {
    return;
  }
  const Block& block = blocks_[static_cast<size_t>(found - finite_.begin())];
  const std::span<const float> gradient = block.gradient();
  const auto element =
      std::find_if(gradient.begin(), gradient.end(), [](float x) { return !std::isfinite(x); });
  throw NonFiniteGradient(concat("gradient of parameter '", block.item->name, "': element ",
                                 block.offset + static_cast<size_t>(element - gradient.begin()),
                                 " is ", *element, ", expected finite values"));
}

void check_options(std::string_view optimizer, const StepOptions& options) {
  check(options.learning_rate >= 0.0 && options.learning_rate <= std::numeric_limits<float>::max(),
        optimizer, ": learning_rate is ", options.learning_rate, ", must be finite and >= 0");
  check(options.gradient_scale > 0.0 && options.gradient_scale <= 1.0, optimizer,
        ": gradient_scale is ", options.gradient_scale, ", must be in (0, 1]");
}

std::vector<ParamGroup> assign_groups(std::span<Parameter> parameters,
                                      std::span<const GroupRule> rules) {
  std::vector<ParamGroup> groups(1);
  for (size_t i = 0; i < rules.size(); ++i) {
    check(rules[i].applies != nullptr, "rules[", i, "]: applies is empty, expected a predicate");
    groups.push_back(rules[i].settings);
  }
  for (Parameter& parameter : parameters) {
    const auto rule = std::find_if(rules.begin(), rules.end(), [&](const GroupRule& candidate) {
      return candidate.applies(parameter);
    });
    parameter.group = rule == rules.end() ? 0 : 1 + static_cast<size_t>(rule - rules.begin());
  }
  return groups;
}

}  // namespace gradwire
