// How the messages of one collective move: what outgoing_ and incoming_ describe, posted, checked
// and paced against each other.

#include <algorithm>
#include <cstring>
#include <utility>

#include "gradwire/comm/internal/checksum.h"
#include "gradwire/comm/internal/collectives_closing.h"

namespace gradwire {
namespace {

constexpr double kMostChunksAhead = 64;

}  // namespace

void Collectives::exchange(Verb verb, CallTag tag) {
  const Call call{verb, tag, sequence_++};
  receives_.clear();
  sends_.clear();
  steps_sent_ = chunks_sent_ = 0;
  closing_on_error(verb, tag, [&] {
    post_receives(call);
    send_firsts(call);
    const auto begin = std::chrono::steady_clock::now();
    const size_t ahead = chunks_ahead();
    send_chunks(call, 0, ahead);
    for (size_t i = 0; i < incoming_.size(); ++i) {
      engine_->wait(std::exchange(incoming_[i].first, 0), deadline());
      accept(call, incoming_[i], frame(i));
    }
    // A chunk leaves for each that arrives: more would meet in the queue of a slow link and be lost
    // there. Nobody waits in a circle: who waits for chunk c of step s has sent its own.
    size_t next = 0;
    for (size_t step = 0; step < incoming_.size(); ++step) {
      const size_t end = next + chunk_count(incoming_[step].into.size());
      for (size_t c = 0; next < end; ++c) {
        send_chunks(call, step, c + ahead);
        if (steps_sent_ == outgoing_.size() && end - next <= ahead) {
          break;
        }
        engine_->wait(std::exchange(receives_[next++], 0), deadline());
      }
      // Nothing is left to send, and the rest takes the line a millisecond: who waits for the last
      // chunk first is woken once.
      wait_for_last_first(std::span(receives_).subspan(next, end - next));
      next = end;
      if (incoming_[step].length > kInlineBytes) {
        const Incoming& message = incoming_[step];
        verify_payload(message, message.into.first(message.length), message.checksum);
      }
    }
    learn(std::chrono::steady_clock::now() - begin, ahead);
    send_chunks(call, outgoing_.size(), 0);
    wait_for(sends_);
  });
}

// The caller's buffers may go away when this returns: nothing that was posted may still be moving.
// The first wait that throws has taken all messages back.
void Collectives::close(std::string_view reason) {
  engine_->close(reason);
  try {
    for (const Incoming& message : incoming_) {
      if (message.first != 0) {
        engine_->wait(message.first, deadline());
      }
    }
    wait_for(receives_);
    wait_for(sends_);
  } catch (const TransportError&) {
    // The engine says that it is closed, which is what was asked of it.
  }
}

void Collectives::wait_for(std::span<MessageHandle> messages) {
  for (MessageHandle& message : messages) {
    if (message != 0) {
      engine_->wait(std::exchange(message, 0), deadline());
    }
  }
}

void Collectives::wait_for_last_first(std::span<MessageHandle> messages) {
  for (size_t i = messages.size(); i-- > 0;) {
    engine_->wait(std::exchange(messages[i], 0), deadline());
  }
}

std::span<std::byte> Collectives::frame(size_t index) {
  return std::span(frames_).subspan(index * kFirstMessageBytes, kFirstMessageBytes);
}

FrameHeader Collectives::header_of(const Call& call, size_t capacity) const {
  FrameHeader header;
  header.verb = static_cast<uint8_t>(call.verb);
  header.sequence = call.sequence;
  header.fingerprint = call.tag.fingerprint;
  header.group = group_.id;
  header.capacity = capacity;
  return header;
}

// Before anything is sent: an engine may have to tell the sender that a receive stands, and on a
// slow link that word would wait behind this rank's own payload.
void Collectives::post_receives(const Call& call) {
  for (const Outgoing& message : outgoing_) {
    check(message.capacity <= kMaxPayloadBytes, "payload may have ", message.capacity,
          " bytes, at most ", kMaxPayloadBytes, " can be sent");
  }
  const size_t frames = incoming_.size() + outgoing_.size();
  if (frames_.size() < frames * kFirstMessageBytes) {
    frames_.resize(frames * kFirstMessageBytes);
  }
  for (size_t i = 0; i < incoming_.size(); ++i) {
    incoming_[i].first = engine_->post_recv(engine_rank(incoming_[i].peer),
                                            first_tag(group_.id, call.sequence), frame(i));
  }
  for (const Incoming& message : incoming_) {
    post_chunks(call, message);
  }
}

void Collectives::post_chunks(const Call& call, const Incoming& message) {
  const FrameHeader expected = header_of(call, message.into.size());
  for (size_t i = 0; i < chunk_count(message.into.size()); ++i) {
    receives_.push_back(engine_->post_recv(engine_rank(message.peer), chunk_tag(expected, i),
                                           chunk_of(message.into, message.into.size(), i)));
  }
}

// All headers before any chunk, so that on a slow link nobody waits for a header behind others'
// chunks.
void Collectives::send_firsts(const Call& call) {
  std::span<const std::byte> summed;
  uint32_t checksum = payload_checksum(summed);
  for (size_t i = 0; i < outgoing_.size(); ++i) {
    const std::span<const std::byte> bytes = outgoing_[i].bytes;
    if (bytes.data() != summed.data() || bytes.size() != summed.size()) {
      summed = bytes;  // the same payload often goes to everybody
      checksum = payload_checksum(bytes);
    }
    send_first(call, outgoing_[i], frame(incoming_.size() + i),
               uint64_t{static_cast<uint32_t>(Covers::kPayload)} << 32 | checksum);
  }
}

void Collectives::send_first(const Call& call, const Outgoing& message, std::span<std::byte> first,
                             uint64_t checksum) {
  FrameHeader header = header_of(call, message.capacity);
  header.source = static_cast<uint32_t>(engine_->rank());
  header.bytes = message.bytes.size();
  const auto head = message.bytes.first(std::min(message.bytes.size(), kInlineBytes));
  header.reserved = checksum != 0 ? checksum
                                  : uint64_t{static_cast<uint32_t>(Covers::kFirstMessage)} << 32 |
                                        payload_checksum(head);
  header.checksum = checksum_of(header);
  std::memcpy(first.data(), &header, sizeof(header));
  std::copy(head.begin(), head.end(), first.begin() + kFrameHeaderBytes);
  sends_.push_back(engine_->post_send(engine_rank(message.peer),
                                      first_tag(group_.id, call.sequence),
                                      first.first(kFrameHeaderBytes + head.size())));
  bytes_sent_ += kFrameHeaderBytes + message.bytes.size();
  frames_sent_ += 1;
}

// A millisecond of the line, in chunks of this call.
size_t Collectives::chunks_ahead() const {
  size_t capacity = 0;
  for (const Outgoing& message : outgoing_) {
    capacity = std::max(capacity, message.capacity);
  }
  const double chunks = bytes_per_ms_ / static_cast<double>(chunk_bytes(capacity));
  return static_cast<size_t>(std::clamp(chunks, 1.0, kMostChunksAhead));
}

// How fast the line is, from calls long enough for what had arrived before them not to matter. A call
// in which a peer was late counts for little.
void Collectives::learn(std::chrono::steady_clock::duration elapsed, size_t ahead) {
  size_t bytes = 0, capacity = 0;
  for (const Incoming& message : incoming_) {
    bytes += message.length;
    capacity = std::max(capacity, message.into.size());
  }
  if (bytes < 4 * ahead * chunk_bytes(capacity)) {
    return;
  }
  const double ms = std::chrono::duration<double, std::milli>(elapsed).count();
  bytes_per_ms_ = std::max(static_cast<double>(bytes) / std::max(ms, 1e-3), 0.9 * bytes_per_ms_);
}

// Everything before `step`, and `chunks` chunks from there on, as far as they have not left.
void Collectives::send_chunks(const Call& call, size_t step, size_t chunks) {
  for (size_t i = step; i < steps_sent_; ++i) {
    chunks -= std::min(chunks, chunk_count(outgoing_[i].capacity));
  }
  while (steps_sent_ < outgoing_.size()) {
    const Outgoing& message = outgoing_[steps_sent_];
    const size_t all = chunk_count(message.capacity);
    const size_t wanted = steps_sent_ < step ? all : std::min(chunks, all);
    const FrameHeader header = header_of(call, message.capacity);
    for (; chunks_sent_ < wanted; ++chunks_sent_) {
      sends_.push_back(engine_->post_send(engine_rank(message.peer),
                                          chunk_tag(header, chunks_sent_),
                                          chunk_of(message.bytes, message.capacity, chunks_sent_)));
    }
    if (chunks_sent_ < all) {
      return;
    }
    chunks -= steps_sent_ < step ? 0 : all;
    ++steps_sent_;
    chunks_sent_ = 0;
  }
}

void Collectives::accept(const Call& call, Incoming& message, std::span<const std::byte> frame) {
  const FrameHeader header = read_frame_header(frame);
  verify(call, message, header);
  message.length = header.bytes;
  const auto head = frame.subspan(kFrameHeaderBytes, std::min(message.length, kInlineBytes));
  std::copy(head.begin(), head.end(), message.into.begin());
  message.checksum = static_cast<uint32_t>(header.reserved);
  const auto covers = static_cast<Covers>(header.reserved >> 32);
  if (covers == Covers::kFirstMessage || message.length <= kInlineBytes) {
    verify_payload(message, message.into.first(head.size()), message.checksum);
  }
  bytes_received_ += kFrameHeaderBytes + message.length;
}

void Collectives::verify_payload(const Incoming& message, std::span<const std::byte> bytes,
                                 uint32_t checksum) const {
  const uint32_t found = payload_checksum(bytes);
  if (found != checksum) [[unlikely]] {
    const int peer = engine_rank(message.peer);
    throw TransportError(concat("rank ", peer, "'s payload of ", message.length,
                                " bytes changed on the way: its checksum is ", found,
                                ", expected ", checksum), peer);
  }
}

void Collectives::verify(const Call& call, const Incoming& message,
                         const FrameHeader& header) const {
  FrameHeader expected = header_of(call, message.into.size());
  expected.source = static_cast<uint32_t>(engine_rank(message.peer));
  check_frame(header, expected, message.exact ? FrameFill::kExact : FrameFill::kUpTo);
}

}  // namespace gradwire
