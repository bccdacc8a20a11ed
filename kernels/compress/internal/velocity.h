#pragma once
// The velocity of a group: what momentum makes of its gradients. Two buffers, and a word that says which
// is committed, so that a step that does not commit leaves no trace. On a GPU the word is that of the
// shape's state, on the CPU one of its own.

#include <array>
#include <span>

#include "gradwire/kernels/compress/compressor_shape.h"
#include "gradwire/kernels/compress/spec.h"
#include "gradwire/kernels/core/memory.h"
#include "gradwire/kernels/core/thread_pool.h"
#include "gradwire/kernels/ops/velocity_cuda.h"

namespace gradwire {

/// u_next = kept u + taken g, each product rounded to float32, g clipped to a norm where the spec clips.
class Velocity {
 public:
  /// All zeros, of a spec that keeps_velocity(). On the CPU memory is taken when it is first needed:
  /// plans make compressors only to ask for their capacity.
  Velocity(const CompressorSpec& spec, const CompressorShape& shape);

  /// On the CPU, within a task. @returns u_next.
  std::span<float> advance(ConstGradient g, Workspace& workspace, ThreadPool& pool);
  /// On a GPU, enqueued: x = u_next + decay e as well, in float32; e may be empty.
  struct Step {
    ConstGradient g;
    cuda::ParitySpan e;
    cuda::ParitySpan x;
  };
  void advance(const Step& step, Context& context);
  /// What the next commit makes the velocity.
  cuda::ParitySpan next() const { return {kept(1), kept(0), parity()}; }

  size_t kept_bytes() const { return 2 * numel_ * sizeof(float); }
  /// On the CPU, between steps: what advance() did since the last commit becomes final; all zeros.
  void commit();
  void clear();
  /// The owner may write it between steps. Empty on a GPU.
  std::span<float> committed();
  /// Enqueue: to = it, and it = from.
  void read(Residual to, Context& context);
  void write(ConstResidual from, Context& context);

 private:
  bool on_gpu() const { return words_ != nullptr; }
  const uint32_t* parity() const { return on_gpu() ? &words_->parity : &parity_; }
  std::span<float> kept(size_t buffer) const { return buffers_[buffer].as<float>(); }
  cuda::KeptVelocity on_device() const;
  void make_room(Device device);

  const size_t numel_;
  const float kept_, taken_;
  const double limit_;                  // of |g|; 0: none. With a limit taken_ is 1
  const float decay_;                   // of e
  const cuda::StepWords* const words_;  // null on the CPU
  std::array<Buffer, 2> buffers_;       // parity 0: the first is committed
  Buffer slots_, factor_;               // on a GPU
  uint32_t parity_ = 0;                 // on the CPU, as what follows
  bool pending_ = false;                // advanced since the last commit
};

}  // namespace gradwire
