#pragma once
// What one step was made of, moment by moment: what a report draws as its timeline.

#include <chrono>
#include <cstdint>

#include "bench/trainer/events.h"
#include "gradwire/comm/trace.h"

namespace trainer {

/// When the caller's thread had done what, in the order of a step.
struct StepMoments {
  using Time = std::chrono::steady_clock::time_point;
  Time begin, forward, backward, prepared, exchanged, updated;
  Time end;     ///< behind the outer step, where there are local steps
  Time waited;  ///< Reducer::wait() had returned: `exchanged`, or with local steps `end`
};

/// The "timeline" event, in whole microseconds since the step began. `caller_us`: name, begin and
/// end of what the caller's thread did. `buckets_us`: of every bucket the begin and end of its
/// compression, those of its exchange, what of both was coding, and its stream. `trace` is that of
/// the step, null where nothing was exchanged; its clock is laid so that wait() ends at `waited`.
JsonLine timeline(uint64_t step, const StepMoments& at, const gradwire::StepTrace* trace);

}  // namespace trainer
