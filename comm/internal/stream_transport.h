#pragma once
// What transports share whatever carries their bytes: verbs checked, enqueued on streams and run one
// at a time, and the first failure of a world kept for good.

#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "gradwire/comm/transport.h"
#include "gradwire/kernels/core/extents.h"
#include "gradwire/kernels/core/of_process.h"

namespace gradwire {

/// Shared by a transport and those split from it: when one fails, all are finished.
class World {
 public:
  World() = default;
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  virtual ~World() = default;

  void throw_if_failed() {
    std::lock_guard lock(mutex_);
    if (failure_) {
      throw *failure_;
    }
  }
  /// Keeps the first failure and throws it.
  [[noreturn]] void fail(const TransportError& error) {
    keep(error);
    std::lock_guard lock(mutex_);
    throw *failure_;
  }
  void keep(const TransportError& error) {
    std::lock_guard lock(mutex_);
    if (!failure_) {
      failure_ = error;
    }
  }
  /// Ends the world for every rank, from any thread; idempotent. Wakes blocked calls.
  virtual void close(const TransportError& reason) noexcept = 0;

 private:
  std::mutex mutex_;
  std::optional<TransportError> failure_;
};

/// A transport over `Verbs`: rank(), world_size(), counters(), and the verbs as blocking calls that
/// throw. A transport of its own adds split().
template <class Verbs>
class StreamTransport : public Transport {
 public:
  template <class... Arguments>
  StreamTransport(std::string_view name, std::shared_ptr<World> world, Arguments&&... arguments)
      : name_(name),
        world_(std::move(world)),
        verbs_(std::make_unique<Verbs>(std::forward<Arguments>(arguments)...)) {}
  ~StreamTransport() override {
    process_.let_go(verbs_);
    process_.let_go(world_);
  }

  std::string_view name() const override { return name_; }
  int rank() const override { return verbs_->rank(); }
  int world_size() const override { return verbs_->world_size(); }

  void all_gather(const size_t& length, std::span<const std::byte> mine, Parts all, CallTag tag,
                  Context& context) override {
    check_parts("all_gather", all);
    enqueue(context, [this, length = &length, mine, all, tag] {
      check(*length <= mine.size(), "all_gather: length is ", *length, ", the buffer has ",
            mine.size(), " bytes");
      verbs_->all_gather(mine.first(*length), all, tag);
    });
  }
  void all_to_all(Parts send, Parts receive, CallTag tag, Context& context) override {
    check_parts("all_to_all", send);
    check_parts("all_to_all", receive);
    enqueue(context, [this, send, receive, tag] { verbs_->all_to_all(send, receive, tag); });
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
              verbs_->reduce_scatter(values, out, tag, inner);
            });
  }
  void all_reduce_sum(std::span<float> values, CallTag tag, Context& context) override {
    enqueue(context, [this, values, tag, workspace = &context.workspace, stream = &context.stream] {
      Context inner{*stream, *workspace};
      verbs_->all_reduce_sum(values, tag, inner);
    });
  }
  void broadcast(std::span<std::byte> bytes, int root, CallTag tag, Context& context) override {
    check(root >= 0 && root < world_size(), "broadcast: root is ", root, ", must be 0 to ",
          world_size() - 1);
    enqueue(context, [this, bytes, root, tag] { verbs_->broadcast(bytes, root, tag); });
  }
  void barrier(CallTag tag, Context& context) override {
    enqueue(context, [this, tag] { verbs_->barrier(tag); });
  }

  void abort(std::string_view reason) noexcept override {
    if (!process_.here()) {
      return;  // the group is the other process's
    }
    try {
      const TransportError error{std::string(reason)};
      world_->keep(error);
      world_->close(error);
    } catch (const std::exception&) {
      // Out of memory while keeping the reason; there is nobody to tell.
    }
  }

  TrafficCounters counters() const override { return verbs_->counters(); }

 protected:
  const std::shared_ptr<World>& world() const { return world_; }
  Verbs& verbs() { return *verbs_; }

  /// Held: no call runs.
  std::unique_lock<std::mutex> between_calls() {
    process_.check_here(name_);
    return std::unique_lock(calls_);
  }
  /// Not held where a call runs.
  std::unique_lock<std::mutex> between_calls(std::try_to_lock_t now) {
    process_.check_here(name_);
    return std::unique_lock(calls_, now);
  }

  /// Runs a call while no other runs; a failure of it ends the world.
  template <class F>
  void run(const F& call) {
    const auto lock = between_calls();
    world_->throw_if_failed();
    try {
      call();
    } catch (const TransportError& error) {
      world_->close(error);
      world_->fail(error);
    } catch (const std::exception& error) {
      // A fault of this rank alone, such as a length above capacity: the others must not wait for
      // the call that it will never make.
      abort(error.what());
      throw;
    }
  }

 private:
  void check_parts(std::string_view verb, const Parts& parts) const {
    const auto size = static_cast<size_t>(world_size());
    check(parts.lengths.size() == size && parts.bytes.size() >= product_of(parts.stride, size),
          verb, ": ", parts.bytes.size(), " bytes and ", parts.lengths.size(), " lengths for ",
          size, " parts of ", parts.stride, " bytes");
  }

  template <class F>
  void enqueue(Context& context, F call) {
    process_.check_here(name_);
    context.stream.enqueue([this, call] { run(call); });
  }

  const OfProcess process_;
  std::string_view name_;
  std::shared_ptr<World> world_;
  std::mutex calls_;  // one at a time: split() runs in its caller, verbs on streams
  std::unique_ptr<Verbs> verbs_;
};

}  // namespace gradwire
