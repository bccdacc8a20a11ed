#pragma once
// Both residual buffers of a bucket: group after group, each in the dtype its spec keeps residuals
// in, on the device where the bucket lies or, where the plan says so, in memory of the host.

#include <array>
#include <span>
#include <vector>

#include "gradwire/comm/plan.h"
#include "gradwire/kernels/core/memory.h"
#include "gradwire/kernels/core/pinned.h"
#include "gradwire/kernels/ops/cast_cuda.h"

namespace gradwire {

/// Where a bucket's residuals lie and are worked on.
struct ResidualPlace {
  Device device{};  ///< of the bucket
  ResidualMemory memory = ResidualMemory::kDevice;
  const uint32_t* parity = nullptr;  ///< on a GPU: the word there that says which is committed
  Stream* stream = nullptr;          ///< on a GPU: on which read() and write() copy
};

class Residuals {
 public:
  Residuals(std::span<const PlanGroup> groups, const ResidualPlace& place);

  /// Elements of group g as they are kept in buffer `parity`; none without feedback. In the GPU's
  /// memory or the CPU's, as the view says.
  TensorView kept(size_t g, Region region, size_t parity) const;
  /// The same as floats of the host, and floats rounded to what is kept. Between steps: on a GPU
  /// they wait.
  std::vector<float> read(size_t g, Region region, size_t parity) const;
  void write(size_t g, size_t begin, ConstResidual values, size_t parity) const;
  /// On a GPU: enqueues a copy of what is committed, as floats in its memory. False without
  /// feedback.
  bool copy(size_t g, Region region, std::span<float> to, Stream& stream) const;

  /// Elements of a group as compressors and exchanges use them: what is kept where that is float32
  /// on their device, else floats of the frame's. Empty: nothing was lent.
  struct Lent {
    Residual e, e_next;
  };
  /// Which of the two hold what is kept: e (else e_next is to be written), e_next (e is not lent,
  /// or on a GPU not filled), or both.
  enum class Holding : uint8_t { kCommitted, kNext, kBoth };
  /// Enqueues: in CPU memory inside a task of the context's stream, at once. On a GPU `parity` is
  /// 0, whichever is the committed one: e is lent for the first buffer, e_next for the second, and
  /// the kernels, as those that use them, ask the word.
  Lent lend(size_t g, Region region, size_t parity, Holding holding, Workspace::Frame& frame,
            Context& context) const;
  /// Enqueues keeping what was lent as e_next: rounded to nearest, ties to even. The committed
  /// buffer keeps its bits.
  void take_back(size_t g, Region region, size_t parity, const Lent& lent, Context& context) const;

 private:
  /// Compressors and exchanges use the kept buffers themselves.
  bool is_worked_on_in_place(size_t g) const;
  /// On a GPU: of these the one that the parity says.
  cuda::ParityView kept_of(const TensorView& first, const TensorView& second) const;
  cuda::ParityView lent_of(Residual first, Residual second) const;

  const ResidualPlace place_;
  std::vector<DType> dtypes_;
  std::vector<size_t> numels_, offsets_;  // of each group: elements, 0 without feedback; bytes
  std::array<Buffer, 2> buffers_;         // or, beside a GPU:
  std::array<PinnedBuffer, 2> pinned_;
};

}  // namespace gradwire
