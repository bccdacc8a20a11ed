#pragma once
// Groups of matrices and other parameters for the tests of low-rank compression.

#include <memory>
#include <vector>

#include "tests/kernels/segment_case.h"

namespace gradwire::testing {

/// Tall, wide, square and thin matrices between parameters that are none, one of them a matrix that
/// four vectors would not make smaller; neither matrices nor the group end on chunks.
inline std::vector<Segment> mixed_segments() {
  return {{.parameter = 3, .offset_in_parameter = 0, .numel = 19, .rows = 0},
          {.parameter = 5, .offset_in_parameter = 0, .numel = 150 * 37, .rows = 150},
          {.parameter = 6, .offset_in_parameter = 0, .numel = 5 * 7, .rows = 5},
          {.parameter = 9, .offset_in_parameter = 0, .numel = 40 * 300, .rows = 40},
          {.parameter = 2, .offset_in_parameter = 0, .numel = 33 * 33, .rows = 33},
          {.parameter = 8, .offset_in_parameter = 0, .numel = 1, .rows = 1},
          {.parameter = 7, .offset_in_parameter = 0, .numel = 260 * 9, .rows = 260}};
}

inline double square(const std::vector<float>& x) {
  double sum = 0;
  for (const float v : x) {
    sum += double{v} * v;
  }
  return sum;
}

inline double square_of_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    sum += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  }
  return sum;
}

inline CompressorShape shape_of(const std::vector<Segment>& segments, uint64_t seed, int rank = 0,
                                DType dtype = DType::kFloat32) {
  return {.numel = numel_of(segments),
          .dtype = dtype,
          .segments = segments,
          .seed = seed,
          .rank = rank};
}

/// Whether rank * (rows + cols) < rows * cols.
inline bool is_sent_as_factors(const Segment& s, size_t rank) {
  return s.rows > 1 && rank * (s.rows + s.numel / s.rows) < s.numel;
}

/// Ranks that compress, and each decode all payloads.
class LowRankRanks {
 public:
  LowRankRanks(const std::string& spec, const std::vector<Segment>& segments, int ranks,
               uint64_t seed, int threads = 1)
      : feedback_(parse_spec(spec).feedback.on) {
    for (int r = 0; r < ranks; ++r) {
      rigs_.push_back(std::make_unique<Rig>(spec, shape_of(segments, seed, r), threads));
      residuals_.emplace_back(feedback_ ? numel_of(segments) : 0);
    }
    next_ = residuals_;
  }

  Rig& rig(size_t r) { return *rigs_[r]; }
  std::vector<float>& residual(size_t r) { return residuals_[r]; }
  std::vector<float>& next(size_t r) { return next_[r]; }
  const std::vector<std::vector<std::byte>>& payloads() const { return payloads_; }

  /// Of two rounds, those of the first one.
  const std::vector<std::vector<std::byte>>& first_payloads() const { return first_; }
  /// The mean, the same on every rank; commit() ends the step.
  std::vector<float> step(const std::vector<std::vector<float>>& gradients) {
    const float scale = 1.0f / static_cast<float>(rigs_.size());
    std::vector<OwnedTensor> g;
    for (const std::vector<float>& gradient : gradients) {
      g.push_back(tensor_of(gradient, DType::kFloat32));
    }
    payloads_.clear();
    for (size_t r = 0; r < rigs_.size(); ++r) {
      payloads_.push_back(rigs_[r]->compress(g[r], residuals_[r], next_[r]));
    }
    if (rigs_[0]->compressor().rounds() == 2) {
      first_ = std::move(payloads_);
      payloads_.clear();
      for (size_t r = 0; r < rigs_.size(); ++r) {
        rigs_[r]->take_first(first_, scale);
        payloads_.push_back(rigs_[r]->compress_second(g[r], residuals_[r], next_[r]));
      }
    }
    std::vector<float> mean;
    for (size_t r = 0; r < rigs_.size(); ++r) {
      auto own = rigs_[r]->decompress(payloads_, scale).floats();
      EXPECT_TRUE(r == 0 || own == mean) << "rank " << r;
      mean = std::move(own);
    }
    return mean;
  }
  void commit() {
    for (auto& rig : rigs_) {
      rig->commit();
    }
    std::swap(residuals_, next_);
  }

 private:
  bool feedback_;
  std::vector<std::unique_ptr<Rig>> rigs_;
  std::vector<std::vector<float>> residuals_, next_;
  std::vector<std::vector<std::byte>> first_, payloads_;
};

}  // namespace gradwire::testing
