#include "gradwire/planner/bucket_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "gradwire/kernels/compress/spec.h"
#include "gradwire/kernels/core/error.h"
#include "gradwire/planner/internal/bucket_prices.h"
#include "gradwire/planner/units.h"

namespace gradwire::planner {
namespace {

struct Candidate {
  std::string name;
  Choices choices;
  double end_s = 0;
  double loss = 0;
};

double mean_loss(const Choices& choices, const BucketPrices& prices) {
  double loss = 0;
  for (const Choice& bucket : choices) {
    loss += static_cast<double>(prices.numel(bucket.begin, bucket.end)) *
            prices.option(bucket.option).loss;
  }
  return loss / static_cast<double>(prices.numel(0, prices.gradients()));
}

constexpr size_t kDefaultOfDdp = 25 * 1024 * 1024 / 4;  // what most people have today

std::vector<size_t> caps_of(const BucketSearch& search, size_t all) {
  std::vector<size_t> caps = search.caps;
  if (caps.empty()) {
    caps = {1, kDefaultOfDdp, all};
    for (size_t cap = size_t{1} << 18; cap <= size_t{1} << 27; cap *= 2) {
      caps.push_back(cap);
      caps.push_back(cap + cap / 2);
    }
  }
  for (size_t& cap : caps) {
    check(cap > 0, "bucket plan: a cap of 0 elements, expected at least 1");
    cap = std::min(cap, all);  // what is larger splits alike
  }
  std::ranges::sort(caps);
  caps.erase(std::unique(caps.begin(), caps.end()), caps.end());
  return caps;
}

std::string cap_text(size_t cap, size_t all) {
  return cap == 1     ? "a bucket per gradient"
         : cap == all ? "one bucket"
                      : concat("buckets of ", bytes_text(4.0 * static_cast<double>(cap)));
}

Choices all_with(size_t option, size_t cap, const BucketPrices& prices) {
  Choices choices = split_at(cap, prices);
  for (Choice& bucket : choices) {
    bucket.option = option;
  }
  return choices;
}

// The cheapest option of each bucket, were it alone.
Choices each_alone(size_t cap, BucketPrices& prices) {
  Choices choices = split_at(cap, prices);
  for (Choice& bucket : choices) {
    const auto each = prices.prices(prices.numel(bucket.begin, bucket.end));
    const auto cheapest = std::ranges::min_element(
        each, {}, [](const Price& price) { return price.encode_s + price.line_s; });
    bucket.option = static_cast<size_t>(cheapest - each.begin());
  }
  return choices;
}

/// Buckets whose options are being changed: the moment before each, so that only what follows a
/// change is looked at again.
class Changing {
 public:
  Changing(Choices& choices, BucketPrices& prices) : choices_(choices) {
    for (const Choice& bucket : choices) {
      each_.push_back(prices.prices(prices.numel(bucket.begin, bucket.end)));
      ready_s_.push_back(prices.ready_s(bucket.end));
    }
    before_.resize(choices.size() + 1);
    renew(0);
  }

  double end_s() const { return before_.back().end_s; }

  double end_with(size_t bucket, size_t option) const {
    Moment moment = before_[bucket].after(each_[bucket][option], ready_s_[bucket]);
    for (size_t b = bucket + 1; b < choices_.size(); ++b) {
      moment = moment.after(each_[b][choices_[b].option], ready_s_[b]);
    }
    return moment.end_s;
  }

  void change(size_t bucket, size_t option) {
    choices_[bucket].option = option;
    renew(bucket);
  }

 private:
  void renew(size_t from) {
    for (size_t b = from; b < choices_.size(); ++b) {
      before_[b + 1] = before_[b].after(each_[b][choices_[b].option], ready_s_[b]);
    }
  }

  Choices& choices_;
  std::vector<std::span<const Price>> each_;
  std::vector<double> ready_s_;
  std::vector<Moment> before_;
};

// Another option for a bucket, largest first, wherever the end comes earlier; until nothing
// changes.
void improve(Choices& choices, BucketPrices& prices) {
  constexpr int kMostRounds = 8;
  std::vector<size_t> order(choices.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater{}, [&](size_t b) {
    return prices.numel(choices[b].begin, choices[b].end);
  });
  Changing changing(choices, prices);
  bool changed = true;
  for (int round = 0; changed && round < kMostRounds; ++round) {
    changed = false;
    for (const size_t b : order) {
      for (size_t option = 0; option < prices.options(); ++option) {
        if (changing.end_with(b, option) < changing.end_s()) {
          changing.change(b, option);
          changed = true;
        }
      }
    }
  }
}

void keep_earlier(Candidate& best, std::string name, const Choices& choices, BucketPrices& prices) {
  const double end_s = moment_of(choices, prices).end_s;
  if (best.choices.empty() || end_s < best.end_s) {
    best = {std::move(name), choices, end_s, mean_loss(choices, prices)};
  }
}

// "none" first, so that of equal ends nothing is compressed.
std::vector<size_t> options_in_order(const BucketPrices& prices) {
  std::vector<size_t> order(prices.options());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(
      order, {}, [&](size_t option) { return !asks_for_nothing(prices.option(option).compressor); });
  return order;
}

std::vector<Candidate> candidates_of(BucketPrices& prices, const BucketSearch& search,
                                     bool& exact) {
  const size_t all = prices.numel(0, prices.gradients());
  const std::vector<size_t> caps = caps_of(search, all);
  std::vector<Candidate> candidates;
  for (const size_t option : options_in_order(prices)) {
    Candidate best;
    for (const size_t cap : caps) {
      keep_earlier(best, concat(prices.option(option).name, " for all, ", cap_text(cap, all)),
                   all_with(option, cap, prices), prices);
    }
    candidates.push_back(std::move(best));
  }
  // Where such a search ends depends on where it begins.
  const auto uniform = std::ranges::min_element(candidates, {}, &Candidate::end_s);
  const size_t begins[] = {candidates.front().choices.front().option,
                           uniform->choices.front().option};
  Candidate sweep;
  for (const size_t cap : caps) {
    std::vector<Choices> starts{all_with(begins[0], cap, prices), all_with(begins[1], cap, prices),
                                each_alone(cap, prices)};
    for (Choices& choices : starts) {
      improve(choices, prices);
      keep_earlier(sweep, concat("an option for each, ", cap_text(cap, all)), choices, prices);
    }
  }
  candidates.push_back(std::move(sweep));
  DynamicProgram program = run_dynamic_program(prices, search);
  exact = program.exact;
  Candidate& last = candidates.emplace_back();
  keep_earlier(last, "dynamic program", program.choices, prices);
  return candidates;
}

}  // namespace

double price_buckets(std::span<const ReadyGradient> gradients,
                     std::span<const BucketOption> options, std::vector<PlannedBucket>& buckets) {
  BucketPrices prices(gradients, options);
  Moment moment;
  size_t next = 0;
  for (PlannedBucket& bucket : buckets) {
    check(bucket.begin == next && bucket.end > bucket.begin && bucket.end <= gradients.size(),
          "bucket plan: a bucket of gradients [", bucket.begin, ", ", bucket.end,
          "), expected it to begin at ", next, " and to end at most at ", gradients.size());
    check(bucket.option < options.size(), "bucket plan: option ", bucket.option,
          ", expected one of the ", options.size());
    next = bucket.end;
    bucket.numel = prices.numel(bucket.begin, bucket.end);
    const Price price = prices.prices(bucket.numel)[bucket.option];
    const double free_s = moment.end_s;
    moment = moment.after(price, prices.ready_s(bucket.end));
    bucket.ready_s = prices.ready_s(bucket.end) + moment.shift_s;
    bucket.start_s = std::max(free_s, bucket.ready_s);
    bucket.end_s = moment.end_s;
  }
  check(next == gradients.size(), "bucket plan: the buckets hold ", next,
        " gradients, expected all ", gradients.size());
  return moment.end_s;
}

BucketPlan plan_buckets(std::span<const ReadyGradient> gradients,
                        std::span<const BucketOption> options, const BucketSearch& search) {
  BucketPrices prices(gradients, options);
  check(std::isfinite(search.tolerance) && search.tolerance >= 0, "bucket plan: tolerance is ",
        search.tolerance, ", must be finite and at least 0");
  BucketPlan plan;
  std::vector<Candidate> candidates = candidates_of(prices, search, plan.exact);
  std::ranges::stable_sort(candidates, {}, &Candidate::end_s);
  const double earliest = candidates.front().end_s;
  for (size_t c = 0; c < candidates.size(); ++c) {
    const Candidate& candidate = candidates[c];
    if (candidate.end_s <= (1 + search.tolerance) * earliest &&
        candidate.loss < candidates[plan.chosen].loss && search.tolerance > 0) {
      plan.chosen = c;
    }
    plan.candidates.push_back({candidate.name, candidate.end_s, candidate.end_s - earliest,
                               candidate.loss});
    for (const Choice& bucket : candidate.choices) {
      plan.candidates.back().buckets.push_back({.begin = bucket.begin,
                                                .end = bucket.end,
                                                .numel = prices.numel(bucket.begin, bucket.end),
                                                .option = bucket.option});
    }
  }
  const Candidate& chosen = candidates[plan.chosen];
  plan.buckets = plan.candidates[plan.chosen].buckets;
  plan.end_s = price_buckets(gradients, options, plan.buckets);
  plan.backward_end_s = gradients.back().ready_s;
  plan.encode_s = moment_of(chosen.choices, prices).shift_s;
  plan.loss = chosen.loss;
  return plan;
}

std::string BucketPlan::explain() const {
  std::string out =
      concat("chosen: ", candidates.at(chosen).name, ", ", buckets.size(), " buckets, ends after ",
             seconds_text(end_s), ", ", seconds_text(end_s - backward_end_s), " after backward",
             exact ? "; nothing ends earlier" : "", "\n");
  for (size_t c = 0; c < candidates.size(); ++c) {
    const PlanCandidate& candidate = candidates[c];
    if (c != chosen) {
      const double behind_s = candidate.end_s - end_s;
      out += concat(candidate.name, ": ", candidate.buckets.size(), " buckets, ",
                    seconds_text(std::fabs(behind_s)), behind_s < 0 ? " earlier" : " later",
                    behind_s < 0 ? ", but it loses more" : "", "\n");
    }
  }
  return out;
}

}  // namespace gradwire::planner
