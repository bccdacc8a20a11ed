#pragma once
// Somebody else's collectives for the tests of carriers: those of a transport of ours.

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <vector>

#include "gradwire/comm/transport/carrier.h"

namespace gradwire::transport_test {

/// Blocking calls of a transport, each with the stream and the memory it needs.
class Blocking {
 public:
  explicit Blocking(std::unique_ptr<Transport> transport) : transport_(std::move(transport)) {}

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
    std::vector<size_t> lengths(size());
    const size_t length = mine.size();
    Context context{*stream_, workspace_};
    transport_->all_gather(length, mine, {all, length, lengths}, {}, context);
    wait();
  }

  void all_to_all(const Carrier::AllToAll& call) {
    // Ranks differ in their longest part, and must agree on the stride.
    std::vector<size_t> longest(size());
    const size_t mine = *std::max_element(call.send_lengths.begin(), call.send_lengths.end());
    all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(longest)));
    const size_t stride = *std::max_element(longest.begin(), longest.end());
    std::vector<std::byte> send(stride * size()), receive(stride * size());
    std::vector<size_t> to(call.send_lengths.begin(), call.send_lengths.end()), from(size());
    size_t at = 0;
    for (size_t r = 0; r < size(); at += to[r++]) {
      std::copy_n(call.send.begin() + static_cast<std::ptrdiff_t>(at), to[r],
                  send.begin() + static_cast<std::ptrdiff_t>(r * stride));
    }
    Context context{*stream_, workspace_};
    transport_->all_to_all({send, stride, to}, {receive, stride, from}, {}, context);
    wait();
    at = 0;
    for (size_t r = 0; r < size(); at += from[r++]) {
      if (from[r] != call.receive_lengths[r]) {
        throw std::runtime_error("a part has another length than was said");
      }
      std::copy_n(receive.begin() + static_cast<std::ptrdiff_t>(r * stride), from[r],
                  call.receive.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }

  void broadcast(std::span<std::byte> bytes, int root) {
    Context context{*stream_, workspace_};
    transport_->broadcast(bytes, root, {}, context);
    wait();
  }

  std::unique_ptr<Transport> split(const std::vector<std::vector<int>>& groups) {
    for (size_t g = 0; g < groups.size(); ++g) {
      if (std::count(groups[g].begin(), groups[g].end(), transport_->rank()) != 0) {
        return transport_->split(static_cast<int>(g));
      }
    }
    throw std::runtime_error("this rank is in no group");
  }

  void close() { transport_.reset(); }
  const Transport& transport() const { return *transport_; }

 private:
  size_t size() const { return static_cast<size_t>(transport_->world_size()); }

  // An engine's failure says nothing of ranks.
  void wait() {
    try {
      stream_->wait();
    } catch (const std::exception&) {
      throw std::runtime_error("connection closed by peer");
    }
  }

  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Stream> stream_ = make_inline_stream();
  Workspace workspace_;
};

inline Carrier carrier_over(std::unique_ptr<Transport> transport) {
  const auto engine = std::make_shared<Blocking>(std::move(transport));
  Carrier carrier;
  carrier.rank = engine->transport().rank();
  carrier.world_size = engine->transport().world_size();
  carrier.all_gather = [engine](auto mine, auto all) { engine->all_gather(mine, all); };
  carrier.all_to_all = [engine](const Carrier::AllToAll& call) { engine->all_to_all(call); };
  carrier.broadcast = [engine](auto bytes, int root) { engine->broadcast(bytes, root); };
  carrier.split = [engine](const auto& groups) { return carrier_over(engine->split(groups)); };
  carrier.close = [engine] { engine->close(); };
  return carrier;
}

}  // namespace gradwire::transport_test
