#pragma once
// 1-bit Adam and 1-bit LAMB as their papers write them, with an exchange that loses nothing: naive
// loops in double precision over one layer and all ranks. Nothing of the library is included.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "tests/reference/optimizers.h"

namespace reference {

struct OneBitSettings {
  double learning_rate, beta1, beta2, epsilon, weight_decay;
  int freeze_step;
  bool bias_correction;
  double variance_floor = 0.0;
  // Of 1-bit LAMB.
  bool adapt = false;
  double min_ratio = 0.0, max_ratio = 1e300;
  double coeff_beta = 0.9, factor_min = 0.5, factor_max = 4.0, factor_threshold = 0.1;
};

struct OneBitLayer {
  Vector w, m, v, fresh;
  double coefficient = 0.0, factor = 1.0;
  int averaged = 0;
};

inline Vector mean_of(const std::vector<Vector>& ranks) {
  Vector mean(ranks[0].size());
  for (const Vector& x : ranks) {
    for (size_t i = 0; i < x.size(); ++i) {
      mean[i] += x[i] / static_cast<double>(ranks.size());
    }
  }
  return mean;
}

/// What `steps` steps leave of an average that began at 0.
inline double kept_of(double beta, int steps, bool corrected) {
  return corrected ? 1.0 - std::pow(beta, steps) : 1.0;
}

inline double ratio_of(const OneBitLayer& x, const Vector& u, const OneBitSettings& s) {
  const double w = norm(x.w), change = norm(u);
  return s.adapt && w > 0.0 && change > 0.0
             ? std::min(std::max(w / change, s.min_ratio), s.max_ratio)
             : 1.0;
}

/// arXiv 2102.02888 and 2104.06069, algorithms 1, up to the freeze: Adam, or LAMB whose ratios are
/// averaged. No root of a v that stays, and is not 0, is below a part of its layer's, which is in
/// neither paper.
inline void onebit_warmup(OneBitLayer& x, const Vector& g, int t, const OneBitSettings& s) {
  Vector u(x.w.size());
  for (size_t i = 0; i < u.size(); ++i) {
    x.m[i] = s.beta1 * x.m[i] + (1.0 - s.beta1) * g[i];
    x.v[i] = s.beta2 * x.v[i] + (1.0 - s.beta2) * g[i] * g[i];
    const double m_hat = x.m[i] / kept_of(s.beta1, t, s.bias_correction);
    const double v_hat = x.v[i] / kept_of(s.beta2, t, s.bias_correction);
    u[i] = m_hat / (std::sqrt(v_hat) + s.epsilon) + s.weight_decay * x.w[i];
  }
  const double ratio = ratio_of(x, u, s);
  if (s.adapt && norm(x.w) > 0.0 && norm(u) > 0.0) {
    x.coefficient = s.coeff_beta * x.coefficient + (1.0 - s.coeff_beta) * ratio;
    ++x.averaged;
  }
  for (size_t i = 0; i < u.size(); ++i) {
    x.w[i] -= s.learning_rate * ratio * u[i];
  }
  if (t == s.freeze_step) {
    double mean = 0.0;
    for (double v : x.v) {
      mean += v / static_cast<double>(x.v.size());
    }
    for (double& v : x.v) {
      v = v == 0.0 ? 0.0 : std::max(v, s.variance_floor * s.variance_floor * mean);
    }
  }
  x.fresh = x.v;
}

/// A step behind the freeze. Elements of which no gradient was seen before it have no momentum.
inline void onebit_compressed(OneBitLayer& x, const std::vector<Vector>& gradients, int t,
                              const OneBitSettings& s) {
  std::vector<Vector> momenta;
  for (const Vector& g : gradients) {
    Vector& m = momenta.emplace_back(g.size());
    for (size_t i = 0; i < g.size(); ++i) {
      m[i] = x.v[i] == 0.0 ? 0.0 : s.beta1 * x.m[i] + (1.0 - s.beta1) * g[i];
    }
  }
  const Vector mean = mean_of(momenta);
  Vector direction(x.w.size()), u(x.w.size());
  double factor = 0.0;
  for (size_t i = 0; i < u.size(); ++i) {
    const double g = (mean[i] - s.beta1 * x.m[i]) / (1.0 - s.beta1);
    x.m[i] = mean[i];
    x.fresh[i] = s.beta2 * x.fresh[i] + (1.0 - s.beta2) * g * g;
    const double root =
        std::sqrt(x.v[i] / kept_of(s.beta2, s.freeze_step, s.bias_correction)) + s.epsilon;
    const double fresh_root =
        std::sqrt(x.fresh[i] / kept_of(s.beta2, t, s.bias_correction)) + s.epsilon;
    factor = std::max(factor, root / fresh_root);
    direction[i] = x.m[i] / kept_of(s.beta1, t, s.bias_correction) / root;
    u[i] = direction[i] + s.weight_decay * x.w[i];
  }
  double scale = 1.0;
  if (s.adapt) {
    if (s.weight_decay > 0.0 && norm(u) > 0.0) {
      const double part = std::min(1.0, norm(direction) / norm(u));
      factor = factor * part + 1.0 - part;
    }
    factor = std::max(std::min(factor, s.factor_max), s.factor_min);
    factor = std::min(factor, x.factor * (1.0 + s.factor_threshold));
    x.factor = std::max(factor, x.factor * (1.0 - s.factor_threshold));
    scale = x.factor;
    if (x.averaged > 0) {
      scale *= x.coefficient / kept_of(s.coeff_beta, x.averaged, s.bias_correction);
    }
  }
  for (size_t i = 0; i < u.size(); ++i) {
    x.w[i] -= s.learning_rate * scale * u[i];
  }
}

/// Step t, from 1, on the gradients of all ranks.
inline void onebit(OneBitLayer& x, const std::vector<Vector>& gradients, int t,
                   const OneBitSettings& s) {
  if (t <= s.freeze_step) {
    onebit_warmup(x, mean_of(gradients), t, s);
  } else {
    onebit_compressed(x, gradients, t, s);
  }
}

}  // namespace reference
