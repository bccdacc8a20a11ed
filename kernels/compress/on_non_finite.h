#pragma once

#include <cstdint>

namespace gradwire {

/// What a commit does about a step in which a gradient of any rank held NaN or infinity. Nothing of
/// such a step is ever committed.
enum class OnNonFinite : uint8_t {
  kError,  ///< it is an error, which ends the step (Reducer) or all commits (DeviceState)
  kSkip,   ///< the step is left out and counted, the next one is as good as any: loss scalers
};

}  // namespace gradwire
