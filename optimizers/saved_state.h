#pragma once
// An optimizer's state from a checkpoint: checked as a whole, and converted between float32 and 8
// bits where it was saved as the other.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "gradwire/optimizers/optimizer.h"

namespace gradwire {

/// The most steps that a parameter may have made: no run reaches them, and doubles count to there.
inline constexpr uint64_t kMostSteps = uint64_t{1} << 53;

/// What was saved of what StateVisitor shows, by the same names, in CPU memory that lives until
/// load_state() returns.
class SavedState {
 public:
  virtual ~SavedState() = default;
  /// What an error calls a piece: "state['w']['exp_avg']".
  virtual std::string name_of(std::string_view parameter, std::string_view name) const;
  /// Nothing where there is none. @throws InvalidArgument for something else than a tensor.
  virtual std::optional<ConstTensorView> tensor(std::string_view parameter,
                                                std::string_view name) = 0;
  /// Codes of 8 bits; their scales are a tensor(). Nothing where there are none.
  virtual std::optional<std::span<const std::byte>> bytes(std::string_view parameter,
                                                          std::string_view name) = 0;
  virtual std::optional<uint64_t> scalar(std::string_view parameter, std::string_view name) = 0;
};

/// Takes over what was saved. State takes the form that this optimizer keeps it in: codes become
/// exactly the floats they stand for, and floats the nearest codes, which loses what 8 bits do not
/// hold; codes that became floats become codes of the same values again. What prepare() wrote
/// before is void: the next step begins with prepare() again. The stream must be idle.
/// @throws InvalidArgument, and changes nothing, where a piece is missing, of another size or
/// dtype, a number of steps is above 2^53, codes or scales are none that an optimizer writes, or
/// floats that are to become codes are not finite or a mean square is negative.
void load_state(Optimizer& optimizer, SavedState& saved);

/// The pieces of it. `what` is the state's name in messages, as in StateVisitor.

/// @throws InvalidArgument unless there is a scale for every 256 codes, each 0, with codes of 0, or
/// a power of two from 2^-87 to 2^127.
void check_codes(std::string_view what, std::span<const std::byte> codes,
                 std::span<const float> scales);
/// The floats that codes which check_codes() accepts stand for; state_has_sign() says whether they
/// have a sign.
void state_from_codes(std::span<const std::byte> codes, std::span<const float> scales,
                      bool has_sign, std::span<float> out);
/// The nearest codes; a mean square that is not 0 never becomes 0.
/// @throws InvalidArgument for what is not finite, and below 0 without a sign.
void state_to_codes(std::string_view what, std::span<const float> x, bool has_sign,
                    std::span<std::byte> codes, std::span<float> scales);

}  // namespace gradwire
