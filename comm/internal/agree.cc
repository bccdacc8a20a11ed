#include "gradwire/comm/internal/agree.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "gradwire/comm/exchange/message.h"
#include "gradwire/comm/fingerprint.h"

namespace gradwire {
namespace {

// Enough to find the first difference of any plan a person could read.
constexpr size_t kComparedBytes = size_t{1} << 20;

struct TextDigest {
  uint64_t hash = 0;
  uint64_t length = 0;
  bool operator==(const TextDigest&) const = default;
};

// Everyone's bytes, in messages of at most `stride`.
Messages gather(std::string_view mine, size_t stride, std::string_view what, Transport& transport,
                Context& context) {
  Messages all(transport.world_size(), stride);
  const auto own = static_cast<size_t>(transport.rank());
  all.length(own) = mine.size();
  std::memcpy(all.room(own).data(), mine.data(), mine.size());
  transport.all_gather(all.length(own), all.room(own), all.parts(), {fnv1a(what), what}, context);
  context.stream.wait();
  return all;
}

std::string_view text_of(const Messages& all, size_t r) {
  const auto bytes = all.message(r);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string_view take_line(std::string_view& text) {
  const size_t end = std::min(text.find('\n'), text.size());
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

[[noreturn]] void throw_difference(std::string_view what, size_t rank, std::string_view text,
                                   std::string_view expected) {
  for (size_t line = 1; !text.empty() || !expected.empty(); ++line) {
    const std::string_view has = take_line(text), should = take_line(expected);
    check(has == should, "rank ", rank, "'s ", what, " differs from rank 0's at line ", line, ": '",
          has, "' expected '", should, "'");
  }
  throw InvalidArgument(concat("rank ", rank, "'s ", what,
                               " differs from rank 0's behind its first ", kComparedBytes,
                               " bytes, expected the same"));
}

}  // namespace

void check_same_text(std::string_view what, std::span<const std::string> texts) {
  const auto different = std::find_if(texts.begin(), texts.end(),
                                      [&](const std::string& text) { return text != texts[0]; });
  if (different != texts.end()) {
    throw_difference(what, static_cast<size_t>(different - texts.begin()), *different, texts[0]);
  }
}

void check_agreement(std::string_view what, std::string_view text, Transport& transport,
                     Context& context) {
  const TextDigest own{.hash = fnv1a(text), .length = text.size()};
  const std::string_view own_bytes(reinterpret_cast<const char*>(&own), sizeof own);
  const Messages digests = gather(own_bytes, sizeof own, what, transport, context);

  std::vector<TextDigest> all(static_cast<size_t>(transport.world_size()));
  size_t longest = 1;
  for (size_t r = 0; r < all.size(); ++r) {
    check(digests.message(r).size() == sizeof(TextDigest), "rank ", r, " sent ",
          digests.message(r).size(), " bytes as digest of its ", what, ", expected ",
          sizeof(TextDigest));
    std::memcpy(&all[r], digests.message(r).data(), sizeof(TextDigest));
    longest = std::max<size_t>(longest, all[r].length);
  }
  const auto different =
      std::find_if(all.begin(), all.end(), [&](const TextDigest& d) { return d != all[0]; });
  if (different == all.end()) {
    return;
  }
  const size_t stride = std::min(longest, kComparedBytes);
  const Messages texts = gather(text.substr(0, stride), stride, what, transport, context);
  const auto rank = static_cast<size_t>(different - all.begin());
  throw_difference(what, rank, text_of(texts, rank), text_of(texts, 0));
}

void agree_or_rethrow(std::string_view what, std::string_view found, const std::exception_ptr& error,
                      Transport& transport, Context& context) {
  try {
    transport.agree(what, found, context);
  } catch (const InvalidArgument&) {
    if (!error) {
      throw;
    }
  }
  if (error) {
    std::rethrow_exception(error);
  }
}

}  // namespace gradwire
