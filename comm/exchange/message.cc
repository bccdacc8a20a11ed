#include "gradwire/comm/exchange/message.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace gradwire {

template <class... Parts>
void MessageReader::require(bool condition, size_t group, const Parts&... parts) const {
  if (!condition) [[unlikely]] {
    throw TransportError(
        concat(what_, ": rank ", rank_, "'s payload of group ", group, ": ", parts...),
        static_cast<int>(rank_));
  }
}

MessageReader::Item MessageReader::next(const Expected& expected) {
  const size_t group = expected.group;
  PayloadHeader header;
  try {
    header = read_header(rest_);
  } catch (const InvalidArgument& error) {
    require(false, group, error.what());
  }
  const uint32_t spec = fingerprint(expected.compressor.spec());
  require(header.spec_fingerprint == spec, group, "spec fingerprint is ", header.spec_fingerprint,
          ", expected ", spec);
  require(header.numel == expected.region.numel(), group, "covers ", header.numel,
          " elements, expected ", expected.region.numel());
  require(header.first_chunk == expected.region.begin / kChunk, group, "begins at chunk ",
          header.first_chunk, ", expected ", expected.region.begin / kChunk);
  const bool whole = expected.region.numel() == expected.compressor.shape().numel;
  const size_t limit = expected.region.numel() == 0 ? sizeof(PayloadHeader)
                       : whole                      ? expected.compressor.capacity_bytes()
                               : expected.compressor.slice_capacity_bytes(expected.region);
  require(header.bytes >= sizeof(PayloadHeader) && header.bytes <= limit, group, "states ",
          header.bytes, " bytes, expected ", sizeof(PayloadHeader), " to ", limit);
  const Item item{rest_.first(header.bytes), (header.flags & kFlagNonFinite) != 0};
  rest_ = rest_.subspan(header.bytes);
  return item;
}

void MessageReader::finish() const {
  if (!rest_.empty()) {
    throw TransportError(concat(what_, ": rank ", rank_, "'s message has ", rest_.size(),
                                " bytes behind its last payload, expected none"),
                         static_cast<int>(rank_));
  }
}

void find_bad_part(const Received& received, Context& context) {
  const bool first = received.compressor.rounds() == 2 && received.scratch.numel == 0;
  Buffer memory;  // an error may allocate
  Gradient scratch = received.scratch;
  if (scratch.numel == 0 && !first) {
    const CompressorShape& shape = received.compressor.shape();
    memory = Buffer(shape.numel * size_of(shape.dtype));
    scratch = {memory.data(), shape.numel, shape.dtype, shape.device};
  }
  for (size_t r = 0; r < received.parts.size(); ++r) {
    if (received.parts[r].size() <= sizeof(PayloadHeader)) {
      continue;  // a region without elements
    }
    try {
      if (first) {
        received.compressor.check_first(received.parts[r], context);
      } else {
        received.compressor.decompress(received.parts.subspan(r, 1), 1.0f, scratch, context);
      }
    } catch (const InvalidArgument& error) {
      const size_t sender = received.senders.empty() ? r : received.senders[r];
      throw TransportError(concat(received.what, ": rank ", sender, "'s payload: ", error.what()),
                           static_cast<int>(sender));
    }
  }
}

size_t write_empty_payload(const Compressor& compressor, bool nonfinite, Payload out) {
  PayloadHeader header;
  header.flags = nonfinite ? kFlagNonFinite : 0;
  header.spec_fingerprint = fingerprint(compressor.spec());
  header.bytes = sizeof header;
  std::memcpy(out.data(), &header, sizeof header);
  return sizeof header;
}

bool is_nonfinite(ConstPayload payload) {
  PayloadHeader header;
  std::memcpy(&header, payload.data(), sizeof header);
  return (header.flags & kFlagNonFinite) != 0;
}

void set_nonfinite(Payload payload, bool nonfinite) {
  payload[offsetof(PayloadHeader, flags)] = std::byte{nonfinite ? kFlagNonFinite : uint8_t{0}};
}

void decode(const Received& received, const ExchangeResult& result, ExchangeReport& report,
            Context& context) {
  const bool handed_on = received.scratch.numel == 0;
  if (handed_on && (received.compressor.rounds() == 2 || report.nonfinite_rank >= 0)) {
    return;
  }
  bool finite = true;
  blame_sender(received, context, [&] {
    if (handed_on) {
      received.compressor.check_sum(result.parts, result.scale, finite, context);
    } else {
      received.compressor.decompress(result.parts, result.scale, received.scratch, context,
                                     &finite);
    }
  });
  report.overflows = report.overflows || (!finite && report.nonfinite_rank < 0);
}

}  // namespace gradwire
