#pragma once
// What people put between the parts of a spec where a comma belongs.

#include <string>
#include <string_view>

namespace gradwire {

/// @throws InvalidArgument for a '+' that is not of an exponent, as in 1e+02: it joins the parts on
/// the command line alone.
void refuse_joined_by_plus(std::string_view text);

/// The text with a comma wherever a colon, a semicolon, a bar or a space stands between its parts.
std::string joined_by_commas(std::string_view text);

}  // namespace gradwire
