// How the messages of collectives in rounds move: every receive is posted at the start; a piece of a
// later round leaves as soon as what it is made of has come and been added, so that a slow link never
// runs dry between rounds. Pieces are a message 0 and the chunks behind it. A chunk does not exist yet
// when its header leaves, so its checksum follows it in a message of its own, and it is checked before
// it is added or sent on: what changed on the way goes no further than one rank.

#include <algorithm>
#include <functional>
#include <utility>

#include "gradwire/comm/internal/checksum.h"
#include "gradwire/comm/internal/collectives_closing.h"

namespace gradwire {
namespace {

size_t piece_count(size_t capacity) { return 1 + chunk_count(capacity); }

/// Where piece `index` begins in a payload of at most `capacity` bytes; piece_count: its end.
size_t piece_begin(size_t capacity, size_t index) {
  return index == 0 ? 0
                    : std::min(capacity, kInlineBytes + (index - 1) * chunk_bytes(capacity));
}

/// How much longer than a round a rank waits for the next: who waits for the rank that is silent gives
/// up before those that wait for the waiting, and so the silent one is named.
std::chrono::milliseconds patience(size_t round, size_t rounds) {
  constexpr std::chrono::milliseconds kOfARound{20}, kOfAll{400};
  return round * std::min(kOfARound, kOfAll / static_cast<int64_t>(rounds));
}

/// How many pieces hold the first `bytes` bytes.
size_t pieces_before(size_t bytes, size_t capacity) { return 1 + chunks_before(bytes, capacity); }

}  // namespace

void Collectives::run_rounds(Verb verb, CallTag tag) {
  const Call call{verb, tag, sequence_};
  sequence_ += static_cast<uint32_t>(rounds_.size());
  outgoing_.clear();
  incoming_.clear();
  receives_.clear();
  sends_.clear();
  rounds_sent_ = pieces_sent_ = received_ = verified_ = 0;
  closing_on_error(verb, tag, [&] {
    post_rounds(call);
    for (size_t round = 0; round < rounds_.size(); ++round) {
      send_ready(call, round, 0);
      const Incoming& in = rounds_[round].in;
      if (in.peer == kNobody) {
        continue;
      }
      for (size_t piece = 0; piece < piece_count(in.into.size()); ++piece) {
        receive_piece(call_of(call, round), round, piece);
        arrived(round, piece);
        send_ready(call, round, piece + 1);
      }
    }
    send_ready(call, rounds_.size(), 0);
    wait_for(sends_);
  });
}

void Collectives::post_rounds(const Call& call) {
  const size_t frames = 2 * rounds_.size();
  if (frames_.size() < frames * kFirstMessageBytes) {
    frames_.resize(frames * kFirstMessageBytes);
  }
  size_t chunks = 0;
  for (const Round& round : rounds_) {
    chunks += chunk_count(round.in.into.size()) + chunk_count(round.out.capacity);
  }
  checksums_.resize(std::max(checksums_.size(), chunks));
  checksums_used_ = 0;
  for (size_t round = 0; round < rounds_.size(); ++round) {
    const Incoming& in = rounds_[round].in;
    const size_t capacity = std::max(in.into.size(), rounds_[round].out.capacity);
    check(capacity <= kMaxPayloadBytes, "payload may have ", capacity, " bytes, at most ",
          kMaxPayloadBytes, " can be sent");
    if (in.peer != kNobody) {
      const Call step = call_of(call, round);
      receives_.push_back(engine_->post_recv(
          engine_rank(in.peer), first_tag(group_.id, step.sequence), frame(round)));
      post_checked_chunks(step, in);
    }
  }
}

void Collectives::post_checked_chunks(const Call& step, const Incoming& message) {
  const FrameHeader expected = header_of(step, message.into.size());
  const int peer = engine_rank(message.peer);
  for (size_t chunk = 0; chunk < chunk_count(message.into.size()); ++chunk) {
    const uint64_t tag = chunk_tag(expected, chunk);
    receives_.push_back(
        engine_->post_recv(peer, tag, chunk_of(message.into, message.into.size(), chunk)));
    receives_.push_back(engine_->post_recv(
        peer, checksum_tag(tag),
        std::as_writable_bytes(std::span(checksums_).subspan(checksums_used_++, 1))));
  }
}

void Collectives::receive_piece(const Call& step, size_t round, size_t piece) {
  Incoming& in = rounds_[round].in;
  const auto wait_for_next = [&] {
    engine_->wait(std::exchange(receives_[received_++], 0),
                  deadline() + patience(round, rounds_.size()));
  };
  wait_for_next();
  if (piece == 0) {
    return accept(step, in, frame(round));
  }
  wait_for_next();
  bytes_received_ += kChecksumBytes;
  verify_payload(in, chunk_of(in.into.first(in.length), in.into.size(), piece - 1),
                 checksums_[verified_++]);
}

// What can leave when all rounds before `round`, and `pieces` pieces of it, have come.
void Collectives::send_ready(const Call& call, size_t round, size_t pieces) {
  for (; rounds_sent_ < rounds_.size(); ++rounds_sent_, pieces_sent_ = 0) {
    const Round& wanted = rounds_[rounds_sent_];
    const Outgoing& message = wanted.out;
    if (message.peer == kNobody) {
      continue;
    }
    const Call step = call_of(call, rounds_sent_);
    for (; pieces_sent_ < piece_count(message.capacity); ++pieces_sent_) {
      if (rounds_sent_ > round + 1) {
        return;
      }
      if (rounds_sent_ == round + 1 && pieces < pieces_needed(round, pieces_sent_)) {
        return;
      }
      if (pieces_sent_ == 0) {
        send_first(step, message, frame(rounds_.size() + rounds_sent_));
      } else {
        send_checked_chunk(step, message, pieces_sent_ - 1);
      }
    }
  }
}

void Collectives::send_checked_chunk(const Call& step, const Outgoing& message, size_t chunk) {
  const int peer = engine_rank(message.peer);
  const uint64_t tag = chunk_tag(header_of(step, message.capacity), chunk);
  const auto bytes = chunk_of(message.bytes, message.capacity, chunk);
  sends_.push_back(engine_->post_send(peer, tag, bytes));  // on its way while it is summed up
  const auto checksum = std::span(checksums_).subspan(checksums_used_++, 1);
  checksum[0] = payload_checksum(bytes);
  sends_.push_back(engine_->post_send(peer, checksum_tag(tag), std::as_bytes(checksum)));
  bytes_sent_ += kChecksumBytes;
}

// How much of `round` must have come before a piece of the next one can leave: as far as that piece
// lies where this round's bytes go.
size_t Collectives::pieces_needed(size_t round, size_t piece) const {
  const Round& before = rounds_[round];
  const Outgoing& message = rounds_[round + 1].out;
  if (before.in.peer == kNobody) {
    return 0;
  }
  const size_t capacity = before.in.into.size();
  if (before.then == Then::kUnpack) {
    return piece_count(capacity);
  }
  const std::byte* const into = before.then == Then::kAdd
                                    ? std::as_bytes(before.add_to).data()
                                    : before.in.into.data();
  const std::byte* const begin = message.bytes.data() + piece_begin(message.capacity, piece);
  const std::byte* const end = message.bytes.data() + piece_begin(message.capacity, piece + 1);
  const std::less<> below;
  if (below(into, end) && below(begin, into + capacity)) {
    return pieces_before(static_cast<size_t>(std::min(end, into + capacity, below) - into),
                         capacity);
  }
  // The header alone must not overtake the length it states.
  return before.then == Then::kForward ? 1 : 0;
}

void Collectives::arrived(size_t round, size_t piece) {
  Round& here = rounds_[round];
  const size_t capacity = here.in.into.size();
  switch (here.then) {
    case Then::kKeep:
      return;
    case Then::kAdd: {
      const size_t begin = piece_begin(capacity, piece) / sizeof(float);
      const size_t end = piece_begin(capacity, piece + 1) / sizeof(float);
      const auto* came = reinterpret_cast<const float*>(here.in.into.data());
      float* const sum = here.add_to.data();
      for (size_t i = begin; i < end; ++i) {
        sum[i] = came[i] + sum[i];
      }
      return;
    }
    case Then::kForward:
      if (piece == 0) {
        rounds_[round + 1].out.bytes = here.in.into.first(here.in.length);
      }
      return;
    case Then::kUnpack:
      if (piece + 1 == piece_count(capacity)) {
        const size_t next = round + 1;
        // As many parts come as this rank sent in the same round.
        unpack(here.in, std::min(stage_.parts, static_cast<size_t>(group_.size()) - stage_.parts));
        if (next < rounds_.size()) {
          rounds_[next].out.bytes = staged(
              std::min(stage_.parts, static_cast<size_t>(group_.size()) - stage_.parts));
        }
      }
      return;
  }
}

}  // namespace gradwire
