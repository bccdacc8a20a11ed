#include "gradwire/planner/profile.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "gradwire/kernels/core/error.h"
#include "gradwire/kernels/core/number_text.h"

namespace gradwire::planner {
namespace {

// Longer than any layer or step; what is above was written in milliseconds or microseconds.
constexpr double kLongestS = 3600;
// Of a whole backward pass: no machine is faster, so what is below was written in larger units.
constexpr double kShortestBackwardS = 1e-7;
constexpr double kMostNumel = 1e13;

template <class Time>
double sum_over(const std::vector<LayerProfile>& layers, Time time) {
  return std::accumulate(layers.begin(), layers.end(), 0.0,
                         [&](double sum, const LayerProfile& layer) { return sum + time(layer); });
}

bool has_ready_times(const Profile& profile) {
  return std::any_of(profile.layers.begin(), profile.layers.end(),
                     [](const LayerProfile& layer) { return layer.ready_s.has_value(); });
}

void check_time(double seconds, std::string_view place, std::string_view what) {
  check(std::isfinite(seconds) && seconds >= 0, place, what, ": ", text_of(seconds),
        " s, must be a time of at least 0 s");
  check(seconds <= kLongestS, place, what, ": ", text_of(seconds), " s, must be at most ",
        text_of(kLongestS), " s; was it written in milliseconds or microseconds?");
}

void check_layer(const LayerProfile& layer, const std::string& place) {
  check(!layer.name.empty(), place, "name: '', must not be empty");
  check(static_cast<double>(layer.numel) <= kMostNumel, place, "numel: ", layer.numel,
        ", must be at most 1e13 elements");
  check_time(layer.forward_s, place, "forward_s");
  check_time(layer.backward_s, place, "backward_s");
  const auto check_optional = [&](const std::optional<double>& seconds, std::string_view what) {
    if (seconds) {
      check_time(*seconds, place, what);
    }
  };
  check_optional(layer.ready_s, "ready_s");
  check_optional(layer.compress_s, "compress_s");
  check_optional(layer.exchange_s, "exchange_s");
  check_optional(layer.exchange_cpu_s, "exchange_cpu_s");
  check_optional(layer.decompress_s, "decompress_s");
  check_optional(layer.update_s, "update_s");
}

}  // namespace

double LayerProfile::bytes() const {
  return static_cast<double>(numel) * (dtype == DType::kFloat32 ? 4.0 : 2.0);
}

double Profile::forward_s() const {
  return other_s + sum_over(layers, [](const LayerProfile& layer) { return layer.forward_s; });
}

double Profile::backward_s() const {
  double last = sum_over(layers, [](const LayerProfile& layer) { return layer.backward_s; });
  for (const LayerProfile& layer : layers) {
    last = std::max(last, layer.ready_s.value_or(0));
  }
  return last;
}

double Profile::update_s() const {
  return sum_over(layers, [](const LayerProfile& layer) { return layer.update_s.value_or(0); });
}

size_t Profile::numel() const {
  return std::accumulate(layers.begin(), layers.end(), size_t{0},
                         [](size_t sum, const LayerProfile& layer) { return sum + layer.numel; });
}

double Profile::gradient_bytes() const {
  return sum_over(layers, [](const LayerProfile& layer) { return layer.bytes(); });
}

std::vector<BackwardPart> backward_parts(const Profile& profile) {
  std::vector<BackwardPart> parts;
  parts.reserve(profile.layers.size() + 1);
  for (size_t l = profile.layers.size(); l-- > 0;) {
    parts.push_back({static_cast<uint32_t>(l), profile.layers[l].backward_s});
  }
  if (!has_ready_times(profile)) {
    return parts;
  }
  // What layers without a gradient took is in the gaps.
  std::erase_if(parts, [&](const BackwardPart& p) { return !profile.layers[p.layer].ready_s; });
  std::stable_sort(parts.begin(), parts.end(), [&](const BackwardPart& a, const BackwardPart& b) {
    return *profile.layers[a.layer].ready_s < *profile.layers[b.layer].ready_s;
  });
  double before = 0;
  for (BackwardPart& part : parts) {
    const double ready = *profile.layers[part.layer].ready_s;
    part.seconds = ready - before;
    before = ready;
  }
  const double rest = profile.backward_s() - before;
  if (rest > 0) {
    parts.push_back({kNoLayer, rest});
  }
  return parts;
}

void validate(const Profile& profile, std::string_view name) {
  const std::string front = concat(name, ": ");
  check(profile.batch > 0, front, "batch: 0, must be at least 1 sample");
  check(profile.ranks > 0, front, "ranks: 0, must be at least 1");
  check(!profile.layers.empty(), front, "layers: none, expected at least one");
  check_time(profile.io_s, front, "step.io_s");
  check_time(profile.host_to_device_s, front, "step.host_to_device_s");
  check_time(profile.other_s, front, "step.other_s");
  check_time(profile.hand_over_s, front, "step.hand_over_s");
  if (profile.measured_step_s) {
    check_time(*profile.measured_step_s, front, "step.measured_s");
    check(*profile.measured_step_s > 0, front, "step.measured_s: 0 s, must be above 0 s");
  }
  std::set<std::string_view> names;
  const bool has_ready = has_ready_times(profile);
  for (size_t l = 0; l < profile.layers.size(); ++l) {
    const LayerProfile& layer = profile.layers[l];
    const std::string place = concat(front, "layers[", l, "] '", layer.name, "': ");
    check_layer(layer, place);
    check(names.insert(layer.name).second, place, "a second layer of this name, expected one");
    check(layer.numel == 0 || layer.ready_s.has_value() == has_ready, place,
          "no ready_s, but other layers have one: all with elements must, or none");
  }
  const double backward = profile.backward_s();
  check(backward > 0, front, "backward takes 0 s over all layers, must be above 0 s");
  check(backward >= kShortestBackwardS, front, "backward takes ", text_of(backward),
        " s over all layers, must be at least ", text_of(kShortestBackwardS),
        " s; was it written in other units?");
  check(backward + profile.forward_s() <= kLongestS, front, "a step computes ",
        text_of(backward + profile.forward_s()), " s, must be at most ", text_of(kLongestS),
        " s; was it written in milliseconds or microseconds?");
}

Profile calibrated(Profile profile, double step_s) {
  profile.other_s = 0;
  const double known = profile.io_s + profile.host_to_device_s + profile.forward_s() +
                       profile.backward_s() + profile.update_s();
  check(std::isfinite(step_s) && step_s >= known, "calibrated: a step of ", text_of(step_s),
        " s on one worker, must be at least the ", text_of(known), " s its parts take");
  profile.other_s = step_s - known;
  return profile;
}

}  // namespace gradwire::planner
