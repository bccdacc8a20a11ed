#include "gradwire/planner/buckets.h"

#include <algorithm>
#include <cmath>

#include "gradwire/kernels/core/error.h"
#include "gradwire/kernels/core/number_text.h"

namespace gradwire::planner {
namespace {

// A gradient and when it appears, counted from the beginning of backward.
struct Appearing {
  uint32_t layer = 0;
  double ready_s = 0;
};

std::vector<Appearing> gradients_of(const Profile& profile) {
  std::vector<Appearing> gradients;
  double ready_s = 0;
  for (const BackwardPart& part : backward_parts(profile)) {
    ready_s += part.seconds;
    if (part.layer != kNoLayer && profile.layers[part.layer].numel > 0) {
      gradients.push_back({part.layer, ready_s});
    }
  }
  return gradients;
}

}  // namespace

Buckets buckets_per_tensor(const Profile& profile) {
  Buckets buckets;
  for (const Appearing& gradient : gradients_of(profile)) {
    buckets.push_back({gradient.layer});
  }
  return buckets;
}

Buckets buckets_as_measured(const Profile& profile) {
  Buckets buckets;
  bool open = false;
  for (const Appearing& gradient : gradients_of(profile)) {
    if (!open) {
      buckets.emplace_back();
    }
    buckets.back().push_back(gradient.layer);
    open = !profile.layers[gradient.layer].exchange_s;
  }
  check(!open, "buckets_as_measured: layer '",
        open ? profile.layers[buckets.back().back()].name : "", "' of profile '", profile.model,
        "' has no exchange_s, and none after it in backward has, expected one to travel with");
  return buckets;
}

Buckets buckets_by_cap(const Profile& profile, std::span<const double> caps_bytes) {
  check(!caps_bytes.empty(), "buckets_by_cap: no cap, expected at least one");
  for (const double cap : caps_bytes) {
    check(cap > 0, "buckets_by_cap: a cap of ", text_of(cap), " bytes, must be above 0");
  }
  Buckets buckets;
  double bytes = 0;
  bool open = false;
  for (const Appearing& gradient : gradients_of(profile)) {
    if (!open) {
      buckets.emplace_back();
      bytes = 0;
    }
    buckets.back().push_back(gradient.layer);
    bytes += profile.layers[gradient.layer].bytes();
    open = bytes < caps_bytes[std::min(buckets.size(), caps_bytes.size()) - 1];
  }
  return buckets;
}

Buckets ddp_buckets(const Profile& profile) {
  constexpr double kMiB = 1024.0 * 1024.0;
  constexpr double kCaps[] = {kMiB, 25 * kMiB};
  return buckets_by_cap(profile, kCaps);
}

Buckets mg_wfbp_buckets(const Profile& profile, const ExchangeSeconds& exchange_s,
                        double startup_s) {
  constexpr size_t kAlwaysMerged = 8192;  // elements; the authors' code merges what is smaller
  Buckets buckets;
  double free_s = 0;  // when the exchange before this bucket's ends
  double bytes = 0, begin_s = 0;
  size_t numel = 0;
  for (const Appearing& gradient : gradients_of(profile)) {
    const LayerProfile& layer = profile.layers[gradient.layer];
    bool merge = false;
    if (!buckets.empty()) {
      const double end_s = begin_s + exchange_s(bytes);
      merge = numel < kAlwaysMerged ||
              (gradient.ready_s < end_s && gradient.ready_s - begin_s < startup_s);
      if (!merge) {
        free_s = end_s;
      }
    }
    if (!merge) {
      buckets.emplace_back();
      bytes = 0;
      numel = 0;
    }
    buckets.back().push_back(gradient.layer);
    bytes += layer.bytes();
    numel += layer.numel;
    begin_s = std::max(free_s, gradient.ready_s);
  }
  return buckets;
}

std::vector<size_t> numels(const Profile& profile, const Buckets& buckets) {
  std::vector<size_t> sums;
  for (const std::vector<uint32_t>& bucket : buckets) {
    size_t sum = 0;
    for (const uint32_t layer : bucket) {
      sum += profile.layers[layer].numel;
    }
    sums.push_back(sum);
  }
  return sums;
}

void validate(const Profile& profile, const Buckets& buckets) {
  std::vector<size_t> times(profile.layers.size());
  for (size_t b = 0; b < buckets.size(); ++b) {
    check(!buckets[b].empty(), "buckets[", b, "]: no layer, expected at least one");
    for (const uint32_t layer : buckets[b]) {
      check(layer < times.size(), "buckets[", b, "]: layer ", layer, ", must be below ",
            times.size());
      ++times[layer];
    }
  }
  for (size_t l = 0; l < times.size(); ++l) {
    const LayerProfile& layer = profile.layers[l];
    check(times[l] == (layer.numel > 0 ? 1 : 0), "buckets: layer ", l, " '", layer.name, "' of ",
          layer.numel, " elements is in ", times[l], ", must be in ", layer.numel > 0 ? 1 : 0);
  }
}

}  // namespace gradwire::planner
