#include "gradwire/kernels/compress/internal/spec_joints.h"

#include <algorithm>

#include "gradwire/kernels/compress/compressor_registry.h"

namespace gradwire {

void refuse_joined_by_plus(std::string_view text) {
  for (size_t at = text.find('+'); at != std::string_view::npos; at = text.find('+', at + 1)) {
    const bool exponent = at >= 2 && (text[at - 1] == 'e' || text[at - 1] == 'E') &&
                          (text[at - 2] == '.' || (text[at - 2] >= '0' && text[at - 2] <= '9'));
    if (!exponent) {
      std::string with_commas(text);
      std::ranges::replace(with_commas, '+', ',');
      throw InvalidArgument(concat("spec: is '", text, "', must be joined by ',', as '",
                                   with_commas, "': '+' stands for it in --methods alone"));
    }
  }
}

std::string joined_by_commas(std::string_view text) {
  constexpr std::string_view kJoints = ":;| ";
  std::string joined(text);
  const size_t name = std::min(text.find_first_of(",:;| "), text.size());
  const auto row =
      std::ranges::find(compressor_registry(), text.substr(0, name), &CompressorRow::name);
  const bool has_number =
      row != compressor_registry().end() && (row->selector() || row->takes_levels || row->low_rank());
  for (size_t at = name + (has_number ? 1 : 0); at < joined.size(); ++at) {
    const size_t begin = joined.rfind(',', at - 1) + 1;  // of the option; 0: of the name
    const std::string_view option = std::string_view(joined).substr(begin, at - begin);
    const bool own = joined[at] == ':' && (option == "qsgd" || option.starts_with("start="));
    if (kJoints.find(joined[at]) != std::string_view::npos && !own) {
      joined[at] = ',';
    }
  }
  return joined;
}

}  // namespace gradwire
