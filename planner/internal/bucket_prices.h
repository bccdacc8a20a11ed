#pragma once
// The prices of a bucket search, looked up once for every bucket size that occurs.

#include <cstddef>
#include <span>
#include <unordered_map>
#include <vector>

#include "gradwire/planner/bucket_plan.h"

namespace gradwire::planner {

struct Price {
  double encode_s = 0;
  double line_s = 0;  ///< decoding and exchange
};

/// A label of the model: encoders' time so far, and when the line is free.
struct Moment {
  double shift_s = 0;
  double end_s = 0;

  Moment after(const Price& price, double ready_s) const;
};

class BucketPrices {
 public:
  /// Checks everything. Both lists outlive it.
  BucketPrices(std::span<const ReadyGradient> gradients, std::span<const BucketOption> options);

  size_t gradients() const { return gradients_.size(); }
  size_t options() const { return options_.size(); }
  size_t numel(size_t begin, size_t end) const { return sums_[end] - sums_[begin]; }
  double ready_s(size_t end) const { return gradients_[end - 1].ready_s; }
  const BucketOption& option(size_t index) const { return options_[index]; }
  /// Of all options, for a bucket of so many elements. @throws InvalidArgument for a bad price.
  std::span<const Price> prices(size_t numel);

 private:
  std::span<const ReadyGradient> gradients_;
  std::span<const BucketOption> options_;
  std::vector<size_t> sums_;
  std::unordered_map<size_t, std::vector<Price>> prices_;
};

/// Buckets [begin, end) and an option each.
struct Choice {
  size_t begin = 0, end = 0, option = 0;
};
using Choices = std::vector<Choice>;

/// The moment after the last bucket.
Moment moment_of(const Choices& choices, BucketPrices& prices);

/// Buckets that are closed at `cap` elements.
Choices split_at(size_t cap, const BucketPrices& prices);

struct DynamicProgram {
  Choices choices;
  bool exact = true;
};

DynamicProgram run_dynamic_program(BucketPrices& prices, const BucketSearch& search);

}  // namespace gradwire::planner
