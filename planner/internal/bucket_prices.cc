#include "gradwire/planner/internal/bucket_prices.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "gradwire/kernels/core/error.h"

namespace gradwire::planner {
namespace {

double price_of(const std::function<double(size_t)>& price, size_t numel, const char* what,
                const BucketOption& option) {
  if (!price) {
    return 0;
  }
  const double seconds = price(numel);
  check(std::isfinite(seconds) && seconds >= 0, "bucket plan: ", what, " of ", numel,
        " elements with option '", option.name, "' takes ", seconds,
        " s, must be finite and at least 0");
  return seconds;
}

}  // namespace

Moment Moment::after(const Price& price, double ready_s) const {
  const double shift = shift_s + price.encode_s;
  return {shift, std::max(end_s, ready_s + shift) + price.line_s};
}

BucketPrices::BucketPrices(std::span<const ReadyGradient> gradients,
                           std::span<const BucketOption> options)
    : gradients_(gradients), options_(options) {
  check(!gradients.empty(), "bucket plan: 0 gradients, expected at least 1");
  check(std::ranges::find(options, "none", &BucketOption::compressor) != options.end(),
        "bucket plan: none of ", options.size(),
        " options has compressor 'none', expected one: the plan without compression is always a "
        "candidate");
  sums_.push_back(0);
  double before = 0;
  for (const ReadyGradient& gradient : gradients) {
    check(gradient.numel > 0, "bucket plan: gradient '", gradient.name,
          "' has 0 elements, expected at least 1");
    check(std::isfinite(gradient.ready_s) && gradient.ready_s >= before, "bucket plan: gradient '",
          gradient.name, "' is ready after ", gradient.ready_s,
          " s, must be finite and not before the one before it, ", before, " s");
    before = gradient.ready_s;
    sums_.push_back(sums_.back() + gradient.numel);
  }
  for (const BucketOption& option : options) {
    check(static_cast<bool>(option.exchange_s), "bucket plan: option '", option.name,
          "' has no price of its exchange, expected one");
    check(std::isfinite(option.loss) && option.loss >= 0, "bucket plan: option '", option.name,
          "' has a loss of ", option.loss, ", must be finite and at least 0");
  }
}

std::span<const Price> BucketPrices::prices(size_t numel) {
  const auto [found, added] = prices_.try_emplace(numel);
  if (added) {
    try {
      for (const BucketOption& option : options_) {
        found->second.push_back({price_of(option.encode_s, numel, "encoding", option),
                                 price_of(option.decode_s, numel, "decoding", option) +
                                     price_of(option.exchange_s, numel, "the exchange", option)});
      }
    } catch (...) {
      prices_.erase(found);
      throw;
    }
  }
  return found->second;
}

Moment moment_of(const Choices& choices, BucketPrices& prices) {
  Moment moment;
  for (const Choice& bucket : choices) {
    moment = moment.after(prices.prices(prices.numel(bucket.begin, bucket.end))[bucket.option],
                          prices.ready_s(bucket.end));
  }
  return moment;
}

Choices split_at(size_t cap, const BucketPrices& prices) {
  Choices choices;
  size_t begin = 0;
  for (size_t end = 1; end <= prices.gradients(); ++end) {
    if (end == prices.gradients() || prices.numel(begin, end) >= cap) {
      choices.push_back({begin, end, 0});
      begin = end;
    }
  }
  return choices;
}

namespace {

/// A way to have sent the first gradients.
struct Label {
  Moment moment;
  size_t begin = 0;   // of the last bucket
  size_t before = 0;  // which label of `begin` it goes on from
  size_t option = 0;
};

/// Labels of which none is later in both than another: by growing shift and falling end.
class Front {
 public:
  void add(const Label& label) {
    const auto shift = [](const Label& l) { return l.moment.shift_s; };
    auto after = std::ranges::upper_bound(labels_, label.moment.shift_s, {}, shift);
    if (after != labels_.begin() && std::prev(after)->moment.end_s <= label.moment.end_s) {
      return;
    }
    auto first = after;
    while (first != labels_.begin() && shift(*std::prev(first)) == label.moment.shift_s) {
      --first;  // as early encoded, but later through
    }
    while (after != labels_.end() && after->moment.end_s >= label.moment.end_s) {
      ++after;
    }
    if (first == after) {
      labels_.insert(first, label);
    } else {
      *first = label;
      labels_.erase(first + 1, after);
    }
  }

  /// Keeps `beam` labels: half of them the earliest, half spread over the others, the smallest
  /// shift among them; it may be worth more later than an early end, and nobody knows yet. False
  /// where nothing had to go.
  bool narrow(size_t beam) {
    if (beam == 0 || labels_.size() <= beam) {
      return false;
    }
    const size_t spread = beam / 2, earliest = beam - spread;
    const size_t others = labels_.size() - earliest;
    for (size_t i = 0; i < spread; ++i) {
      labels_[i] = labels_[i * others / spread];
    }
    labels_.erase(labels_.begin() + static_cast<std::ptrdiff_t>(spread),
                  labels_.end() - static_cast<std::ptrdiff_t>(earliest));
    return true;
  }

  const std::vector<Label>& labels() const { return labels_; }

 private:
  std::vector<Label> labels_;
};

}  // namespace

DynamicProgram run_dynamic_program(BucketPrices& prices, const BucketSearch& search) {
  DynamicProgram found;
  const size_t n = prices.gradients();
  // A bucket that may not be of any length is not every partition.
  found.exact = search.most_gradients == 0 || search.most_gradients >= n;
  std::vector<Front> fronts(n + 1);
  fronts[0].add({});
  for (size_t end = 1; end <= n; ++end) {
    const double ready_s = prices.ready_s(end);
    const size_t longest = search.most_gradients == 0 ? end : std::min(end, search.most_gradients);
    for (size_t begin = end - longest; begin < end; ++begin) {
      const std::span<const Price> each = prices.prices(prices.numel(begin, end));
      const std::vector<Label>& from = fronts[begin].labels();
      for (size_t before = 0; before < from.size(); ++before) {
        for (size_t option = 0; option < each.size(); ++option) {
          fronts[end].add(
              {from[before].moment.after(each[option], ready_s), begin, before, option});
        }
      }
    }
    if (fronts[end].narrow(search.beam)) {
      found.exact = false;
    }
  }
  size_t label = fronts[n].labels().size() - 1;  // the earliest end
  for (size_t end = n; end > 0;) {
    const Label& last = fronts[end].labels()[label];
    found.choices.push_back({last.begin, end, last.option});
    label = last.before;
    end = last.begin;
  }
  std::ranges::reverse(found.choices);
  return found;
}

}  // namespace gradwire::planner
