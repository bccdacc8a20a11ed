#include "gradwire/comm/internal/host_words.h"

#include <algorithm>
#include <cstring>

#include "gradwire/comm/fingerprint.h"
#include "gradwire/kernels/core/error.h"

namespace gradwire {
namespace {

// Of texts that differ, the part in which the first difference is shown.
constexpr size_t kMostTextBytes = 16384;

/// In front of the first piece.
struct Header {
  uint64_t fingerprint = 0;
  uint64_t capacity = 0;
  uint64_t bytes = 0;
};

Header header_of(const std::string& piece, size_t rank, const CallTag& tag) {
  Header header;
  if (piece.size() < sizeof header) {
    throw TransportError(concat(tag.what, ": rank ", rank, " sent ", piece.size(),
                                " bytes, expected a header of ", sizeof header),
                         static_cast<int>(rank));
  }
  std::memcpy(&header, piece.data(), sizeof header);
  return header;
}

void check_alike(const Header& header, const Header& first, size_t rank, const CallTag& tag) {
  if (header.capacity != first.capacity || header.bytes > header.capacity) {
    throw TransportError(
        concat(tag.what, ": rank ", rank, " passed ", header.bytes, " of at most ", header.capacity,
               " bytes, rank 0 at most ", first.capacity, ": ranks disagree on sizes"),
        static_cast<int>(rank));
  }
  if (header.fingerprint != first.fingerprint) {
    throw TransportError(
        concat(tag.what, ": rank ", rank, " passed the fingerprint ", header.fingerprint,
               ", rank 0 ", first.fingerprint, ": ranks disagree on what they exchange"),
        static_cast<int>(rank));
  }
}

}  // namespace

std::vector<std::string> gather_host_words(std::string_view mine, size_t capacity,
                                           const CallTag& tag, const HostRounds& rounds) {
  check(rounds.most_bytes > sizeof(Header), tag.what, ": ", rounds.most_bytes,
        " bytes of a rank go at once, must be more than the ", sizeof(Header),
        " of a header: ", "too many ranks for words of the host");
  check(mine.size() <= capacity, tag.what, ": length is ", mine.size(), ", capacity is ", capacity);
  const Header own{tag.fingerprint, capacity, mine.size()};
  const auto next = [&](size_t most) {
    const std::string_view piece = mine.substr(0, most);
    mine.remove_prefix(piece.size());
    return piece;
  };
  std::string first(reinterpret_cast<const char*>(&own), sizeof own);
  std::vector<std::string> all = rounds.round(first.append(next(rounds.most_bytes - sizeof own)));
  std::vector<size_t> bytes;
  for (size_t r = 0; r < all.size(); ++r) {
    const Header header = header_of(all[r], r, tag);
    check_alike(header, header_of(all[0], 0, tag), r, tag);
    bytes.push_back(header.bytes);
  }
  for (std::string& words : all) {
    words.erase(0, sizeof(Header));
  }
  const auto is_short = [&] {
    for (size_t r = 0; r < all.size(); ++r) {
      if (all[r].size() < bytes[r]) {
        return true;
      }
    }
    return false;
  };
  while (is_short()) {  // the same on all ranks, which know all lengths
    const std::vector<std::string> pieces = rounds.round(next(rounds.most_bytes));
    for (size_t r = 0; r < all.size(); ++r) {
      if (all[r].size() < bytes[r] && pieces.at(r).empty()) {
        throw TransportError(concat(tag.what, ": rank ", r, " sent ", all[r].size(), " of ",
                                    bytes[r], " bytes, expected all"),
                             static_cast<int>(r));
      }
      all[r] += pieces.at(r);
    }
  }
  return all;
}

std::vector<std::string> gather_different_texts(std::string_view text, int rank,
                                                const HostRounds& rounds) {
  const auto digests = rounds.round(concat(fnv1a(text), " ", text.size()));
  const auto different = std::find_if(digests.begin(), digests.end(),
                                      [&](const std::string& d) { return d != digests[0]; });
  if (different == digests.end()) {
    return {};
  }
  const auto culprit = static_cast<size_t>(different - digests.begin());
  const auto own = static_cast<size_t>(rank);
  auto texts = rounds.round(own == 0 || own == culprit ? text.substr(0, kMostTextBytes) : "");
  for (size_t r = 1; r < texts.size(); ++r) {
    if (r != culprit) {
      texts[r] = texts[0];
    }
  }
  return texts;
}

}  // namespace gradwire
