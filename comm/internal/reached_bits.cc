#include "gradwire/comm/internal/reached_bits.h"

#include "gradwire/comm/fingerprint.h"

namespace gradwire {

ReachedBits::ReachedBits(const Transport& transport, size_t parameters)
    : parameters_(parameters),
      own_(static_cast<size_t>(transport.rank())),
      device_(transport.traits().device),
      messages_(transport.world_size(), (parameters + 7) / 8, device_) {}

void ReachedBits::exchange(std::span<const uint8_t> reached, Lane& lane) {
  mine_.assign(messages_.stride(), std::byte{0});
  for (size_t p = 0; p < parameters_; ++p) {
    mine_[p / 8] |= std::byte(reached[p] << p % 8);
  }
  on_host_.clear();
  Context& context = lane.worker->context;
  copy_bytes(messages_.room(own_), device_, mine_, {}, context.stream);
  messages_.length(own_) = mine_.size();
  lane.transport->all_gather(messages_.length(own_), messages_.room(own_), messages_.parts(),
                             {fnv1a("unused"), "unused parameters"}, context);
  for (size_t r = 0; r < messages_.ranks(); ++r) {
    const size_t bytes = messages_.message(r).size();
    if (bytes != mine_.size()) {
      throw TransportError(concat("rank ", r, " sent ", bytes, " bytes about unused parameters, ",
                                  "expected ", mine_.size()),
                           static_cast<int>(r));
    }
  }
}

bool ReachedBits::by_any(ParamId p, Stream* stream) {
  std::span<const std::byte> all = messages_.parts().bytes;
  if (stream != nullptr && on_host_.empty()) {
    on_host_.resize(all.size());
    copy_bytes(on_host_, {}, all, device_, *stream);
    stream->wait();
  }
  all = stream == nullptr ? all : on_host_;
  bool reached = false;
  for (size_t r = 0; r < messages_.ranks(); ++r) {
    reached |= (all[r * messages_.stride() + p / 8] >> p % 8 & std::byte{1}) != std::byte{0};
  }
  return reached;
}

}  // namespace gradwire
