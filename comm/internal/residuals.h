#pragma once
// Both residual buffers of a bucket: group after group, each in the dtype its spec keeps residuals
// in, on the device where the bucket lies.

#include <array>
#include <span>
#include <vector>

#include "gradwire/comm/plan.h"
#include "gradwire/kernels/core/memory.h"

namespace gradwire {

class Residuals {
 public:
  Residuals(std::span<const PlanGroup> groups, Device device);

  /// Elements of group g as they are kept in buffer `parity`; none without feedback.
  TensorView kept(size_t g, Region region, size_t parity) const;
  /// On the CPU: the same as floats, and floats rounded to what is kept.
  std::vector<float> read(size_t g, Region region, size_t parity) const;
  void write(size_t g, size_t begin, ConstResidual values, size_t parity) const;

  /// Elements of a group as compressors and exchanges use them: what is kept where that is float32,
  /// else floats of the frame's.
  struct Lent {
    Residual e, e_next;
  };
  /// Which of the two hold what is kept: e (else e_next is to be written), e_next (e is not lent),
  /// or both. On a GPU, where the host does not know which buffer is the committed one, always
  /// both.
  enum class Holding : uint8_t { kCommitted, kNext, kBoth };
  /// Enqueues: in CPU memory inside a task of the context's stream, at once.
  Lent lend(size_t g, Region region, size_t parity, Holding holding, Workspace::Frame& frame,
            Context& context) const;
  /// Enqueues keeping what was lent: rounded to nearest, ties to even. The committed buffer keeps
  /// its bits.
  void take_back(size_t g, Region region, size_t parity, const Lent& lent, Context& context) const;

 private:
  std::vector<DType> dtypes_;
  std::vector<size_t> numels_, offsets_;  // of each group: elements, 0 without feedback; bytes
  std::array<Buffer, 2> buffers_;
};

}  // namespace gradwire
