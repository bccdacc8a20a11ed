#pragma once
// The velocity of a group: what momentum makes of its gradients. Two buffers, so that a step that
// does not commit leaves it as it was.

#include <span>

#include "gradwire/kernels/compress/spec.h"
#include "gradwire/kernels/core/memory.h"
#include "gradwire/kernels/core/tensor.h"
#include "gradwire/kernels/core/thread_pool.h"

namespace gradwire {

/// u_next = kept u + taken g, each product rounded to float32.
struct VelocityRates {
  float kept;   ///< in [0, 1]
  float taken;  ///< in [0, 1]
};

/// Of a spec that keeps_velocity(): its momentum, or with ef21 its average's.
inline VelocityRates velocity_rates(const CompressorSpec& spec) {
  return spec.ef21 ? VelocityRates{static_cast<float>(1 - spec.eta), static_cast<float>(spec.eta)}
                   : VelocityRates{static_cast<float>(spec.momentum), 1.0f};
}

class Velocity {
 public:
  /// All zeros. Memory is taken when it is first needed: plans make compressors only to ask for
  /// their capacity.
  explicit Velocity(size_t numel) : numel_(numel) {}

  /// next = kept * committed + taken * g.
  void advance(ConstGradient g, VelocityRates rates, ThreadPool& pool);
  /// Of the last advance().
  std::span<float> next() const { return next_.as<float>(); }

  /// Makes what advance() did since the last commit() final.
  void commit();
  /// All zeros, as committed.
  void clear();
  /// The owner may write it between steps.
  std::span<float> committed();

 private:
  void make_room();

  const size_t numel_;
  Buffer committed_, next_;
  bool pending_ = false;  // next_ is of a step since the last commit
};

}  // namespace gradwire
