// The verbs that run in rounds: rings, recursive halving and doubling, Bruck's all-gather.

#include <algorithm>
#include <bit>
#include <cstring>

#include "gradwire/comm/collectives.h"
#include "gradwire/comm/transport/frame.h"

namespace gradwire {
namespace {

constexpr size_t kLengthBytes = sizeof(uint64_t);  // in front of each part of a Bruck all-gather

std::span<float> shard_of(std::span<float> values, int size, int r) {
  const size_t begin = shard_begin(values.size(), size, r);
  return values.subspan(begin, shard_begin(values.size(), size, r + 1) - begin);
}

/// Which ranks take part in halving and doubling: a power of two of them, after the ranks beyond it
/// have been folded into those behind them.
struct Hypercube {
  explicit Hypercube(RankOf of)
      : rank(static_cast<unsigned>(of.rank)),
        power(std::bit_floor(static_cast<unsigned>(of.world_size))),
        extra(static_cast<unsigned>(of.world_size) - power) {}

  unsigned rank, power, extra;

  bool folds() const { return extra > 0; }
  bool in_pair() const { return rank < 2 * extra; }
  bool takes_part() const { return !in_pair() || rank % 2 == 1; }
  unsigned place() const { return in_pair() ? rank / 2 : rank - extra; }
  int partner(unsigned bit) const {
    const unsigned other = place() ^ bit;
    return static_cast<int>(other < extra ? 2 * other + 1 : other + extra);
  }
  /// Whether this rank keeps the lower half of what it shares with that partner.
  bool keeps_low(unsigned bit) const { return (place() & bit) == 0; }
};

}  // namespace

uint64_t all_reduce_bytes_sent(AllReduce algorithm, size_t numel, RankOf of) {
  const auto shard = [&](int r) {
    return shard_begin(numel, of.world_size, r + 1) - shard_begin(numel, of.world_size, r);
  };
  const auto checksums = [](size_t floats) { return checksum_bytes(floats * sizeof(float)); };
  const auto others = static_cast<uint64_t>(of.world_size - 1);
  if (others == 0) {
    return 0;
  }
  uint64_t frames = 2 * others, floats = 0, behind_chunks = 0;
  switch (algorithm) {
    case AllReduce::kRankOrder:
      floats = numel - shard(of.rank) + others * shard(of.rank);
      break;
    case AllReduce::kRing:
      for (int r = 0; r < of.world_size; ++r) {
        const uint64_t times = (r == of.rank ? 0 : 1) + (r == (of.rank + 1) % of.world_size ? 0 : 1);
        floats += times * shard(r);
        behind_chunks += times * checksums(shard(r));
      }
      break;
    case AllReduce::kRabenseifner: {
      const Hypercube cube(of);
      frames = cube.in_pair() ? 1 : 0;
      floats = cube.in_pair() ? numel : 0;
      behind_chunks = checksums(floats);
      size_t shared = numel;
      for (unsigned bit = 1; cube.takes_part() && bit < cube.power; bit *= 2) {
        const size_t kept = cube.keeps_low(bit) ? shared / 2 : shared - shared / 2;
        floats += shared;  // a part on the way down, the other on the way back
        behind_chunks += checksums(kept) + checksums(shared - kept);
        frames += 2;
        shared = kept;
      }
      break;
    }
  }
  return frames * kFrameHeaderBytes + floats * sizeof(float) + behind_chunks;
}

// P - 1 rounds bring shard r, summed, to rank r; P - 1 more bring the sums to everyone. A sum arrives
// where its terms lay: it is complete only when this rank's term has reached the next rank.
void Collectives::reduce_around(std::span<float> values, CallTag tag, Context& context) {
  const int size = group_.size();
  const auto shard = [&](int steps_back) {
    return shard_of(values, size, (group_.rank + 2 * size - steps_back) % size);
  };
  Workspace::Frame frame(context.workspace);
  rounds_.clear();
  for (int i = 0; i + 1 < size; ++i) {
    const auto out = std::as_bytes(shard(i + 1));
    const auto sum = shard(i + 2);
    const auto room = std::as_writable_bytes(frame.take<float>(sum.size()));
    rounds_.push_back({.out = {peer_at(1), out, out.size()},
                       .in = {peer_at(size - 1), room, true},
                       .then = Then::kAdd,
                       .add_to = sum});
  }
  for (int i = 0; i + 1 < size; ++i) {
    const auto out = std::as_bytes(shard(i));
    rounds_.push_back({.out = {peer_at(1), out, out.size()},
                       .in = {peer_at(size - 1), std::as_writable_bytes(shard(i + 1)), true},
                       .then = Then::kKeep,
                       .add_to = {}});
  }
  run_rounds(Verb::kRingAllReduce, tag);
}

// Partners at distance 1, 2, 4, ... each keep a half of what they share and hand over the other; then
// back again. Ranks beyond the power of two take part through the one behind them.
void Collectives::reduce_halving(std::span<float> values, CallTag tag, Context& context) {
  const Hypercube cube({group_.rank, group_.size()});
  const auto bytes = std::as_writable_bytes(values);
  Workspace::Frame frame(context.workspace);
  const auto room = [&](size_t count) { return std::as_writable_bytes(frame.take<float>(count)); };

  rounds_.clear();
  if (cube.folds()) {
    Round& fold = rounds_.emplace_back();
    if (!cube.takes_part()) {
      fold.out = {group_.rank + 1, bytes, bytes.size()};
    } else if (cube.in_pair()) {
      fold.in = {group_.rank - 1, room(values.size()), true};
      fold.then = Then::kAdd;
      fold.add_to = values;
    }
  }
  struct Step {
    int peer;
    std::span<float> kept, given;
  };
  Step steps[32];
  size_t halvings = 0;
  std::span<float> shared = values;
  for (unsigned bit = 1; bit < cube.power; bit *= 2) {
    const size_t half = shared.size() / 2;
    const auto low = shared.first(half), high = shared.subspan(half);
    Step& step = steps[halvings++];
    Round& round = rounds_.emplace_back();
    if (!cube.takes_part()) {
      continue;
    }
    step = {cube.partner(bit), cube.keeps_low(bit) ? low : high, cube.keeps_low(bit) ? high : low};
    const auto given = std::as_bytes(step.given);
    round = {.out = {step.peer, given, given.size()},
             .in = {step.peer, room(step.kept.size()), true},
             .then = Then::kAdd,
             .add_to = step.kept};
    shared = step.kept;
  }
  for (size_t i = halvings; i-- > 0;) {
    Round& round = rounds_.emplace_back();
    if (cube.takes_part()) {
      const auto kept = std::as_bytes(steps[i].kept);
      round.out = {steps[i].peer, kept, kept.size()};
      round.in = {steps[i].peer, std::as_writable_bytes(steps[i].given), true};
    }
  }
  if (cube.folds()) {
    Round& unfold = rounds_.emplace_back();
    if (!cube.takes_part()) {
      unfold.in = {group_.rank + 1, bytes, true};
    } else if (cube.in_pair()) {
      unfold.out = {group_.rank - 1, bytes, bytes.size()};
    }
  }
  run_rounds(Verb::kRabenseifnerAllReduce, tag);
}

void Collectives::gather_around(std::span<const std::byte> mine, Parts all, CallTag tag) {
  const int size = group_.size();
  const auto own = static_cast<size_t>(group_.rank);
  check(mine.size() <= all.stride, to_string(Verb::kRingAllGather), ": length is ", mine.size(),
        ", capacity is ", all.stride);
  if (!mine.empty() && mine.data() != all.bytes.data() + own * all.stride) {
    std::memmove(all.bytes.data() + own * all.stride, mine.data(), mine.size());
  }
  rounds_.clear();
  for (int i = 0; i + 1 < size; ++i) {
    const auto part = [&](int steps_back) {
      const auto source = static_cast<size_t>(peer_at(size - steps_back));
      return all.bytes.subspan(source * all.stride, all.stride);
    };
    // What is sent on has its length when its header has come.
    rounds_.push_back(
        {.out = {peer_at(1), i == 0 ? mine : part(i), all.stride},
         .in = {peer_at(size - 1), part(i + 1)},
         .then = i + 2 < size ? Then::kForward : Then::kKeep,
         .add_to = {}});
  }
  run_rounds(Verb::kRingAllGather, tag);
  all.lengths[own] = mine.size();
  for (int i = 0; i + 1 < size; ++i) {
    all.lengths[static_cast<size_t>(peer_at(size - 1 - i))] =
        rounds_[static_cast<size_t>(i)].in.length;
  }
}

// Bruck's algorithm turned round, so that each round's parts come from the ranks before this one: at
// distance d a rank hands the first d parts it has to rank r + d and gets the next d from r - d.
void Collectives::gather_doubling(std::span<const std::byte> mine, Parts all, CallTag tag) {
  const auto size = static_cast<size_t>(group_.size());
  const auto own = static_cast<size_t>(group_.rank);
  check(mine.size() <= all.stride, to_string(Verb::kBruckAllGather), ": length is ", mine.size(),
        ", capacity is ", all.stride);
  const size_t room = kLengthBytes + all.stride;
  if (staging_.size() < size * room) {
    staging_.resize(size * room);
  }
  stage_ = {all, staging_, kLengthBytes + mine.size(), 1};
  const uint64_t length = mine.size();
  std::memcpy(stage_.bytes.data(), &length, kLengthBytes);
  if (!mine.empty()) {
    std::memcpy(stage_.bytes.data() + kLengthBytes, mine.data(), mine.size());
    std::memmove(all.bytes.data() + own * all.stride, mine.data(), mine.size());
  }
  rounds_.clear();
  for (size_t distance = 1; distance < size; distance *= 2) {
    const size_t parts = std::min(distance, size - distance);
    const int steps = static_cast<int>(distance);
    // Received where it would lie if all parts before it were full; moved up when it is there.
    rounds_.push_back({.out = {peer_at(steps), staged(1), parts * room},
                       .in = {peer_at(group_.size() - steps),
                              stage_.bytes.subspan(distance * room, parts * room)},
                       .then = Then::kUnpack,
                       .add_to = {}});
  }
  run_rounds(Verb::kBruckAllGather, tag);
  all.lengths[own] = mine.size();
}

/// The first `parts` parts that this rank has, as they travel.
std::span<const std::byte> Collectives::staged(size_t parts) const {
  size_t end = 0;
  for (size_t i = 0; i < parts; ++i) {
    uint64_t length = 0;
    std::memcpy(&length, stage_.bytes.data() + end, kLengthBytes);
    end += kLengthBytes + length;
  }
  return stage_.bytes.first(end);
}

// The lengths are another rank's word: each is checked before it is used.
void Collectives::unpack(const Incoming& message, size_t parts) {
  const int peer = engine_rank(message.peer);
  const std::span<const std::byte> came = message.into.first(message.length);
  size_t place = 0;
  for (size_t i = 0; i < parts; ++i) {
    uint64_t length = 0;
    const bool has_length = came.size() - place >= kLengthBytes;
    if (has_length) {
      std::memcpy(&length, came.data() + place, kLengthBytes);
    }
    if (!has_length || length > stage_.all.stride ||
        length > came.size() - place - kLengthBytes) {
      throw TransportError(concat("rank ", peer, " sent ", came.size(), " bytes whose part ", i,
                                  " claims ", length, ", expected ", parts, " parts of up to ",
                                  stage_.all.stride),
                           peer);
    }
    const auto part = came.subspan(place + kLengthBytes, length);
    const auto owner =
        static_cast<size_t>((message.peer + group_.size() - static_cast<int>(i)) % group_.size());
    std::copy(part.begin(), part.end(), stage_.all.bytes.begin() +
                                            static_cast<ptrdiff_t>(owner * stage_.all.stride));
    stage_.all.lengths[owner] = length;
    place += kLengthBytes + length;
  }
  if (place != came.size()) {
    throw TransportError(concat("rank ", peer, " sent ", came.size(), " bytes for ", parts,
                                " parts that end at ", place),
                         peer);
  }
  std::memmove(stage_.bytes.data() + stage_.filled, came.data(), came.size());
  stage_.filled += came.size();
  stage_.parts += parts;
}

}  // namespace gradwire
