#include "tests/planner/baselines/espresso.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <span>
#include <utility>

namespace gradwire::planner::testing {
namespace {

constexpr double kStartUs = 150;         // of a step; two steps flat, four in two levels
constexpr double kBetweenUsPerKb = 0.8;  // 1.25 GB/s
constexpr double kNvlinkUsPerKb = 0.02;
constexpr double kPcieUsPerKb = 0.4;
constexpr double kMeasuredNumel = 1 << 20;  // up to here coding takes what is measured

struct Coding {
  double total[kEspressoOptions], decode[kEspressoOptions];
};

const Coding& coding_of(const std::string& compressor) {
  static const std::map<std::string, Coding> measured = {
      {"randomk", {{0, 26, 88, 1000}, {0, 22, 34, 100}}},
      {"dgc", {{0, 26, 390, 1400}, {0, 22, 34, 100}}},
      {"efsignsgd", {{0, 26, 270, 810}, {0, 22, 140, 420}}},
  };
  return measured.at(compressor);
}

/// When each tensor is ready, and what follows from options; over tensors [first, n).
class Timeline {
 public:
  Timeline(const std::vector<TensorGap>& tensors, const EspressoPrices& prices, bool truncates)
      : tensors_(tensors), prices_(prices) {
    int64_t at = 0;
    for (const TensorGap& tensor : tensors) {
      at += truncates ? tensor.gap_us % 1000 : tensor.gap_us;
      ready_.push_back(static_cast<double>(at));
    }
  }

  double end_us(std::span<const size_t> options, size_t first) const {
    double shift = 0, end = 0;
    for (size_t i = first; i < tensors_.size(); ++i) {
      const auto numel = static_cast<double>(tensors_[i].numel);
      shift += prices_.encode_us(numel, options[i]);
      end = std::max(end, ready_[i] + shift) + prices_.line_us(numel, options[i]);
    }
    return end;
  }

  // The last tensor that found the line free, times counted from the first one. No coding on the
  // line is counted here, as in the released code: only options 0 and 1 occur.
  size_t last_to_find_it_free(std::span<const size_t> options, size_t first, double from) const {
    double shift = 0, end = 0;
    size_t last = first;
    for (size_t i = first; i < tensors_.size(); ++i) {
      const auto numel = static_cast<double>(tensors_[i].numel);
      shift += prices_.encode_us(numel, options[i]);
      const double ready = ready_[i] - from + shift;
      if (ready >= end) {
        end = ready;
        last = i;
      }
      end += prices_.line_us(numel, options[i]);
    }
    return last;
  }

  double ready(size_t i) const { return ready_[i]; }

 private:
  const std::vector<TensorGap>& tensors_;
  const EspressoPrices& prices_;
  std::vector<double> ready_;
};

constexpr size_t kHalfAbove = size_t{1} << 17;  // elements from which a tensor is sent as float16

}  // namespace

EspressoPrices::EspressoPrices(const EspressoCase& of) : case_(of) {}

double EspressoPrices::coding_us(double numel, size_t option, bool decode_only) const {
  const Coding& coding = coding_of(case_.compressor);
  const double measured = decode_only ? coding.decode[option] : coding.total[option];
  return measured * std::max(1.0, numel / case_.gpus_per_node / kMeasuredNumel);
}

double EspressoPrices::encode_us(double numel, size_t option) const {
  return coding_us(numel, option, false) - coding_us(numel, option, true);
}

double EspressoPrices::transfer_us(double numel, size_t option) const {
  const bool selects = case_.compressor != "efsignsgd";
  const double kept = selects ? 2 * 0.01 : 1.0 / 32;
  const double within = option == 0 ? 1 : option == 3 ? kept : 0.5;
  const double between = option == 0 ? 1 : option == 1 ? 0.5 : kept;
  const double k = case_.gpus_per_node, n = case_.nodes, bytes = 4 * numel;
  const auto kb = [](double amount) { return std::floor(amount / 1000); };
  return (option == 3 ? 4 : 2) * kStartUs +
         (case_.nvlink ? kNvlinkUsPerKb : kPcieUsPerKb) * kb(2 * (k - 1) / k * bytes * within) +
         kBetweenUsPerKb * kb(2 * (n - 1) / n * bytes * between);
}

double EspressoPrices::line_us(double numel, size_t option) const {
  return transfer_us(numel, option) + (option >= 2 ? coding_us(numel, option, false) : 0);
}

size_t EspressoPrices::option_for(double numel) const {
  const double two = std::exp2(case_.nvlink ? 19 : 20), both = std::exp2(case_.nvlink ? 22 : 23);
  if (numel > both && case_.two_level) {
    return 3;
  }
  return numel > two ? 2 : numel > kHalfAbove ? 1 : 0;
}

EspressoPlan run_espresso(const std::vector<TensorGap>& tensors, const EspressoPrices& prices,
                          bool as_shipped) {
  const Timeline timeline(tensors, prices, as_shipped);
  EspressoPlan plan;
  plan.options.assign(tensors.size(), 0);
  // Tensors that are through before the last one that found the line free cannot shorten anything.
  const size_t dense = timeline.last_to_find_it_free(plan.options, 0, 0);
  for (size_t i = dense; i < tensors.size(); ++i) {
    plan.options[i] = tensors[i].numel > kHalfAbove ? 1 : 0;
  }
  const size_t first = timeline.last_to_find_it_free(plan.options, dense, timeline.ready(dense));
  std::vector<size_t> order(tensors.size() - first);
  std::iota(order.begin(), order.end(), first);
  std::ranges::sort(order, [&](size_t a, size_t b) {  // of equal ones the last to be ready
    return tensors[a].numel != tensors[b].numel ? tensors[a].numel > tensors[b].numel : a > b;
  });
  double best = timeline.end_us(plan.options, first);
  for (const size_t i : order) {
    const size_t option = prices.option_for(static_cast<double>(tensors[i].numel));
    if (option < 2) {
      continue;
    }
    const size_t before = std::exchange(plan.options[i], option);
    if (const double end = timeline.end_us(plan.options, first); end < best) {
      best = end;
    } else {
      plan.options[i] = before;
    }
  }
  plan.compressed =
      static_cast<size_t>(std::ranges::count_if(plan.options, [](size_t o) { return o >= 2; }));
  return plan;
}

double espresso_end_us(const std::vector<TensorGap>& tensors, const EspressoPrices& prices,
                       const std::vector<size_t>& options) {
  return Timeline(tensors, prices, false).end_us(options, 0);
}

std::vector<BucketOption> espresso_options(const EspressoPrices& prices) {
  const char* const names[] = {"none", "fp16", "compressed", "compressed in both levels"};
  std::vector<BucketOption> options;
  for (size_t o = 0; o < (prices.two_level() ? kEspressoOptions : kEspressoOptions - 1); ++o) {
    BucketOption option;
    option.name = option.compressor = names[o];
    option.loss = static_cast<double>(o);
    option.encode_s = [&prices, o](size_t m) {
      return 1e-6 * prices.encode_us(static_cast<double>(m), o);
    };
    option.exchange_s = [&prices, o](size_t m) {
      return 1e-6 * prices.line_us(static_cast<double>(m), o);
    };
    options.push_back(std::move(option));
  }
  return options;
}

std::vector<TensorGap> fused(const std::vector<TensorGap>& tensors, size_t cap) {
  std::vector<TensorGap> buckets;
  bool open = false;
  for (const TensorGap& tensor : tensors) {
    if (!open) {
      buckets.push_back({"bucket", 0, 0});
    }
    buckets.back().numel += tensor.numel;
    buckets.back().gap_us += tensor.gap_us;
    open = buckets.back().numel < cap;
  }
  return buckets;
}

}  // namespace gradwire::planner::testing
