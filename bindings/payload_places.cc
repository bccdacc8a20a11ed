#include <algorithm>

#include "gradwire/bindings/payload_copies.h"

namespace gradwire::bindings {

PayloadPlaces::Source::Source(const PayloadCopies& group)
    : compressor(
          make_compressor(parse_spec(group.spec),
                          {.numel = group.numel, .segments = group.segments, .seed = group.seed})),
      sum(*compressor) {}

bool PayloadPlaces::Source::is_of(const PayloadCopies& group) const {
  const auto same = [](const Segment& a, const Segment& b) {
    return a.parameter == b.parameter && a.numel == b.numel && a.rows == b.rows;
  };
  const CompressorShape& shape = compressor->shape();
  return to_string(compressor->spec()) == group.spec && shape.numel == group.numel &&
         shape.seed == group.seed && std::ranges::equal(shape.segments, group.segments, same);
}

std::vector<Binding> PayloadPlaces::open(const std::vector<const PayloadCopies*>& groups,
                                         std::vector<Binding> places, Context& context) {
  sources_.resize(std::max(sources_.size(), groups.size()));
  for (size_t g = 0; g < groups.size(); ++g) {
    check(groups[g] != nullptr, "payloads[", g, "]: is None, must be a group of take_payloads()");
    const PayloadCopies& group = *groups[g];
    if (sources_[g] == nullptr || !sources_[g]->is_of(group)) {
      sources_[g] = std::make_unique<Source>(group);
    }
    Source& source = *sources_[g];
    size_t at = 0;
    for (const Segment& segment : group.segments) {
      const size_t p = segment.parameter;
      check(p < places.size() && segment.numel == places[p].value.numel, "payloads[", g,
            "]: parameter ", p, " has ", segment.numel, " elements, expected one of the ",
            places.size(), " here and as many as it has");
      check(places[p].reader == nullptr, "payloads[", g, "]: parameter ", p,
            " is in another group as well, expected once");
      places[p] = {places[p].value, {}, &source.sum, at};
      at += segment.numel;
    }
    source.parts.assign(group.parts.begin(), group.parts.end());
    source.sum.open(source.parts, group.scale, context);
  }
  return places;
}

}  // namespace gradwire::bindings
