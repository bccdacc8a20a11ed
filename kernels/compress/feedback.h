#pragma once
// What one group of gradients remembers between steps, beside what its compressor learns: the residual,
// with ef21 the gradient's estimate, and what waits for the next gradient. In memory of the host or of a
// GPU, by the same calls.

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "gradwire/kernels/compress/device_state.h"
#include "gradwire/kernels/compress/payload.h"
#include "gradwire/kernels/compress/spec.h"
#include "gradwire/kernels/core/memory.h"
#include "gradwire/kernels/core/pinned.h"
#include "gradwire/kernels/ops/cast_cuda.h"

namespace gradwire {

/// Where residuals of a GPU lie: in the GPU's memory, or in pinned memory of the host, with the same
/// bits, so that the GPU holds scratch for what is in a step alone. On the CPU both are the CPU's memory.
enum class ResidualMemory : uint8_t { kDevice, kHost };

/// Residual and estimate have two buffers each: a step reads the committed one and writes the other.
/// The word `parity` of the state that all groups share says which is which. On a GPU the kernels read
/// that word, and calls between steps wait.
class Feedback {
 public:
  struct Place {
    std::shared_ptr<DeviceState> state;  ///< its device is the group's
    ResidualMemory residuals = ResidualMemory::kDevice;
    /// On a GPU: on which calls between steps copy. Null on the CPU.
    Stream* stream = nullptr;
    uint32_t committed_steps = 0;  ///< before the group's first
  };
  Feedback(const CompressorSpec& spec, size_t numel, Place place);

  // In a step. On the CPU inside a task of the context's stream, at once; on a GPU they enqueue.

  /// The residual as compressors and exchanges use it: what is kept where that is float32 on their
  /// device, else floats of the frame's. On a GPU e is of the first buffer and e_next of the second,
  /// whichever is committed. Empty without feedback.
  struct Lent {
    Residual e, e_next;
  };
  /// Which of the two hold what is kept: e (else e_next is to be written), e_next (e is not lent, or
  /// on a GPU not filled), or both.
  enum class Holding : uint8_t { kCommitted, kNext, kBoth };
  Lent lend(Region region, Holding holding, Workspace::Frame& frame, Context& context) const;
  /// Keeps what was lent as e_next: rounded to nearest, ties to even. The committed buffer keeps its
  /// bits.
  void take_back(Region region, const Lent& lent, Context& context) const;
  /// With ef21: mean += the estimate, which the next commit makes the estimate. Else nothing.
  void add_estimate(std::span<float> mean, Stream& stream);
  /// On the CPU: the last add_estimate() overflowed. A GPU says it in the step's status.
  bool estimate_overflows() const { return overflows_; }
  /// gradient += what waits for it.
  void add_waiting(Gradient gradient, Stream& stream) const;

  // Between steps. Regions are of the group's elements.

  /// Whether what waits belongs to the residual. EF21's residual is no pending sum.
  bool waits_in_residual() const { return keeps_residual_ && !ef21_; }
  /// The committed residual as it is kept, in the memory that the view says; and as floats of the host.
  TensorView stored(Region region) const;
  std::vector<float> residual(Region region) const;
  /// Rounds to what is kept.
  void set_residual(size_t begin, ConstResidual values);
  /// On the CPU also in a step: makes them zero in the buffer that the step writes.
  void clear_next(Region region);
  /// On the CPU: gives memory back that holds nothing until the next step writes it.
  void release_next() const;
  /// On a GPU: enqueues a copy of the committed residual, as floats. False, and nothing, without one.
  bool copy_residual(Region region, std::span<float> to, Stream& stream) const;

  bool has_estimate() const { return ef21_; }
  /// The committed estimate, the same on every rank; empty without ef21.
  std::vector<float> estimate(Region region) const;
  void set_estimate(size_t begin, ConstResidual values);

  /// Adds values to what waits, or puts them in its place.
  enum class Waiting : uint8_t { kMore, kInstead };
  void wait_with(size_t begin, ConstResidual values, Waiting how);
  /// What still waits for the next gradient; empty when nothing.
  ConstResidual waiting(Region region) const;
  /// On a GPU, behind all wait_with() and before the next step: kernels find it from now on.
  void place_waiting();
  /// What waited went into a step that is committed. On a GPU: if as many steps are known to be.
  void forget_waiting(uint32_t committed_steps);

 private:
  bool on_gpu() const { return place_.stream != nullptr; }
  bool residual_on_host() const { return on_gpu() && place_.residuals == ResidualMemory::kHost; }
  /// Compressors and exchanges use the kept buffers themselves.
  bool is_used_in_place() const { return dtype_ == DType::kFloat32 && !residual_on_host(); }
  /// The buffer that steps read. On a GPU 0, whichever that is: kernels ask the word.
  size_t reads() const { return on_gpu() ? 0 : place_.state->words()->parity; }
  size_t committed() const { return place_.state->parity(place_.stream); }
  const uint32_t* parity() const { return &place_.state->words()->parity; }
  Device device() const { return place_.state->device(); }
  TensorView kept(Region region, size_t buffer) const;
  /// On a GPU: of the two the one that the parity says.
  cuda::ParityView kept_of(const TensorView& first, const TensorView& second) const;
  cuda::ParityView lent_of(Residual first, Residual second) const;

  const Place place_;
  const size_t numel_;
  const DType dtype_;  // of the kept residual
  const bool keeps_residual_;
  const bool ef21_;
  std::array<Buffer, 2> residuals_;
  std::array<PinnedBuffer, 2> pinned_;  // or, beside a GPU, these
  std::array<Buffer, 2> estimates_;
  bool overflows_ = false;
  std::vector<float> waiting_;  // of the group, or empty
  Buffer waiting_on_gpu_;       // the same there, until a step behind this one commits
};

}  // namespace gradwire
