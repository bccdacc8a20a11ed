#pragma once
// Names that nobody knows, and what was probably meant.

#include <algorithm>
#include <cctype>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/kernels/core/error.h"

namespace gradwire {

/// Letters to insert, leave out, change or swap with their neighbour until `a` reads `b`.
inline size_t edits_between(std::string_view a, std::string_view b) {
  std::vector<size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
    before_last.swap(last);
    last.swap(row);
  }
  return last.back();
}

/// The one of `known` that `name` is nearest to, whatever their case and what follows a '=' or ':':
/// at most a third of its letters away. Empty: there is none, or are several as near.
inline std::string_view near_name(std::string_view name, std::span<const std::string_view> known) {
  const auto folded = [](std::string_view text) {
    std::string word(text.substr(0, text.find_first_of("=:")));
    std::ranges::transform(word, word.begin(), [](unsigned char c) { return std::tolower(c); });
    return word;
  };
  const std::string word = folded(name);
  size_t fewest = word.size() / 3 + 1;
  std::string_view nearest;
  for (const std::string_view each : known) {
    const size_t edits = edits_between(word, folded(each));
    if (edits <= fewest) {
      nearest = edits < fewest ? each : std::string_view();
      fewest = edits;
    }
  }
  return nearest;
}

/// Throws InvalidArgument `"<what> '<name>' (did you mean 'b'?), known: a, b, c"`, such as for
/// `what` "compressor: unknown name"; without the question where nothing is near.
[[noreturn]] inline void throw_unknown(std::string_view what, std::string_view name,
                                       std::span<const std::string_view> known) {
  std::string message = concat(what, " '", name, "'");
  if (const std::string_view near = near_name(name, known); !near.empty()) {
    message += concat(" (did you mean '", near, "'?)");
  }
  for (size_t i = 0; i < known.size(); ++i) {
    message.append(i == 0 ? ", known: " : ", ").append(known[i]);
  }
  throw InvalidArgument(message);
}

}  // namespace gradwire
