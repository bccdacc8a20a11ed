#pragma once
// Do all ranks hold the same text?

#include <span>
#include <string>
#include <string_view>

#include "gradwire/comm/transport.h"

namespace gradwire {

/// Collective and blocking. @throws InvalidArgument, on every rank, naming the lowest rank whose
/// `text` differs from rank 0's and the first differing line. `what` is what the text describes.
void check_agreement(std::string_view what, std::string_view text, Transport& transport,
                     Context& context);

/// The same for texts that have been gathered: texts[r] is rank r's.
void check_same_text(std::string_view what, std::span<const std::string> texts);

/// Collective: all ranks have found the same text, or all throw: a rank with an `error` that one, the
/// others as Transport::agree() does. `what` names the thing compared.
void agree_or_rethrow(std::string_view what, std::string_view found, const std::exception_ptr& error,
                      Transport& transport, Context& context);

}  // namespace gradwire
