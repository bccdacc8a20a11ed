#include "gradwire/comm/transport/point_to_point_transport.h"

#include "gradwire/comm/collectives.h"
#include "gradwire/comm/internal/stream_transport.h"
#include "gradwire/comm/transport/paced.h"

namespace gradwire {
namespace {

/// The engine under a transport and those split from it, and the group ids of its messages.
struct Wire final : World {
  explicit Wire(std::shared_ptr<PointToPoint> e) : engine(std::move(e)) {}
  void close(const TransportError& reason) noexcept override { engine->close(reason.what()); }
  bool failed() {
    try {
      throw_if_failed();
      return false;
    } catch (const TransportError&) {
      return true;
    }
  }

  std::shared_ptr<PointToPoint> engine;
  std::mutex splits;  // guards next_group
  uint16_t next_group = 1;
  bool rebuilt = false;  // the engine's survivors have another
};

class PointToPointTransport final : public StreamTransport<Collectives> {
 public:
  PointToPointTransport(std::string_view name, std::shared_ptr<Wire> wire, RankGroup group,
                        std::chrono::milliseconds timeout, std::vector<int> old_ranks = {})
      : StreamTransport(name, wire, wire->engine, std::move(group), timeout),
        wire_(std::move(wire)),
        timeout_(timeout),
        old_ranks_(std::move(old_ranks)) {}

  std::unique_ptr<Transport> split(int color) override {
    check(color >= 0, "split: color is ", color, ", must be at least 0");
    RankGroup group;
    run([&] {
      std::lock_guard lock(wire_->splits);
      group = verbs().split(color, wire_->next_group);
    });
    return std::make_unique<PointToPointTransport>(name(), wire_, std::move(group), timeout_);
  }

  std::unique_ptr<Transport> rebuild(const RebuildOptions& options) override {
    check(verbs().group().id == 0,
          "rebuild: this group was made by split(), call it on the one that was split");
    check(options.timeout.count() >= 0 && options.silence.count() >= 0, "rebuild: timeout is ",
          options.timeout.count(), " ms and silence ", options.silence.count(),
          " ms, must not be negative");
    const auto lock = ended_between_calls();
    check(!wire_->rebuilt, "rebuild: this group has been rebuilt already");
    RebuildOptions own = options;
    own.timeout = options.timeout.count() > 0 ? options.timeout : timeout_;
    PointToPoint::Survivors next = wire_->engine->rebuild(own);
    wire_->rebuilt = true;
    RankGroup group = RankGroup::everyone(*next.engine);
    return std::make_unique<PointToPointTransport>(
        name(), std::make_shared<Wire>(std::move(next.engine)), std::move(group), timeout_,
        std::move(next.old_ranks));
  }

  std::span<const int> old_ranks() const override { return old_ranks_; }

 private:
  /// No call runs any more, nor does one again. Ranks that are still in their last call get what
  /// this one has sent, unless that call has failed or is given up here.
  std::unique_lock<std::mutex> ended_between_calls() {
    constexpr std::string_view kReason = "the group is being rebuilt";
    if (auto lock = between_calls(std::try_to_lock); lock && !wire_->failed()) {
      wire_->keep(TransportError(std::string(kReason)));
      wire_->engine->leave(kReason);
      return lock;
    }
    abort(kReason);
    return between_calls();
  }

  std::shared_ptr<Wire> wire_;
  std::chrono::milliseconds timeout_;
  std::vector<int> old_ranks_;
};

}  // namespace

PointToPoint::Survivors PointToPoint::rebuild(const RebuildOptions&) {
  throw InvalidArgument("rebuild: this engine cannot be rebuilt, start the job again");
}

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
