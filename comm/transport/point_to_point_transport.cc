#include "gradwire/comm/transport/point_to_point_transport.h"

#include <atomic>
#include <mutex>
#include <optional>

#include "gradwire/comm/collectives.h"
#include "gradwire/comm/transport/paced.h"

namespace gradwire {
namespace {

/// What a transport and those split from it share: the engine, the group ids and the first failure.
struct Wire {
  explicit Wire(std::shared_ptr<PointToPoint> e) : engine(std::move(e)) {}

  std::shared_ptr<PointToPoint> engine;
  uint16_t next_group = 1;

  void throw_if_failed() {
    std::lock_guard lock(mutex);
    if (failure) {
      throw *failure;
    }
  }
  /// Keeps the first failure and throws it.
  [[noreturn]] void fail(const TransportError& error) {
    std::lock_guard lock(mutex);
    if (!failure) {
      failure = error;
    }
    throw *failure;
  }

  std::mutex splits;  // guards next_group
  std::mutex mutex;
  std::optional<TransportError> failure;
};

class PointToPointTransport final : public Transport {
 public:
  PointToPointTransport(std::string_view name, std::shared_ptr<Wire> wire, RankGroup group,
                        std::chrono::milliseconds timeout)
      : name_(name),
        wire_(std::move(wire)),
        timeout_(timeout),
        collectives_(wire_->engine, std::move(group), timeout) {}

  std::string_view name() const override { return name_; }
  int rank() const override { return collectives_.group().rank; }
  int world_size() const override { return collectives_.group().size(); }

  void all_gather(const size_t& length, std::span<const std::byte> mine, Parts all, CallTag tag,
                  Context& context) override {
    check_parts("all_gather", all);
    enqueue(context, [this, length = &length, mine, all, tag] {
      check(*length <= mine.size(), "all_gather: length is ", *length, ", the buffer has ",
            mine.size(), " bytes");
      collectives_.all_gather(mine.first(*length), all, tag);
    });
  }
  void all_to_all(Parts send, Parts receive, CallTag tag, Context& context) override {
    check_parts("all_to_all", send);
    check_parts("all_to_all", receive);
    enqueue(context, [this, send, receive, tag] { collectives_.all_to_all(send, receive, tag); });
  }
  void reduce_scatter(std::span<const float> values, std::span<float> out, CallTag tag,
                      Context& context) override {
    const size_t expected = shard_begin(values.size(), world_size(), rank() + 1) -
                            shard_begin(values.size(), world_size(), rank());
    check(out.size() == expected, "reduce_scatter: out has ", out.size(), " elements, expected ",
          expected);
    enqueue(context,
            [this, values, out, tag, workspace = &context.workspace, stream = &context.stream] {
              Context inner{*stream, *workspace};
              collectives_.reduce_scatter(values, out, tag, inner);
            });
  }
  void all_reduce_sum(std::span<float> values, CallTag tag, Context& context) override {
    enqueue(context, [this, values, tag, workspace = &context.workspace, stream = &context.stream] {
      Context inner{*stream, *workspace};
      collectives_.all_reduce_sum(values, tag, inner);
    });
  }
  void broadcast(std::span<std::byte> bytes, int root, CallTag tag, Context& context) override {
    check(root >= 0 && root < world_size(), "broadcast: root is ", root, ", must be 0 to ",
          world_size() - 1);
    enqueue(context, [this, bytes, root, tag] { collectives_.broadcast(bytes, root, tag); });
  }
  void barrier(CallTag tag, Context& context) override {
    enqueue(context, [this, tag] { collectives_.barrier(tag); });
  }

  std::unique_ptr<Transport> split(int color) override {
    check(color >= 0, "split: color is ", color, ", must be at least 0");
    RankGroup group;
    run([&] {
      std::lock_guard lock(wire_->splits);
      group = collectives_.split(color, wire_->next_group);
    });
    return std::make_unique<PointToPointTransport>(name_, wire_, std::move(group), timeout_);
  }

  void abort(std::string_view reason) noexcept override {
    try {
      wire_->fail(TransportError(std::string(reason)));
    } catch (const std::exception&) {
      // fail() throws for its other callers; here the reason only has to be kept.
    }
    wire_->engine->close(reason);
  }

  TrafficCounters counters() const override { return collectives_.counters(); }

 private:
  void check_parts(std::string_view verb, const Parts& parts) const {
    const auto size = static_cast<size_t>(world_size());
    check(parts.lengths.size() == size && parts.bytes.size() >= parts.stride * size, verb, ": ",
          parts.bytes.size(), " bytes and ", parts.lengths.size(), " lengths for ", size,
          " parts of ", parts.stride, " bytes");
  }

  template <class F>
  void enqueue(Context& context, F call) {
    context.stream.enqueue([this, call] { run(call); });
  }

  template <class F>
  void run(const F& call) {
    std::lock_guard lock(calls_);
    wire_->throw_if_failed();
    try {
      call();
    } catch (const TransportError& error) {
      wire_->engine->close(error.what());
      wire_->fail(error);
    } catch (const std::exception& error) {
      // A fault of this rank alone, such as a length above capacity: the others must not wait for
      // the call that it will never make.
      abort(error.what());
      throw;
    }
  }

  std::string_view name_;
  std::shared_ptr<Wire> wire_;
  std::chrono::milliseconds timeout_;
  std::mutex calls_;  // one at a time: split() runs in its caller, verbs on streams
  Collectives collectives_;
};

}  // namespace

std::unique_ptr<Transport> make_point_to_point_transport(std::string_view name,
                                                         std::shared_ptr<PointToPoint> engine,
                                                         const TransportOptions& options) {
  check(options.timeout.count() > 0, name, ": timeout is ", options.timeout.count(),
        " ms, must be positive");
  if (options.pacing.bits_per_second != 0) {
    engine = make_paced_engine(std::move(engine), options.pacing);
  }
  RankGroup group = RankGroup::everyone(*engine);
  return std::make_unique<PointToPointTransport>(name, std::make_shared<Wire>(std::move(engine)),
                                                 std::move(group), options.timeout);
}

}  // namespace gradwire
