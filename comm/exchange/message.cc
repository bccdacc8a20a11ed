#include "gradwire/comm/exchange/message.h"

#include <cstddef>
#include <cstring>

#include "gradwire/kernels/ops/parts_cuda.h"

namespace gradwire {

std::shared_ptr<const Buffer> MessageMemory::take(size_t bytes, Device device) {
  if (next_ == blocks_.size()) {
    blocks_.emplace_back();
  }
  Block& block = blocks_[next_++];
  if (block.memory == nullptr || block.bytes < bytes) {
    block = {std::make_shared<const Buffer>(kind_ == Kind::kReal ? bytes : 0, device), bytes};
    bytes_ += bytes;
  }
  return block.memory;
}

std::shared_ptr<const Buffer> message_memory(size_t bytes, Device device, MessageMemory* shared) {
  return shared != nullptr ? shared->take(bytes, device)
                           : std::make_shared<const Buffer>(bytes, device);
}

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
  const size_t limit = room_for(expected.compressor, expected.region);
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

size_t room_for(const Compressor& compressor, Region region) {
  return region.numel() == 0 ? sizeof(PayloadHeader) : compressor.slice_capacity_bytes(region);
}

Payload sent_part(const GroupSlot& slot) {
  const bool seen = slot.compressor->shape().device.type == DeviceType::kCpu;
  return slot.mine.first(seen ? payload_bytes(slot.mine) : slot.compressor->capacity_bytes());
}

GroupMessages::GroupMessages(const ExchangeContext& made_from, Layout layout)
    : Messages(made_from.transport->world_size(), layout.stride,
               made_from.transport->traits().device, made_from.memory),
      compressors_(made_from.compressors),
      what_(made_from.tag.what),
      begins_(std::move(layout.begins)) {}

bool GroupMessages::lie_together(std::span<const GroupSlot> groups) const {
  bool together = at_capacity();
  for (size_t g = 0; together && g < groups.size(); ++g) {
    together = groups[g].mine.data() == groups[0].mine.data() + begins_[g];
  }
  return together;
}

void GroupMessages::wipe(Stream& stream) {
  for (const size_t begin : begins_) {
    cuda::clear_headers(parts().bytes.subspan(begin), stride(), stream);
  }
}

void find_bad_part(const Received& received, Context& context) {
  if (received.compressor.shape().device.type != DeviceType::kCpu) {
    return;
  }
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

void write_empty_payload(const Compressor& compressor, bool nonfinite, Payload out) {
  PayloadHeader header;
  header.flags = nonfinite ? kFlagNonFinite : 0;
  header.spec_fingerprint = fingerprint(compressor.spec());
  header.bytes = sizeof header;
  std::memcpy(out.data(), &header, sizeof header);
}

bool is_nonfinite(ConstPayload payload) {
  PayloadHeader header;
  std::memcpy(&header, payload.data(), sizeof header);
  return (header.flags & kFlagNonFinite) != 0;
}

void set_nonfinite(Payload payload, bool nonfinite) {
  payload[offsetof(PayloadHeader, flags)] = std::byte{nonfinite ? kFlagNonFinite : uint8_t{0}};
}

void note_flag(bool nonfinite, size_t rank, ExchangeReport& report) {
  if (nonfinite && report.nonfinite_rank < 0) {
    report.nonfinite_rank = static_cast<int>(rank);
  }
}

void decode(const Received& received, const ExchangeResult& result, ExchangeReport& report,
            Context& context) {
  Compressor& compressor = received.compressor;
  const bool handed_on = received.scratch.numel < compressor.shape().numel;
  const bool first = handed_on && compressor.rounds() == 2;
  if (handed_on && !first && report.nonfinite_rank >= 0) {
    return;
  }
  bool finite = true;
  blame_sender(received, context, [&] {
    if (first) {
      compressor.take_first(result.parts, result.scale, context);
    } else if (handed_on) {
      compressor.check_sum(result.parts, result.scale, finite, context);
    } else {
      compressor.decompress(result.parts, result.scale, received.scratch, context, &finite);
    }
  });
  report.overflows = report.overflows || (!finite && report.nonfinite_rank < 0);
}

void StreamExchange::run(std::span<const GroupSlot> groups, ExchangeReport& report,
                         Context& context) {
  auto work = [this, groups, &report, context]() mutable {
    report = {};
    counted([this] { return traffic(); }, report, [&] { run_now(groups, report, context); });
  };
  if (context.stream.device().type == DeviceType::kCpu) {
    context.stream.enqueue(std::move(work));
    return;
  }
  work();
  report.codec_us = report.transfer_us = 0;  // of the host, which only enqueues
}

}  // namespace gradwire
