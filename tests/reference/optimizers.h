#pragma once
// Optimizers as their papers write them: naive loops in double precision over one layer. Nothing of
// the library is included.

#include <cmath>
#include <cstddef>
#include <vector>

namespace reference {

using Vector = std::vector<double>;

inline double norm(const Vector& x) {
  double sum = 0.0;
  for (double element : x) {
    sum += element * element;
  }
  return std::sqrt(sum);
}

struct SgdSettings {
  double learning_rate, momentum, weight_decay;
  bool nesterov;
};

/// v = mu v + g + wd w; w -= lr v, or with Nesterov's look-ahead w -= lr (g + wd w + mu v).
inline void sgd(Vector& w, Vector& v, const Vector& g, const SgdSettings& s) {
  for (size_t i = 0; i < w.size(); ++i) {
    const double d = g[i] + s.weight_decay * w[i];
    v[i] = s.momentum * v[i] + d;
    w[i] = w[i] - s.learning_rate * (s.nesterov ? d + s.momentum * v[i] : v[i]);
  }
}

struct LarsSettings {
  double learning_rate, momentum, weight_decay, trust_coefficient, epsilon;
  bool adapt;
};

/// arXiv 1708.03888, equations 6 and algorithm 1.
inline void lars(Vector& w, Vector& v, const Vector& g, const LarsSettings& s) {
  const double w_norm = norm(w);
  const double g_norm = norm(g);
  double local = 1.0;
  if (s.adapt && w_norm > 0.0 && g_norm > 0.0) {
    local = s.trust_coefficient * w_norm / (g_norm + s.weight_decay * w_norm + s.epsilon);
  }
  for (size_t i = 0; i < w.size(); ++i) {
    v[i] = s.momentum * v[i] + s.learning_rate * local * (g[i] + s.weight_decay * w[i]);
    w[i] = w[i] - v[i];
  }
}

struct LambSettings {
  double learning_rate, beta1, beta2, epsilon, weight_decay;
  bool adapt;
};

/// arXiv 1904.00962, algorithm 2 with phi(z) = z; t is 1 at the first step.
inline void lamb(Vector& w, Vector& m, Vector& v, const Vector& g, int t, const LambSettings& s) {
  Vector u(w.size());
  for (size_t i = 0; i < w.size(); ++i) {
    m[i] = s.beta1 * m[i] + (1.0 - s.beta1) * g[i];
    v[i] = s.beta2 * v[i] + (1.0 - s.beta2) * g[i] * g[i];
    const double m_hat = m[i] / (1.0 - std::pow(s.beta1, t));
    const double v_hat = v[i] / (1.0 - std::pow(s.beta2, t));
    u[i] = m_hat / (std::sqrt(v_hat) + s.epsilon) + s.weight_decay * w[i];
  }
  const double w_norm = norm(w);
  const double u_norm = norm(u);
  const double ratio = s.adapt && w_norm > 0.0 && u_norm > 0.0 ? w_norm / u_norm : 1.0;
  for (size_t i = 0; i < w.size(); ++i) {
    w[i] = w[i] - s.learning_rate * ratio * u[i];
  }
}

}  // namespace reference
