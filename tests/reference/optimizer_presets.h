#pragma once
// Optimizers as other implementations compute them, each written from its source's algorithm and
// from nothing else: naive loops in double precision over all layers. Nothing of the library is
// included.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "tests/reference/optimizers.h"

namespace reference {

struct Layer {
  Vector w, a, b;  ///< weights; momentum or first moment; second moment
  double decay;
};
using Layers = std::vector<Layer>;
using Gradients = std::vector<Vector>;

inline double norm_of_all(const Gradients& gradients) {
  double sum = 0.0;
  for (const Vector& g : gradients) {
    sum += norm(g) * norm(g);
  }
  return std::sqrt(sum);
}

inline Gradients divided(Gradients gradients, double by) {
  for (Vector& g : gradients) {
    for (double& x : g) {
      x /= by;
    }
  }
  return gradients;
}

/// torch.optim.AdamW: weights shrink first, the step follows; eps is outside the corrected root.
inline void torch_adamw(Layers& layers, const Gradients& gradients, int t, double lr, double beta1,
                        double beta2, double eps) {
  for (size_t l = 0; l < layers.size(); ++l) {
    auto& [w, m, v, decay] = layers[l];
    for (size_t i = 0; i < w.size(); ++i) {
      w[i] *= 1.0 - lr * decay;
      m[i] += (gradients[l][i] - m[i]) * (1.0 - beta1);
      v[i] = beta2 * v[i] + (1.0 - beta2) * gradients[l][i] * gradients[l][i];
      const double denominator = std::sqrt(v[i]) / std::sqrt(1.0 - std::pow(beta2, t)) + eps;
      w[i] -= lr / (1.0 - std::pow(beta1, t)) * m[i] / denominator;
    }
  }
}

/// The directions of LAMB, after advancing the moments.
inline Vector lamb_direction(Layer& layer, const Vector& g, int t) {
  constexpr double kBeta1 = 0.9, kBeta2 = 0.999, kEps = 1e-6;
  Vector u(layer.w.size());
  for (size_t i = 0; i < u.size(); ++i) {
    layer.a[i] = kBeta1 * layer.a[i] + (1.0 - kBeta1) * g[i];
    layer.b[i] = kBeta2 * layer.b[i] + (1.0 - kBeta2) * g[i] * g[i];
    const double m = layer.a[i] / (1.0 - std::pow(kBeta1, t));
    const double v = layer.b[i] / (1.0 - std::pow(kBeta2, t));
    u[i] = m / (std::sqrt(v) + kEps) + layer.decay * layer.w[i];
  }
  return u;
}

inline void descend(Vector& w, const Vector& direction, double rate) {
  for (size_t i = 0; i < w.size(); ++i) {
    w[i] -= rate * direction[i];
  }
}

/// ||w|| / ||u||, 1 where one of them is 0.
inline double trust(const Vector& w, const Vector& u) {
  return norm(w) > 0.0 && norm(u) > 0.0 ? norm(w) / norm(u) : 1.0;
}

/// arXiv 1904.00962v1: the ratio is at most 10.
inline void paper_v1_lamb(Layers& layers, const Gradients& gradients, int t, double lr) {
  for (size_t l = 0; l < layers.size(); ++l) {
    const Vector u = lamb_direction(layers[l], gradients[l], t);
    descend(layers[l].w, u, lr * std::min(trust(layers[l].w, u), 10.0));
  }
}

/// apex FusedLAMB: gradients are divided by what their common norm exceeds 1 by; without use_nvlamb
/// undecayed layers have the ratio 1.
inline void apex_lamb(Layers& layers, const Gradients& gradients, int t, double lr, bool nvlamb) {
  const Gradients clipped = divided(gradients, std::max(1.0, norm_of_all(gradients) / 1.0));
  for (size_t l = 0; l < layers.size(); ++l) {
    const Vector u = lamb_direction(layers[l], clipped[l], t);
    const bool adapts = nvlamb || layers[l].decay != 0.0;
    descend(layers[l].w, u, lr * (adapts ? trust(layers[l].w, u) : 1.0));
  }
}

/// timm's Lamb; with trust_clip the ratio is at most 1.
inline void timm_lamb(Layers& layers, const Gradients& gradients, int t, double lr,
                      bool trust_clip) {
  const Gradients clipped = divided(gradients, std::max(norm_of_all(gradients) / 1.0, 1.0));
  for (size_t l = 0; l < layers.size(); ++l) {
    const Vector u = lamb_direction(layers[l], clipped[l], t);
    double ratio = 1.0;
    if (layers[l].decay != 0.0) {
      ratio = trust(layers[l].w, u);
      ratio = trust_clip ? std::min(ratio, 1.0) : ratio;
    }
    descend(layers[l].w, u, lr * ratio);
  }
}

/// TensorFlow Addons: what is excluded from weight decay is excluded from adaptation.
inline void tf_addons_lamb(Layers& layers, const Gradients& gradients, int t, double lr) {
  for (size_t l = 0; l < layers.size(); ++l) {
    const Vector u = lamb_direction(layers[l], gradients[l], t);
    descend(layers[l].w, u, layers[l].decay == 0.0 ? lr : lr * trust(layers[l].w, u));
  }
}

/// optax: scale_by_adam, add_decayed_weights, scale_by_trust_ratio, scale by -lr.
inline void optax_lamb(Layers& layers, const Gradients& gradients, int t, double lr) {
  for (size_t l = 0; l < layers.size(); ++l) {
    const Vector u = lamb_direction(layers[l], gradients[l], t);
    descend(layers[l].w, u, trust(layers[l].w, u) * lr);
  }
}

struct LarsPresetSettings {
  double lr, momentum;
  bool nesterov;
};

/// The momentum of torch.optim.SGD on changed gradients d.
inline void torch_momentum(Layer& layer, const Vector& d, const LarsPresetSettings& s) {
  for (size_t i = 0; i < d.size(); ++i) {
    layer.a[i] = s.momentum * layer.a[i] + d[i];
    layer.w[i] -= s.lr * (s.nesterov ? d[i] + s.momentum * layer.a[i] : layer.a[i]);
  }
}

/// timm's Lars: undecayed layers are plain; where a norm is 0 the ratio is 1 and weights decay.
inline void timm_lars(Layers& layers, const Gradients& gradients, const LarsPresetSettings& s) {
  for (size_t l = 0; l < layers.size(); ++l) {
    Layer& layer = layers[l];
    Vector d = gradients[l];
    if (layer.decay != 0.0) {
      const double w_norm = norm(layer.w), g_norm = norm(d);
      const double ratio =
          w_norm > 0 && g_norm > 0 ? 0.001 * w_norm / (g_norm + w_norm * layer.decay + 1e-8) : 1.0;
      for (size_t i = 0; i < d.size(); ++i) {
        d[i] = (d[i] + layer.decay * layer.w[i]) * ratio;
      }
    }
    torch_momentum(layer, d, s);
  }
}

/// torch-optimizer's LARS: undecayed layers, and those with a norm of 0, take the gradient as it
/// is.
inline void torch_optimizer_lars(Layers& layers, const Gradients& gradients,
                                 const LarsPresetSettings& s) {
  for (size_t l = 0; l < layers.size(); ++l) {
    Layer& layer = layers[l];
    Vector d = gradients[l];
    const double w_norm = norm(layer.w), g_norm = norm(d);
    if (layer.decay != 0.0 && w_norm != 0.0 && g_norm != 0.0) {
      const double local = w_norm / (g_norm + w_norm * layer.decay + 1e-8) * 0.01;
      for (size_t i = 0; i < d.size(); ++i) {
        d[i] = (d[i] + layer.decay * layer.w[i]) * local;
      }
    }
    torch_momentum(layer, d, s);
  }
}

/// apex LARC with clip: a layer's rate divided by the learning rate, at most 1, in the gradient.
inline void apex_larc(Layers& layers, const Gradients& gradients, const LarsPresetSettings& s) {
  for (size_t l = 0; l < layers.size(); ++l) {
    Layer& layer = layers[l];
    Vector d = gradients[l];
    const double w_norm = norm(layer.w), g_norm = norm(d);
    if (w_norm != 0.0 && g_norm != 0.0) {
      double adaptive = 0.02 * w_norm / (g_norm + w_norm * layer.decay + 1e-8);
      adaptive = std::min(adaptive / s.lr, 1.0);
      for (size_t i = 0; i < d.size(); ++i) {
        d[i] = (d[i] + layer.decay * layer.w[i]) * adaptive;
      }
    }
    torch_momentum(layer, d, s);
  }
}

/// optax: add_decayed_weights, scale_by_trust_ratio, scale by -lr, trace.
inline void optax_lars(Layers& layers, const Gradients& gradients, const LarsPresetSettings& s) {
  for (size_t l = 0; l < layers.size(); ++l) {
    auto& [w, trace, unused, decay] = layers[l];
    Vector u(w.size());
    for (size_t i = 0; i < u.size(); ++i) {
      u[i] = gradients[l][i] + decay * w[i];
    }
    const bool zero = norm(w) == 0.0 || norm(u) == 0.0;
    const double ratio = zero ? 1.0 : 0.001 * norm(w) / norm(u);
    for (size_t i = 0; i < u.size(); ++i) {
      const double update = -s.lr * ratio * u[i];
      trace[i] = update + s.momentum * trace[i];
      w[i] += s.nesterov ? update + s.momentum * trace[i] : trace[i];
    }
  }
}

}  // namespace reference
