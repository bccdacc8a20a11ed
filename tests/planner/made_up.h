#pragma once
// Profiles and clusters drawn from a seed, and their times as the closed forms take them.

#include <cmath>
#include <random>
#include <string>

#include "gradwire/planner/cluster.h"
#include "gradwire/planner/profile.h"
#include "tests/reference/step_time.h"

namespace gradwire::planner {

class Drawn {
 public:
  explicit Drawn(uint64_t seed) : random_(seed) {}

  double between(double least, double most) {
    return least + (most - least) * (static_cast<double>(random_() >> 11) * 0x1p-53);
  }

  /// 1 to 30 layers of 1 to 10^7 elements, sizes spread over the decades.
  Profile profile() {
    Profile profile;
    profile.model = "drawn";
    profile.batch = 8;
    profile.io_s = between(0, 0.2);
    profile.host_to_device_s = between(0, 0.05);
    profile.other_s = between(0, 0.01);
    const auto layers = static_cast<size_t>(between(1, 31));
    for (size_t l = 0; l < layers; ++l) {
      LayerProfile layer;
      layer.name = "layer " + std::to_string(l);
      layer.numel = static_cast<size_t>(std::pow(10.0, between(0, 7)));
      layer.forward_s = between(0, 0.01);
      layer.backward_s = between(0.0001, 0.02);
      layer.update_s = between(0, 0.001);
      profile.layers.push_back(layer);
    }
    return profile;
  }

  Cluster cluster() {
    Cluster cluster;
    cluster.workers = static_cast<size_t>(between(2, 65));
    cluster.inter = {"inter", between(0, 1e-4), std::pow(10.0, between(7, 10.5))};
    return cluster;
  }

 private:
  std::mt19937_64 random_;
};

/// For per-tensor exchanges around a ring.
inline reference::StepTimes times_of(const Profile& profile, const Cluster& cluster) {
  reference::StepTimes times;
  times.io = profile.io_s;
  times.host_to_device = profile.host_to_device_s;
  times.forward = profile.other_s;
  for (size_t l = profile.layers.size(); l-- > 0;) {
    const LayerProfile& layer = profile.layers[l];
    times.forward += layer.forward_s;
    times.backward.push_back(layer.backward_s);
    times.exchange.push_back(reference::ring_seconds(
        static_cast<double>(cluster.workers), 4.0 * static_cast<double>(layer.numel),
        cluster.inter.alpha_s, cluster.inter.bytes_per_s));
    times.update += *layer.update_s;
  }
  return times;
}

}  // namespace gradwire::planner
