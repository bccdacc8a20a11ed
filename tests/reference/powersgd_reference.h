#pragma once
// PowerSGD in double precision: the equations of Vogels et al., arXiv:1905.13727, with both sides in a
// step, and of Zhang et al., arXiv:2306.08881, with one: M = P Q^T; Q orthonormal in steps 0, 2, ..,
// where P = M Q is sent, P in the others, where Q = M^T P is.

#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/reference/compress_reference.h"

namespace gradwire::reference {

/// Columns of a factor: vector r has element i at [r][i].
using Vectors = std::vector<std::vector<double>>;

inline double inner(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    sum += a[i] * b[i];
  }
  return sum;
}

/// Modified Gram-Schmidt, column by column.
inline Vectors orthonormal(Vectors v) {
  for (size_t k = 0; k < v.size(); ++k) {
    for (size_t j = 0; j < k; ++j) {
      const double along = inner(v[j], v[k]);
      for (size_t i = 0; i < v[k].size(); ++i) {
        v[k][i] -= along * v[j][i];
      }
    }
    const double length = std::sqrt(inner(v[k], v[k]));
    for (double& x : v[k]) {
      x /= length;
    }
  }
  return v;
}

/// The first basis beside the columns (side 1) of a parameter's matrix.
inline Vectors first_vectors(size_t length, size_t rank, uint32_t parameter, uint32_t side,
                             uint64_t seed) {
  Vectors v(rank, std::vector<double>(length));
  for (uint32_t r = 0; r < rank; ++r) {
    for (uint32_t i = 0; i < length; ++i) {
      const uint32_t word = philox_word({i / 4, r, parameter, 3 + 4 * side}, seed, i % 4);
      const int64_t top = static_cast<int64_t>(word >> 8) - (word >> 31 != 0 ? int64_t{1} << 24 : 0);
      v[r][i] = (static_cast<double>(top) + 0.5) / (1 << 23);
    }
  }
  return orthonormal(v);
}

/// One matrix on all ranks.
class PowerSgd {
 public:
  PowerSgd(size_t rows, size_t cols, Vectors right) : rows_(rows), cols_(cols), held_(right) {}

  /// What rank r sends of its x (gradient + residual), as a matrix.
  std::vector<double> sent(const std::vector<double>& x) const { return product(factor(x)); }

  /// The mean of what ranks with these x send; the next step goes on from it.
  std::vector<double> step(const std::vector<std::vector<double>>& x) {
    Vectors mean(held_.size(), std::vector<double>(right_ ? rows_ : cols_));
    for (const auto& of_rank : x) {
      const Vectors own = factor(of_rank);
      for (size_t r = 0; r < own.size(); ++r) {
        for (size_t i = 0; i < own[r].size(); ++i) {
          mean[r][i] += own[r][i] / static_cast<double>(x.size());
        }
      }
    }
    const std::vector<double> result = product(mean);
    held_ = orthonormal(mean);
    right_ = !right_;
    return result;
  }

 private:
  Vectors factor(const std::vector<double>& x) const {
    Vectors out(held_.size(), std::vector<double>(right_ ? rows_ : cols_));
    for (size_t r = 0; r < held_.size(); ++r) {
      for (size_t i = 0; i < rows_; ++i) {
        for (size_t j = 0; j < cols_; ++j) {
          out[r][right_ ? i : j] += x[i * cols_ + j] * held_[r][right_ ? j : i];
        }
      }
    }
    return out;
  }

  std::vector<double> product(const Vectors& own) const {
    std::vector<double> out(rows_ * cols_);
    for (size_t r = 0; r < held_.size(); ++r) {
      for (size_t i = 0; i < rows_; ++i) {
        for (size_t j = 0; j < cols_; ++j) {
          out[i * cols_ + j] += right_ ? own[r][i] * held_[r][j] : held_[r][i] * own[r][j];
        }
      }
    }
    return out;
  }

  size_t rows_, cols_;
  Vectors held_;
  bool right_ = true;  // held_ is beside the columns
};

/// Both sides in a step, as the paper has it, for one matrix of some workers: Q starts warm and as it
/// is, and every worker keeps what the *mean* leaves of its own M = g + e.
class PowerSgdOfTwoRounds {
 public:
  PowerSgdOfTwoRounds(size_t rows, size_t cols, Vectors right, size_t workers)
      : rows_(rows), cols_(cols), q_(right), kept(workers, std::vector<double>(rows * cols)) {}

  /// The mean of the workers' gradients, as far as R vectors say it.
  std::vector<double> step(const std::vector<std::vector<double>>& gradients) {
    const size_t workers = gradients.size(), rank = q_.size();
    std::vector<std::vector<double>> m = kept;
    for (size_t w = 0; w < workers; ++w) {
      for (size_t i = 0; i < rows_ * cols_; ++i) {
        m[w][i] += gradients[w][i];
      }
    }
    Vectors p(rank, std::vector<double>(rows_)), q(rank, std::vector<double>(cols_));
    for (size_t r = 0; r < rank; ++r) {
      for (size_t w = 0; w < workers; ++w) {
        for (size_t i = 0; i < rows_; ++i) {
          for (size_t j = 0; j < cols_; ++j) {
            p[r][i] += m[w][i * cols_ + j] * q_[r][j] / static_cast<double>(workers);
          }
        }
      }
    }
    p = orthonormal(p);
    std::vector<double> mean(rows_ * cols_);
    for (size_t r = 0; r < rank; ++r) {
      for (size_t w = 0; w < workers; ++w) {
        for (size_t i = 0; i < rows_; ++i) {
          for (size_t j = 0; j < cols_; ++j) {
            q[r][j] += m[w][i * cols_ + j] * p[r][i] / static_cast<double>(workers);
          }
        }
      }
      for (size_t i = 0; i < rows_; ++i) {
        for (size_t j = 0; j < cols_; ++j) {
          mean[i * cols_ + j] += p[r][i] * q[r][j];
        }
      }
    }
    for (size_t w = 0; w < workers; ++w) {
      for (size_t i = 0; i < rows_ * cols_; ++i) {
        kept[w][i] = m[w][i] - mean[i];
      }
    }
    q_ = q;
    return mean;
  }

 private:
  size_t rows_, cols_;
  Vectors q_;

 public:
  std::vector<std::vector<double>> kept;  ///< e of each worker
};

}  // namespace gradwire::reference
