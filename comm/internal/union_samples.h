#pragma once
// How many elements of a mean some rank had sent: what a bucket's selections are together.

#include <cstdint>
#include <vector>

#include "gradwire/kernels/core/tensor.h"

namespace gradwire {

/// Of each group of a bucket: elements of its means that were looked at, and those that were not zero.
class UnionSamples {
 public:
  explicit UnionSamples(size_t groups) : samples_(groups) {}

  /// Looks at runs of elements spread over the mean, others in each step: a few microseconds.
  void look_at(size_t group, ConstGradient mean, uint32_t step);
  /// The share that was not zero; 0: none were looked at.
  double density(size_t group) const;

 private:
  struct Sample {
    uint64_t elements = 0, sent = 0;
  };
  std::vector<Sample> samples_;
};

}  // namespace gradwire
