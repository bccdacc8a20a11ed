#pragma once
// What the reducer itself does to gradients between passes of backward.

#include <memory>

#include "gradwire/kernels/compress/device_state.h"
#include "gradwire/kernels/core/memory.h"

namespace gradwire {

/// On the CPU at once; on a GPU behind what its stream has.
class GradientWriter {
 public:
  /// `stream`: null on the CPU.
  explicit GradientWriter(Stream* stream);

  void assign(Gradient to, ConstGradient from);
  /// Each sum is rounded to the gradient's type.
  void add(Gradient sum, ConstGradient values);
  void clear(Gradient gradient);

 private:
  Stream* const stream_;
  /// The words of a step that has failed and is never committed: kernels that look act always.
  std::unique_ptr<DeviceState> always_;
  std::unique_ptr<Workspace> workspace_;
};

}  // namespace gradwire
