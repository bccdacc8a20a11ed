#pragma once
// A transport with a hook behind every collective of payloads, for tests.

#include <functional>
#include <memory>

#include "gradwire/comm/transport.h"

namespace gradwire::test {

/// Forwards to `inner`; when all_gather or all_to_all has delivered, calls `arrived` with what
/// came, and `arrived_bytes`, where given, behind the other verbs that deliver. Groups split from it
/// do so too.
class WrappedTransport : public Transport {
 public:
  WrappedTransport(Transport& inner, std::function<void(Parts)> arrived,
                   std::function<void(std::span<std::byte>)> arrived_bytes = {})
      : inner_(inner), arrived_(std::move(arrived)), arrived_bytes_(std::move(arrived_bytes)) {}
  WrappedTransport(std::unique_ptr<Transport> inner, std::function<void(Parts)> arrived,
                   std::function<void(std::span<std::byte>)> arrived_bytes = {})
      : own_(std::move(inner)),
        inner_(*own_),
        arrived_(std::move(arrived)),
        arrived_bytes_(std::move(arrived_bytes)) {}

  std::string_view name() const override { return inner_.name(); }
  int rank() const override { return inner_.rank(); }
  int world_size() const override { return inner_.world_size(); }
  void all_gather(const size_t& length, std::span<const std::byte> mine, Parts all, CallTag tag,
                  Context& context) override {
    inner_.all_gather(length, mine, all, tag, context);
    context.stream.enqueue([this, all] { arrived_(all); });
  }
  void all_to_all(Parts send, Parts receive, CallTag tag, Context& context) override {
    inner_.all_to_all(send, receive, tag, context);
    context.stream.enqueue([this, receive] { arrived_(receive); });
  }
  void reduce_scatter(std::span<const float> values, std::span<float> out, CallTag tag,
                      Context& context) override {
    inner_.reduce_scatter(values, out, tag, context);
    show(std::as_writable_bytes(out), context);
  }
  void all_reduce_sum(std::span<float> values, CallTag tag, Context& context) override {
    inner_.all_reduce_sum(values, tag, context);
    show(std::as_writable_bytes(values), context);
  }
  void broadcast(std::span<std::byte> bytes, int root, CallTag tag, Context& context) override {
    inner_.broadcast(bytes, root, tag, context);
    show(bytes, context);
  }
  void barrier(CallTag tag, Context& context) override { inner_.barrier(tag, context); }
  std::unique_ptr<Transport> split(int color) override {
    return std::make_unique<WrappedTransport>(inner_.split(color), arrived_, arrived_bytes_);
  }
  void abort(std::string_view reason) noexcept override { inner_.abort(reason); }
  TrafficCounters counters() const override { return inner_.counters(); }

 private:
  void show(std::span<std::byte> bytes, Context& context) {
    if (arrived_bytes_) {
      context.stream.enqueue([this, bytes] { arrived_bytes_(bytes); });
    }
  }

  std::unique_ptr<Transport> own_;
  Transport& inner_;
  std::function<void(Parts)> arrived_;
  std::function<void(std::span<std::byte>)> arrived_bytes_;
};

}  // namespace gradwire::test
