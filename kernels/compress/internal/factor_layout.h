#pragma once
// Where what a low-rank payload sends lies: which segments are matrices that factors make smaller,
// and which floats of a body are of which region. A body has the elements of all other segments, in
// their order, then the factors of one side; of two rounds the first, of left ones, those alone. A region has its own of the former and an even share of
// the latter: floats [K a / C, K b / C) of K, for chunks [a, b) of C.

#include <span>
#include <vector>

#include "gradwire/kernels/compress/compressor_shape.h"
#include "gradwire/kernels/ops/lowrank.h"

namespace gradwire {

/// Floats [first, first + count).
struct FloatRange {
  size_t first = 0, count = 0;
};

class FactorLayout {
 public:
  FactorLayout(std::span<const Segment> segments, uint32_t rank, uint32_t rounds);

  std::span<const LowRankMatrix> matrices() const { return matrices_; }
  std::span<const uint32_t> parameters() const { return parameters_; }  ///< of each matrix
  std::span<const PlainRun> plain_runs() const { return runs_; }
  size_t plain(FactorSide side) const { return sends_plain(side) ? plain_ : 0; }
  size_t factors(FactorSide side) const { return side == FactorSide::kLeft ? left_ : right_; }
  size_t floats(FactorSide side) const { return plain(side) + factors(side); }

  /// Of the elements, and of the factors, those of a region that ends on a chunk or with the group.
  FloatRange plain_in(Region region, FactorSide side) const;
  FloatRange factors_in(Region region, FactorSide side) const;
  size_t floats_in(Region region, FactorSide side) const {
    return plain_in(region, side).count + factors_in(region, side).count;
  }

 private:
  size_t plain_before(size_t element) const;
  bool sends_plain(FactorSide side) const { return rounds_ == 1 || side == FactorSide::kRight; }

  std::vector<LowRankMatrix> matrices_;
  std::vector<uint32_t> parameters_;
  std::vector<PlainRun> runs_;
  uint32_t rounds_ = 1;
  size_t numel_ = 0, plain_ = 0, left_ = 0, right_ = 0;
};

/// Whether `rank` vectors of both sides together are smaller than the matrix.
constexpr bool is_smaller_as_factors(size_t rows, size_t cols, size_t rank) {
  return rows > 1 && cols > 1 && rank * (rows + cols) < rows * cols;
}

/// The first basis: element i of a vector in (-1, 1), of words i % 4 of Philox with the plan's seed
/// as key and counter {i / 4, vector, parameter, 3 + 4 side}; then orthonormal.
void draw_factors(const FactorLayout& layout, uint32_t rank, FactorSide side, uint64_t seed,
                  std::span<float> factors);

}  // namespace gradwire
