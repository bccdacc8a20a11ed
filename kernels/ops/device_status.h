#pragma once
// What the kernels of a step share in device memory: which residual is committed, how many commits
// there were, what went wrong. Kernels read and write it, nobody waits for them.

#include <cstdint>

#include "gradwire/kernels/core/dtype.h"

namespace gradwire::cuda {

/// The gradient plus residual held NaN or infinity, here or on another rank: what kFlagNonFinite
/// says in a payload. Or the sum of all ranks' does.
inline constexpr uint32_t kStatusNonFinite = 1;
/// A payload did not keep to the wire format; its bad part was left out.
inline constexpr uint32_t kStatusMalformed = 2;

/// The state of a group of compressors that commit together.
struct StepWords {
  uint32_t status = 0;   ///< kStatus bits: while any is set a commit changes nothing
  uint32_t parity = 0;   ///< which of two residual buffers is committed
  uint32_t step = 0;     ///< commits: seeds stochastic rounding
  uint32_t skipped = 0;  ///< commits left out because of non-finite values
  uint32_t epoch = 0;    ///< changes where the step is set: what was learned before is forgotten
  uint32_t fault = 0;    ///< the first fault: part << 8 | a FaultReason; 0 for none
  /// 1 + the bucket whose sum overflowed though every rank's gradient was finite, where that is
  /// what set kStatusNonFinite and this rank added up; 0 for none.
  uint32_t overflowed = 0;
};

/// The end of a step: the buffers written last become the committed ones, unless something stops it.
/// `skip`: values that are not finite stop this step alone.
GRADWIRE_HOST_DEVICE inline void conclude(StepWords& words, bool skip) {
  if (words.status == 0) {
    words.parity ^= 1;
    words.step += 1;
  } else if (words.status == kStatusNonFinite && skip) {
    words.status = 0;
    words.overflowed = 0;
    words.skipped += 1;
  }
}

}  // namespace gradwire::cuda
