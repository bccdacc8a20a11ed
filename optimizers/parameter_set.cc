#include "gradwire/optimizers/parameter_set.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>

#include "gradwire/kernels/ops/cast.h"
#include "gradwire/optimizers/parameter_checks.h"
#include "gradwire/optimizers/state_code.h"
#include "gradwire/optimizers/step.h"

namespace gradwire {
namespace {

constexpr size_t kStateAlignment = 32;  // elements: 64 bytes, of 16 bits as well
constexpr size_t kCodeAlignment = 64;

constexpr size_t padded(size_t numel, size_t alignment = kStateAlignment) {
  return (numel + alignment - 1) / alignment * alignment;
}

/// Where they are; in `scratch` where values were written by others, whose masters these are then.
std::span<float> load_master(const ParameterSet::Item& item, size_t begin, size_t count,
                             std::span<float, kStepPiece> scratch) {
  const std::span<float> master = item.master.subspan(begin, count);
  const TensorView value = item.value.subview(begin, count);
  alignas(64) std::array<uint16_t, kStepPiece> rounded;
  cpu::narrow(master, {rounded.data(), count, value.dtype, {}});
  if (std::memcmp(rounded.data(), value.data, value.size_bytes()) == 0) {
    return master;
  }
  const std::span<float> out = scratch.first(count);
  cpu::follow_values(master, value, out);
  return out;
}

/// FNV-1a.
uint64_t hash_of(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  }
  return hash;
}

}  // namespace

ParameterSet::ParameterSet(const OptimizerSpec& spec, const std::vector<Parameter>& parameters,
                           const std::vector<ParamGroup>& groups)
    : device_(device_of(parameters)), disjoint_(parameters.size()) {
  check(!parameters.empty(), spec.name, ": there are 0 parameters, expected at least 1");
  items_.reserve(parameters.size());  // blocks keep pointers to items
  for (const Parameter& parameter : parameters) {
    const Binding place{parameter.value, parameter.gradient};
    check_place(parameter.name, place, device_);
    check(parameter.group < groups.size(), "parameter '", parameter.name, "': group is ",
          parameter.group, ", must be below ", groups.size(), ", the number of groups");
    add(parameter, keeps_codes(spec, groups[parameter.group], parameter.value.numel));
    disjoint_.add(items_.back().name, place);
  }
  disjoint_.check();
  set_groups(spec, groups);
  finite_.resize(blocks_.size());
  make_masters(spec.master);
}

void ParameterSet::bind(std::span<const Binding> places) {
  check(places.size() == items_.size(), "bind: ", places.size(), " places, expected ",
        items_.size(), ", one of each parameter");
  disjoint_.clear();
  for (size_t i = 0; i < places.size(); ++i) {
    const Item& item = items_[i];
    const TensorView& value = places[i].value;
    check(value.numel == item.value.numel && value.dtype == item.value.dtype, "parameter '",
          item.name, "': the value has ", value.numel, " elements of ", to_string(value.dtype),
          ", expected ", item.value.numel, " of ", to_string(item.value.dtype), " as before");
    check_place(item.name, places[i], device_);
    disjoint_.add(item.name, places[i]);
  }
  disjoint_.check();
  for (size_t i = 0; i < places.size(); ++i) {
    items_[i].value = places[i].value;
    items_[i].gradient = places[i].gradient;
    items_[i].reader = places[i].reader;
    items_[i].reader_begin = places[i].reader_begin;
  }
}

void ParameterSet::set_groups(const OptimizerSpec& spec, const std::vector<ParamGroup>& groups) {
  for (size_t i = 0; i < groups.size(); ++i) {
    check_group(groups[i], i);
  }
  for (const Item& item : items_) {
    const ParamGroup& group = groups[item.group];
    check(item.has_codes == keeps_codes(spec, group, item.value.numel), "group ", item.group,
          ": full_state is ", group.full_state, ", expected ", !group.full_state,
          " as before: parameter '", item.name, "' has state of ", item.has_codes ? 8 : 32,
          " bits");
  }
  for (Item& item : items_) {
    const ParamGroup& group = groups[item.group];
    const double decay = group.weight_decay.value_or(spec.weight_decay.value());
    item.weight_decay = to_rate(decay);
    item.momentum = static_cast<float>(group.momentum.value_or(spec.momentum));
    item.learning_rate_scale = group.learning_rate_scale;
    item.adapt = group.adapt && (spec.adapt_undecayed || decay > 0.0);
    item.beta1 = group.beta1.value_or(spec.beta1);
    item.beta2 = group.beta2.value_or(spec.beta2);
    item.epsilon = group.epsilon.value_or(spec.epsilon.value());
  }
}

void ParameterSet::count_step() {
  for (Item& item : items_) {
    item.steps += item.present() ? 1 : 0;
  }
}

void ParameterSet::make_masters(MasterWeights kind) {
  const auto has_remainder = [&](const Item& item) {
    return item.value.dtype == DType::kBFloat16 && kind == MasterWeights::kRemainder;
  };
  // Twice: spans into the buffers once their sizes are known.
  for (const bool measuring : {true, false}) {
    size_t floats = 0, halves = 0;
    for (Item& item : items_) {
      if (item.value.dtype == DType::kFloat32) {
        continue;
      }
      size_t& used = has_remainder(item) ? halves : floats;
      if (!measuring && has_remainder(item)) {
        item.remainder = remainders_.as<uint16_t>().subspan(used, item.value.numel);
      } else if (!measuring) {
        item.master = masters_.as<float>().subspan(used, item.value.numel);
      }
      used += padded(item.value.numel);
    }
    if (measuring) {
      masters_ = Buffer(floats * sizeof(float), device_);
      remainders_ = Buffer(halves * sizeof(uint16_t), device_);
    }
  }
}

void ParameterSet::add(const Parameter& parameter, bool has_codes) {
  const size_t numel = parameter.value.numel;
  Item& item = items_.emplace_back();
  item.name = parameter.name;
  item.value = parameter.value;
  item.gradient = parameter.gradient;
  item.group = parameter.group;
  item.replica = parameter.replica;
  item.has_codes = has_codes;
  item.draw_key = hash_of(parameter.name);
  item.whole_offset = std::exchange(state_numel_.whole, state_numel_.whole + padded(numel));
  if (has_codes) {
    item.state_offset =
        std::exchange(state_numel_.codes, state_numel_.codes + padded(numel, kCodeAlignment));
    item.scale_offset =
        std::exchange(state_numel_.scales, state_numel_.scales + padded(code_blocks(numel)));
  } else {
    item.state_offset = std::exchange(state_numel_.floats, state_numel_.floats + padded(numel));
  }
  item.first_block = blocks_.size();
  item.block_count = (numel + kStepBlock - 1) / kStepBlock;
  for (size_t offset = 0; offset < numel; offset += kStepBlock) {
    blocks_.push_back({.item = &items_.back(),
                       .index = blocks_.size(),
                       .offset = offset,
                       .count = std::min(kStepBlock, numel - offset)});
  }
}

void ParameterSet::visit_master(const Item& item, StateVisitor& visitor) const {
  const size_t numel = item.value.numel;
  if (!item.master.empty()) {
    visitor.tensor(item.name, "master", {item.master.data(), numel, DType::kFloat32, device_});
  } else if (!item.remainder.empty()) {
    visitor.tensor(item.name, "remainder",
                   {item.remainder.data(), numel, DType::kBFloat16, device_});
  }
}

bool ParameterSet::all_gradients_finite(ThreadPool& pool) {
  std::fill(finite_.begin(), finite_.end(), uint8_t{1});
  for_each_block(pool,
                 [this](const Block& block) { finite_[block.index] = all_finite(block) ? 1 : 0; });
  return std::find(finite_.begin(), finite_.end(), 0) == finite_.end();
}

void ParameterSet::check_gradients(ThreadPool& pool) {
  if (all_gradients_finite(pool)) {
    return;
  }
  const auto found = std::find(finite_.begin(), finite_.end(), 0);
  const Block& block = blocks_[static_cast<size_t>(found - finite_.begin())];
  block.read_gradient([&](std::span<const float> gradient, size_t begin) {
    const auto element =
        std::find_if(gradient.begin(), gradient.end(), [](float x) { return !std::isfinite(x); });
    if (element != gradient.end()) {
      throw NonFiniteGradient(concat("gradient of parameter '", block.item->name, "': element ",
                                     begin + static_cast<size_t>(element - gradient.begin()),
                                     " is ", *element, ", expected finite values"));
    }
  });
}

void ParameterSet::check_gradients_in_memory(std::string_view call) const {
  for (const Item& item : items_) {
    check(item.reader == nullptr, call, ": the gradient of parameter '", item.name,
          "' comes from a reader, expected memory to write what is to be exchanged to");
  }
}

void ParameterSet::take_values(bool fresh, ThreadPool& pool) const {
  const auto take = [&](size_t i) {
    const Block& block = blocks_[i];
    const Item& item = *block.item;
    if (fresh && item.steps != 0) {
      return;
    }
    if (!item.remainder.empty()) {
      const auto lower = item.remainder.subspan(block.offset, block.count);
      std::fill(lower.begin(), lower.end(), uint16_t{0});
    } else if (!item.master.empty()) {
      cpu::widen(item.value.subview(block.offset, block.count),
                 item.master.subspan(block.offset, block.count));
    }
  };
  if (master_bytes() != 0) {
    pool.parallel_for(blocks_.size(), std::ref(take));
  }
}

std::span<const float> ParameterSet::Block::made_gradient() const {
  if (item->reader == nullptr) {
    return {};
  }
  alignas(64) thread_local std::array<float, kStepBlock> made;
  const std::span<float> out = std::span(made).first(count);
  item->reader->read(item->reader_begin + offset, out);
  return out;
}

bool all_finite(const ParameterSet::Block& block) {
  bool finite = true;
  block.read_gradient(
      [&](std::span<const float> gradient, size_t) { finite &= cpu::all_finite(gradient); });
  return finite;
}

double gradient_sum_of_squares(const ParameterSet::Block& block) {
  double sum = 0.0;
  block.read_gradient(
      [&](std::span<const float> gradient, size_t) { sum += cpu::sum_of_squares(gradient); });
  return sum;
}

std::span<float> load_value(const ParameterSet::Item& item, size_t begin, size_t count,
                            std::span<float, kStepPiece> scratch) {
  if (item.value.dtype == DType::kFloat32) {
    return item.value.as<float>().subspan(begin, count);
  }
  if (!item.master.empty()) {
    return load_master(item, begin, count, scratch);
  }
  const std::span<float> out = scratch.first(count);
  cpu::join_halves(item.value.as<bfloat16>().subspan(begin, count),
                   item.remainder.subspan(begin, count), out);
  return out;
}

std::span<const float> load_gradient(const ParameterSet::Item& item, size_t begin, size_t count,
                                     std::span<float, kStepPiece> scratch) {
  if (item.gradient.dtype == DType::kFloat32) {
    return item.gradient.as<float>().subspan(begin, count);
  }
  const std::span<float> out = scratch.first(count);
  cpu::widen(item.gradient.subview(begin, count), out);
  return out;
}

void store_value(const ParameterSet::Item& item, size_t begin, std::span<const float> value) {
  if (item.remainder.empty()) {
    const std::span<float> master = item.master.subspan(begin, value.size());
    if (value.data() != master.data()) {
      std::copy(value.begin(), value.end(), master.begin());
    }
    cpu::narrow(value, item.value.subview(begin, value.size()));
  } else {
    cpu::split_halves(value, item.value.as<bfloat16>().subspan(begin, value.size()),
                      item.remainder.subspan(begin, value.size()));
  }
}

void store_gradient(const ParameterSet::Item& item, size_t begin, std::span<const float> value) {
  const ConstTensorView& to = item.gradient;
  // A Parameter's gradient is given to be written.
  const TensorView all{const_cast<void*>(to.data), to.numel, to.dtype, to.device};
  cpu::narrow(value, all.subview(begin, value.size()));
}

void check_options(std::string_view optimizer, const StepOptions& options) {
  check(options.learning_rate >= 0.0 && options.learning_rate <= std::numeric_limits<float>::max(),
        optimizer, ": learning_rate is ", options.learning_rate, ", must be finite and >= 0");
  check(options.gradient_scale > 0.0 && options.gradient_scale <= 1.0, optimizer,
        ": gradient_scale is ", options.gradient_scale, ", must be in (0, 1]");
}

void check_scale_of_moves(std::string_view optimizer, const StepOptions& options) {
  constexpr const char* kWhy = ": what values were moved by has none";
  check(options.gradient_scale == 1.0, optimizer, ": gradient_scale is ", options.gradient_scale,
        ", must be 1", kWhy);
  check(options.on_device.loss_scale == nullptr, optimizer, ": loss_scale is given, expected none",
        kWhy);
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
