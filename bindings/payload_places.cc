#include <algorithm>
#include <string>
#include <utility>

#include "gradwire/bindings/payload_groups.h"
#include "gradwire/kernels/compress/device_state.h"
#include "gradwire/kernels/core/device_name.h"

namespace gradwire::bindings {
namespace {

CompressorShape shape_of(const PayloadGroup& group, Device device) {
  CompressorShape shape{.numel = group.numel, .segments = group.segments, .seed = group.seed};
  if (device.type == DeviceType::kCuda) {
    shape.device = device;
    shape.state = std::make_shared<DeviceState>(device);
  }
  return shape;
}

}  // namespace

PayloadGroup payload_group(const std::string& spec, const std::vector<uint32_t>& parameters,
                           const Shapes& shapes, std::vector<py::object> payloads, float scale,
                           int64_t seed) {
  check(parameters.size() == shapes.size(), "shapes: are ", shapes.size(), ", must be ",
        parameters.size(), ", one of each parameter");
  check(!payloads.empty(), "payloads: is empty, must hold at least one payload");
  check(seed >= 0, "seed: is ", seed, ", must not be negative");
  PayloadGroup group;
  group.spec = to_string(parse_spec(spec));
  group.segments = segments_of(shapes);
  for (size_t i = 0; i < parameters.size(); ++i) {
    group.segments[i].parameter = parameters[i];
    group.numel += group.segments[i].numel;
  }
  group.seed = static_cast<uint64_t>(seed);
  group.scale = scale;
  group.arrays = std::move(payloads);
  return group;
}

std::vector<PlacedGroup> placed(const std::vector<const PayloadGroup*>& groups, const Place& place,
                                std::vector<Array>& kept) {
  std::vector<PlacedGroup> all;
  for (size_t g = 0; g < groups.size(); ++g) {
    check(groups[g] != nullptr, "payloads[", g, "]: is None, must be a group of payloads");
    const PayloadGroup& group = *groups[g];
    check(group.copies.empty() || place.device.type == DeviceType::kCpu, "payloads[", g,
          "]: are copies in CPU memory, expected payloads in memory of ", name_of(place.device),
          ", where the parameters are");
    PlacedGroup& here = all.emplace_back();
    here.group = &group;
    here.parts.assign(group.copies.begin(), group.copies.end());
    for (size_t i = 0; i < group.arrays.size(); ++i) {
      kept.push_back(Array::input_bytes(group.arrays[i],
                                        concat("payloads[", g, "].payloads[", i, "]"), place));
      here.parts.push_back(kept.back().bytes());
    }
  }
  return all;
}

PayloadPlaces::Source::Source(const PayloadGroup& group, Device device)
    : compressor(make_compressor(parse_spec(group.spec), shape_of(group, device))),
      sum(*compressor) {}

bool PayloadPlaces::Source::is_of(const PayloadGroup& group) const {
  const auto same = [](const Segment& a, const Segment& b) {
    return a.parameter == b.parameter && a.numel == b.numel && a.rows == b.rows;
  };
  const CompressorShape& shape = compressor->shape();
  return to_string(compressor->spec()) == group.spec && shape.numel == group.numel &&
         shape.seed == group.seed && std::ranges::equal(shape.segments, group.segments, same);
}

std::vector<Binding> PayloadPlaces::open(const std::vector<PlacedGroup>& groups,
                                         std::vector<Binding> places, Context& context) {
  sources_.resize(std::max(sources_.size(), groups.size()));
  for (size_t g = 0; g < groups.size(); ++g) {
    const PayloadGroup& group = *groups[g].group;
    size_t at = 0;
    for (const Segment& segment : group.segments) {
      const size_t p = segment.parameter;
      check(p < places.size() && segment.numel == places[p].value.numel, "payloads[", g,
            "]: parameter ", p, " has ", segment.numel, " elements, expected one of the ",
            places.size(), " here and as many as it has");
    }
    if (sources_[g] == nullptr || !sources_[g]->is_of(group)) {
      keep_fault(g, context);
      context.stream.wait();  // on a GPU kernels may still read what ends
      sources_[g] = std::make_unique<Source>(group, context.stream.device());
    }
    Source& source = *sources_[g];
    for (const Segment& segment : group.segments) {
      const size_t p = segment.parameter;
      check(places[p].reader == nullptr, "payloads[", g, "]: parameter ", p,
            " is in another group as well, expected once");
      places[p] = {places[p].value, {}, &source.sum, at};
      at += segment.numel;
    }
    source.parts = groups[g].parts;
    source.sum.open(source.parts, group.scale, context);
  }
  return places;
}

void PayloadPlaces::keep_fault(size_t g, Context& context) {
  if (sources_[g] == nullptr || sources_[g]->compressor->shape().state == nullptr) {
    return;
  }
  DeviceState& state = *sources_[g]->compressor->shape().state;
  const cuda::StepWords words = state.read(context.stream);
  if (words.status == 0) {
    return;
  }
  state.clear(context.stream);
  if (!fault_.empty() || (words.status & cuda::kStatusMalformed) == 0) {
    return;  // what was not finite is NaN where it is read
  }
  try {
    DeviceState::check(words);
  } catch (const InvalidArgument& fault) {
    fault_ = concat("payloads[", g, "]: ", fault.what());
  }
}

std::string PayloadPlaces::take_fault(Context& context) {
  for (size_t g = 0; g < sources_.size(); ++g) {
    keep_fault(g, context);
  }
  return std::exchange(fault_, {});
}

}  // namespace gradwire::bindings
