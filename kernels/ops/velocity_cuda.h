#pragma once
// A velocity that gradients are accumulated in, on a GPU: u_next = kept u + taken g. It lies
// in two arrays like a residual, and commits with it. All memory is the GPU's; nothing is
// allocated, nothing waits, and a CUDA graph can capture the calls.

#include <span>

#include "gradwire/kernels/core/stream.h"
#include "gradwire/kernels/ops/device_status.h"
#include "gradwire/kernels/ops/parity_span.h"

namespace gradwire::cuda {

/// Elements whose squares one thread block adds up: chunk by chunk of 4096, in kernels/ops/clip.h's
/// order.
inline constexpr size_t kClipRun = 32 * 4096;

/// Elements of the memory that clip_factor() works in.
constexpr size_t clip_runs(size_t numel) { return (numel + kClipRun - 1) / kClipRun; }

/// *factor = limit / |g| where the norm |g| is above the limit and finite, else 1: the bits of
/// cpu::clip_factor(). `sums` has clip_runs(); nothing is expected in it. Two launches.
/// @throws InvalidArgument for sizes, pointers, a limit that is not positive, or devices.
void clip_factor(ConstTensorView g, double limit, std::span<double> sums, float* factor,
                 Stream& stream);

/// Of one of the velocity's two arrays: the step that may read it. In any other, and after the step
/// was set (epoch), the velocity counts as zero.
struct VelocitySlot {
  uint32_t step = 0;
  uint32_t epoch = 0;
};

/// What is kept between steps, in device memory.
struct KeptVelocity {
  ParitySpan u;                     ///< committed
  VelocitySlot* slots = nullptr;    ///< two; that of u is [step->parity]
  const StepWords* step = nullptr;  ///< u's parity is of them
};

struct VelocityInput {
  ConstTensorView g;
  KeptVelocity velocity;          ///< u of g's size; the other slot is written
  ParitySpan e{};                 ///< g's size, or empty
  float kept = 0.0f;              ///< of u, in [0, 1]
  float taken = 1.0f;             ///< of g, in [0, 1]
  const float* factor = nullptr;  ///< device: of g in the place of `taken`; or null
  float decay = 1.0f;             ///< of e
};

struct VelocityOutput {
  ParitySpan u_next;  ///< the other array of u
  ParitySpan x{};     ///< u_next + (decay e); g's size, or empty
};

/// In float32: u_next = (kept u) + (taken g). One launch.
/// @throws InvalidArgument for sizes, pointers or devices that do not fit.
void accelerate(const VelocityInput& input, const VelocityOutput& output, Stream& stream);

/// x[i] = 0 where a selection's mask has element i. @throws InvalidArgument as above.
void clear_marked(const ParitySpan& x, std::span<const std::byte> mask, Stream& stream);

/// to = u as a step of now would read it: zeros where it counts as zero. @throws as above.
void read_velocity(const KeptVelocity& velocity, std::span<float> to, Stream& stream);

/// u = from, for a step of now. @throws as above.
void write_velocity(const KeptVelocity& velocity, std::span<const float> from, Stream& stream);

}  // namespace gradwire::cuda
