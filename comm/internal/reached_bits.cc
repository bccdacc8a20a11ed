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

void ReachedBits::conclude() {
  on_gpu_alone_ = device_.type == DeviceType::kCuda;
  if (on_gpu_alone_) {
    any_.resize(messages_.stride());
  } else {
    add_up(messages_.parts().bytes);
  }
}

void ReachedBits::add_up(std::span<const std::byte> all) {
  any_.assign(messages_.stride(), std::byte{0});
  for (size_t i = 0; i < all.size(); ++i) {
    any_[i % any_.size()] |= all[i];
  }
}

bool ReachedBits::by_any(ParamId p, Stream* stream) {
  if (on_gpu_alone_) {
    const std::span<const std::byte> all = messages_.parts().bytes;
    std::vector<std::byte> on_host(all.size());
    copy_bytes(on_host, {}, all, device_, *stream);
    stream->wait();
    add_up(on_host);
    on_gpu_alone_ = false;
  }
  return (any_[p / 8] >> p % 8 & std::byte{1}) != std::byte{0};
}

}  // namespace gradwire
