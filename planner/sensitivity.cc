// How a step's time follows each input.

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "gradwire/planner/predict.h"

namespace gradwire::planner {
namespace {

// Everything a prediction is made from.
struct Inputs {
  Profile profile;
  Cluster cluster;
  StepOptions options;
};

struct Input {
  std::string name;
  double value = 0;
  std::function<void(Inputs&, double factor)> scale;
  std::string unused;  // why nothing reads it here; empty: something does
};

void scale_layers(Inputs& in, std::optional<double> LayerProfile::*time, double factor) {
  for (LayerProfile& layer : in.profile.layers) {
    if (layer.*time) {
      *(layer.*time) *= factor;
    }
  }
}

double sum_layers(const Profile& profile, std::optional<double> LayerProfile::*time) {
  double sum = 0;
  for (const LayerProfile& layer : profile.layers) {
    sum += (layer.*time).value_or(0);
  }
  return sum;
}

class List {
 public:
  explicit List(const Inputs& in) : in_(in) {}

  void add(std::string name, double value, std::function<void(Inputs&, double)> scale,
           std::string unused = {}) {
    inputs_.push_back({std::move(name), value, std::move(scale), std::move(unused)});
  }
  void time(std::string name, double Profile::*value) {
    add(std::move(name), in_.profile.*value,
        [value](Inputs& i, double f) { i.profile.*value *= f; });
  }
  void layers(std::string name, std::optional<double> LayerProfile::*value,
              std::string unused = {}) {
    add(
        std::move(name), sum_layers(in_.profile, value),
        [value](Inputs& i, double f) { scale_layers(i, value, f); }, std::move(unused));
  }
  std::vector<Input> take() { return std::move(inputs_); }

 private:
  const Inputs& in_;
  std::vector<Input> inputs_;
};

void add_profile(List& list, const Inputs& in, const std::string& not_measured) {
  list.time("io", &Profile::io_s);
  list.time("host_to_device", &Profile::host_to_device_s);
  list.add("forward", in.profile.forward_s(), [](Inputs& i, double f) {
    i.profile.other_s *= f;
    for (LayerProfile& layer : i.profile.layers) {
      layer.forward_s *= f;
    }
  });
  list.add("backward", in.profile.backward_s(), [](Inputs& i, double f) {
    for (LayerProfile& layer : i.profile.layers) {
      layer.backward_s *= f;
    }
    scale_layers(i, &LayerProfile::ready_s, f);
  });
  list.layers("update", &LayerProfile::update_s);
  list.time("hand_over", &Profile::hand_over_s);
  list.layers("measured exchanges", &LayerProfile::exchange_s, not_measured);
  list.layers("compress of layers", &LayerProfile::compress_s);
  list.layers("decompress of layers", &LayerProfile::decompress_s);
}

void add_processors(List& list, const Inputs& in, const std::string& formulas) {
  const Cluster& cluster = in.cluster;
  const std::string free = cluster.cores_per_worker == 0 ? "cores are not counted" : "";
  const std::string of_links = free.empty() ? formulas : free;
  list.layers("processor time of exchanges", &LayerProfile::exchange_cpu_s,
              !free.empty()      ? free
              : formulas.empty() ? "it is the links' messages that take it"
                                 : "");
  list.add(
      "processor time of messages", cluster.inter.message_cpu_s + cluster.intra.message_cpu_s,
      [](Inputs& i, double f) {
        i.cluster.inter.message_cpu_s *= f;
        i.cluster.intra.message_cpu_s *= f;
      },
      of_links);
  list.add(
      "processor rate of bytes", cluster.inter.cpu_bytes_per_s + cluster.intra.cpu_bytes_per_s,
      [](Inputs& i, double f) {
        i.cluster.inter.cpu_bytes_per_s *= f;
        i.cluster.intra.cpu_bytes_per_s *= f;
      },
      of_links);
  list.add("cores per worker", cluster.cores_per_worker,
           [](Inputs& i, double f) { i.cluster.cores_per_worker *= f; });
}

void add_cluster(List& list, const Inputs& in, const std::string& measured) {
  const Cluster& cluster = in.cluster;
  const std::string formulas = !measured.empty() ? measured
                               : cluster.measured
                                   ? "a table of exchange times is used in the place of links"
                                   : "";
  const bool one_node = cluster.workers <= cluster.gpus_per_node;
  const std::string inter = !formulas.empty() ? formulas
                            : one_node        ? "all workers are in one machine"
                                              : "";
  const std::string intra = !formulas.empty()            ? formulas
                            : cluster.gpus_per_node == 1 ? "each machine has one worker"
                                                         : "";
  list.add(
      "inter.alpha", cluster.inter.alpha_s,
      [](Inputs& i, double f) { i.cluster.inter.alpha_s *= f; }, inter);
  list.add(
      "inter.bandwidth", cluster.inter.bytes_per_s,
      [](Inputs& i, double f) {
        i.cluster.inter.bytes_per_s *= f;
        i.cluster.inter.stream_bytes_per_s *= f;  // one stream's part of it stays what it is
      },
      inter);
  list.add(
      "intra.alpha", cluster.intra.alpha_s,
      [](Inputs& i, double f) { i.cluster.intra.alpha_s *= f; }, intra);
  list.add(
      "intra.bandwidth", cluster.intra.bytes_per_s,
      [](Inputs& i, double f) { i.cluster.intra.bytes_per_s *= f; }, intra);
  list.add(
      "stream bandwidth", cluster.inter.stream_bytes_per_s,
      [](Inputs& i, double f) { i.cluster.inter.stream_bytes_per_s *= f; }, measured);
  add_processors(list, in, formulas);
  list.add("jitter", cluster.jitter, [](Inputs& i, double f) { i.cluster.jitter *= f; });
}

void add_options(List& list, const Inputs& in, const std::string& measured) {
  const StepOptions& options = in.options;
  const std::string own = sum_layers(in.profile, &LayerProfile::compress_s) +
                                      sum_layers(in.profile, &LayerProfile::decompress_s) >
                                  0
                              ? "the profile's layers have times of their own"
                              : "";
  list.add(
      "compression", options.codec.compression,
      [](Inputs& i, double f) { i.options.codec.compression *= f; }, measured);
  list.add(
      "codec start", options.codec.cost.encode_floor_s + options.codec.cost.decode_floor_s,
      [](Inputs& i, double f) {
        i.options.codec.cost.encode_floor_s *= f;
        i.options.codec.cost.decode_floor_s *= f;
      },
      own);
  list.add(
      "compress rate", options.codec.cost.encode_bytes_per_s,
      [](Inputs& i, double f) { i.options.codec.cost.encode_bytes_per_s *= f; }, own);
  list.add(
      "decompress rate", options.codec.cost.decode_bytes_per_s,
      [](Inputs& i, double f) { i.options.codec.cost.decode_bytes_per_s *= f; }, own);
  list.add("copy bandwidth", options.copy_bytes_per_s,
           [](Inputs& i, double f) { i.options.copy_bytes_per_s *= f; });
}

double step_of(Inputs in, const Input& input, double factor) {
  input.scale(in, factor);
  return predict(in.profile, in.cluster, in.options).step_s;
}

}  // namespace

std::vector<Sensitivity> sensitivities(const Profile& profile, const Cluster& cluster,
                                       const StepOptions& options) {
  predict(profile, cluster, options);  // what is wrong is said of the inputs as they are
  const Inputs in{profile, cluster, options};
  const bool measured = options.exchange == StepOptions::Exchange::kMeasured;
  const std::string by_profile = measured               ? "exchange times are the profile's"
                                 : cluster.workers == 1 ? "one worker exchanges nothing"
                                                        : "";
  List list(in);
  add_profile(list, in, measured ? "" : "exchange times are modelled");
  add_cluster(list, in, by_profile);
  add_options(list, in, by_profile);
  constexpr double kStep = 0.01;
  std::vector<Sensitivity> found;
  for (const Input& input : list.take()) {
    Sensitivity one{.input = input.name, .value = input.value};
    if (!input.unused.empty()) {
      one.no_effect = input.unused;
    } else if (input.value == 0) {
      one.no_effect = "it is 0";
    } else {
      one.elasticity = std::log(step_of(in, input, 1 + kStep) / step_of(in, input, 1 - kStep)) /
                       std::log((1 + kStep) / (1 - kStep));
      if (std::fabs(one.elasticity) < 1e-9) {
        one.elasticity = 0;
        one.no_effect = "hidden: 1% more or less of it changes no step";
      }
    }
    found.push_back(std::move(one));
  }
  std::stable_sort(found.begin(), found.end(), [](const Sensitivity& a, const Sensitivity& b) {
    return std::fabs(a.elasticity) > std::fabs(b.elasticity);
  });
  return found;
}

}  // namespace gradwire::planner
