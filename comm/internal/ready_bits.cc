#include "gradwire/comm/internal/ready_bits.h"

#include <algorithm>
#include <utility>

#include "gradwire/kernels/core/error.h"

namespace gradwire {
namespace {

constexpr size_t kNamedBuckets = 5;  // in a message about missing ones

bool bit(std::span<const std::byte> bits, size_t b) {
  return (bits[b / 8] >> b % 8 & std::byte{1}) != std::byte{0};
}

std::string listed(const std::vector<size_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) {
    text += concat(i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ", ranks[i]);
  }
  return text;
}

}  // namespace

ReadyBits::ReadyBits(int world_size, size_t buckets)
    : ranks_(static_cast<size_t>(world_size)),
      buckets_(buckets),
      told_(ranks_ * buckets),
      told_by_(ranks_),
      ranks_ready_(buckets) {
  agreed_.reserve(buckets);
}

void ReadyBits::tell(int rank, std::span<const std::byte> bits) {
  const auto r = static_cast<size_t>(rank);
  const auto require = [rank](bool condition, const auto&... parts) {
    if (!condition) {
      throw TransportError(concat("rank ", rank, " ", parts...), rank);
    }
  };
  require(bits.size() == bytes_of(buckets_), "sent ", bits.size(),
          " bytes about ready buckets, expected ", bytes_of(buckets_));
  for (size_t b = buckets_; b < 8 * bits.size(); ++b) {
    require(!bit(bits, b), "says that bucket ", b, " is ready, expected only those below ",
            buckets_);
  }
  for (size_t b = 0; b < buckets_; ++b) {
    uint8_t& told = told_[place(r, b)];
    require(bit(bits, b) || told == 0, "says that bucket ", b,
            " is not ready, of which it has said that it is in the same step");
    if (bit(bits, b) && told == 0) {
      told = 1;
      ++told_by_[r];
      ++ranks_ready_[b];
      news_ = true;
    }
  }
}

std::span<const BucketId> ReadyBits::take_agreed() {
  agreed_.clear();
  for (size_t b = 0; b < buckets_; ++b) {
    if (ranks_ready_[b] == ranks_) {
      agreed_.push_back(static_cast<BucketId>(b));
      ranks_ready_[b] = ranks_ + 1;  // has left
    }
  }
  agreed_so_far_ += agreed_.size();
  brought_news_ = std::exchange(news_, false);
  return agreed_;
}

// A rank whose every bucket has left has to tell of another one before anything else can leave: so
// the others may wait inside of the next round for its call. Where there is no such rank all would
// call at once, round after round, and learn nothing.
NextRound ReadyBits::next_of(int rank) const {
  if (agreed_so_far_ == buckets_) {
    return NextRound::kOver;
  }
  const size_t told = told_by_[static_cast<size_t>(rank)];
  if (told == agreed_so_far_) {
    return NextRound::kOnNews;
  }
  const bool another_calls = std::ranges::count(told_by_, agreed_so_far_) > 0;
  return told == buckets_ || another_calls ? NextRound::kAtOnce : NextRound::kSoon;
}

std::string ReadyBits::missing() const {
  std::string text;
  size_t named = 0;
  for (size_t b = 0; b < buckets_; ++b) {
    if (ranks_ready_[b] == 0 || ranks_ready_[b] >= ranks_) {
      continue;  // nobody waits with it, or it has left
    }
    if (named++ == kNamedBuckets) {
      return text + ", ...";
    }
    std::vector<size_t> without;
    for (size_t r = 0; r < ranks_; ++r) {
      if (told_[place(r, b)] == 0) {
        without.push_back(r);
      }
    }
    text += concat(text.empty() ? "" : ", ", "bucket ", b, " of ", listed(without));
  }
  return text;
}

}  // namespace gradwire
