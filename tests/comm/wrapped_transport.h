#pragma once
// A transport with a hook behind every collective of payloads, for tests.

#include <functional>

#include "gradwire/comm/transport.h"

namespace gradwire::test {

/// Forwards to `inner`; when all_gather or all_to_all has delivered, calls `arrived` with what
/// came.
class WrappedTransport final : public Transport {
 public:
  WrappedTransport(Transport& inner, std::function<void(Parts)> arrived)
      : inner_(inner), arrived_(std::move(arrived)) {}

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
  }
  void all_reduce_sum(std::span<float> values, CallTag tag, Context& context) override {
    inner_.all_reduce_sum(values, tag, context);
  }
  void broadcast(std::span<std::byte> bytes, int root, CallTag tag, Context& context) override {
    inner_.broadcast(bytes, root, tag, context);
  }
  void barrier(CallTag tag, Context& context) override { inner_.barrier(tag, context); }
  std::unique_ptr<Transport> split(int color) override { return inner_.split(color); }
  void abort(std::string_view reason) noexcept override { inner_.abort(reason); }
  TrafficCounters counters() const override { return inner_.counters(); }

 private:
  Transport& inner_;
  std::function<void(Parts)> arrived_;
};

}  // namespace gradwire::test
