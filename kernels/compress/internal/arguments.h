#pragma once
// Checks at the call, before anything is enqueued: what every compressor refuses on every device.
// All throw InvalidArgument: the compressor's name, the argument, its value, what was expected.

#include <string_view>

#include "gradwire/kernels/compress/compressor.h"

namespace gradwire {

/// Stream and workspace of the shape's device.
void check_context(const Compressor& compressor, const Context& context);

/// Elements, dtype and device of the shape; a pointer that fits the dtype.
void check_gradient(const Compressor& compressor, ConstGradient g);

/// Whole chunks of the group.
void check_region(const Compressor& compressor, Region region);

/// Both empty, or distinct buffers of numel floats.
void check_residuals(const Compressor& compressor, ConstResidual e, ConstResidual e_next);

/// Empty or numel floats; `what` names it.
void check_residual(const Compressor& compressor, std::string_view what, ConstResidual e);

/// numel floats of a velocity, of a spec that keeps one; `what` names them.
void check_velocity(const Compressor& compressor, std::string_view what, ConstResidual u);

/// numel floats that hold gradient and residual in one, of a spec with error feedback.
void check_accumulated(const Compressor& compressor, ConstResidual x);

/// A payload to be written, with room for `needed` bytes.
void check_room(const Compressor& compressor, ConstPayload out, size_t needed);

/// Payloads to be read: bytes at null. Their content is checked when they are read.
void check_payloads(const Compressor& compressor, std::span<const ConstPayload> payloads);

void check_scale(const Compressor& compressor, float scale);

}  // namespace gradwire
