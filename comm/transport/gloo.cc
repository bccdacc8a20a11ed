#include "gradwire/comm/transport/gloo.h"

#include <algorithm>
#include <mutex>
#include <optional>
#include <type_traits>

#include "gradwire/comm/internal/address.h"
#include "gradwire/comm/internal/control.h"
#include "gradwire/comm/internal/interface.h"
#include "gradwire/comm/internal/plugin_engine.h"
#include "gradwire/comm/internal/tcp_store.h"
#include "gradwire/comm/store.h"
#include "gradwire/comm/transport/point_to_point_transport.h"

namespace gradwire {
namespace {

using std::chrono::milliseconds;

// For a peer that closed its connections to say why. One that died refuses at once; one that lives
// answers at once, but for a machine with much else to do.
constexpr milliseconds kForReasons{500};

/// Gloo's messages, with a control socket beside them: it tells who broke the group, which the ends
/// of connections do not, and finds those that are left.
class GlooGroup final : public PointToPoint {
 public:
  GlooGroup(std::shared_ptr<PointToPoint> engine, std::shared_ptr<Control> control,
            uint64_t generation, TransportOptions options, std::string address)
      : engine_(std::move(engine)),
        control_(std::move(control)),
        generation_(generation),
        address_(std::move(address)),
        options_(std::move(options)) {}

  int rank() const override { return engine_->rank(); }
  int world_size() const override { return engine_->world_size(); }

  MessageHandle post_send(int destination, uint64_t tag,
                          std::span<const std::byte> bytes) override {
    return explained([&] { return engine_->post_send(destination, tag, bytes); });
  }
  MessageHandle post_recv(int source, uint64_t tag, std::span<std::byte> bytes) override {
    return explained([&] { return engine_->post_recv(source, tag, bytes); });
  }
  void wait(MessageHandle message, Deadline deadline) override {
    explained([&] { return engine_->wait(message, deadline); });
  }
  void leave(std::string_view reason) noexcept override {
    keep(reason);
    engine_->leave(reason);
  }
  void close(std::string_view reason) noexcept override {
    keep(reason);
    engine_->close(reason);
  }

  Survivors rebuild(const RebuildOptions& options) override;

 private:
  template <class F>
  std::invoke_result_t<const F&> explained(const F& call) {
    try {
      return call();
    } catch (const SilentPeer& error) {
      std::lock_guard lock(mutex_);
      if (!failure_) {
        keep(asked(error, [&] { return silence_behind(error); }));
      }
      throw *failure_;
    } catch (const TransportError& error) {
      std::lock_guard lock(mutex_);
      if (!failure_) {
        keep(error.peer() >= 0 ? asked(error, [&] { return cause_of(error); }) : error);
      }
      throw *failure_;
    }
  }

  /// What asking the others says; where asking fails, as without descriptors, the error itself.
  template <class Ask>
  static TransportError asked(const TransportError& error, const Ask& ask) {
    try {
      return ask();
    } catch (const TransportError&) {
      return error;
    }
  }

  /// A connection may have ended because its other end gave up, for a reason that it knows.
  TransportError cause_of(const TransportError& error) {
    const int peer = error.peer();
    if (const auto reason = control_->ask(generation_, peer, kForReasons)) {
      return TransportError(concat("rank ", peer, " closed the group: ", reason->text),
                            reason->culprit >= 0 ? reason->culprit : peer);
    }
    // It may be too busy to say what happened to somebody else.
    const auto [gone, silent] = control_->look(generation_);
    if (contains(gone, peer) || (gone.empty() && (silent.empty() || contains(silent, peer)))) {
      return error;
    }
    const int culprit = gone.empty() ? silent[0] : gone[0];
    return TransportError(
        concat("rank ", culprit, gone.empty() ? " does not answer" : " died",
               ", upon which rank ", peer, " closed the group"), culprit);
  }

  /// The peer may be waiting itself, for one that is stopped.
  TransportError silence_behind(const TransportError& error) {
    const auto [gone, silent] = control_->look(generation_);
    if (silent.empty() || contains(silent, error.peer()) || contains(gone, error.peer())) {
      return error;
    }
    return TransportError(concat("rank ", silent[0], " stayed silent past the deadline, and rank ",
                                 error.peer(), " with it"), silent[0]);
  }

  static bool contains(const std::vector<int>& ranks, int rank) {
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  }

  void keep(std::string_view reason) noexcept {
    try {
      std::lock_guard lock(mutex_);
      keep(TransportError(std::string(reason.empty() ? "closed" : reason)));
    } catch (const std::exception&) {
      // Out of memory: the others hear of the end, but not why.
    }
  }
  void keep(const TransportError& error) {
    if (!failure_) {
      failure_ = error;
      control_->closed(generation_, {error.what(), error.peer()});
    }
  }

  std::shared_ptr<PointToPoint> engine_;
  std::shared_ptr<Control> control_;
  const uint64_t generation_;
  const std::string address_;  // of this machine, which the others reach
  std::mutex mutex_;
  std::optional<TransportError> failure_;
  const TransportOptions options_;
};

/// All of an engine that needs the store. Rank `server` keeps it until the others need it no more.
std::shared_ptr<PointToPoint> connect(const TransportOptions& options, const std::string& address,
                                      Store& store, int server = 0) {
  auto engine = make_plugin_engine(load_plugin("gloo", PluginSymbols::kOwn, options), options,
                                   {&store, address, store.deadline()});
  if (options.rank == server) {
    meet(store, "connected", server, options.world_size);
    store.clear();
  } else {
    store.set(concat("connected/", options.rank), {});
  }
  return engine;
}

/// One that ends as soon as the group for which ranks meet there has been given up.
class StoreOfAttempt final : public Store {
 public:
  StoreOfAttempt(std::unique_ptr<Store> store, std::function<bool()> given_up)
      : Store(*store), store_(std::move(store)), given_up_(std::move(given_up)) {}
  void set(std::string_view key, std::span<const char> value) override {
    check_attempt();
    store_->set(key, value);
  }
  bool try_get(std::string_view key, std::vector<char>& value) override {
    check_attempt();
    return store_->try_get(key, value);
  }
  std::string local_address() const override { return store_->local_address(); }
  void clear() noexcept override { store_->clear(); }

 private:
  void check_attempt() const {
    if (given_up_()) {
      throw TransportError("a member of the new group left before all had connected");
    }
  }
  std::unique_ptr<Store> store_;
  std::function<bool()> given_up_;
};

GlooGroup::Survivors GlooGroup::rebuild(const RebuildOptions& options) {
  std::shared_ptr<PointToPoint> engine;
  TransportOptions next = options_;
  const auto connect_members = [&](Control::Agreement& agreement) {
    next.rank = agreement.rank;
    next.world_size = static_cast<int>(agreement.members.size());
    StoreAccess access = access_of(next);
    access.given_up = agreement.given_up;
    StoreOfAttempt store(make_tcp_store(agreement.store, next.rank, next.timeout, access,
                                        std::move(agreement.listener), agreement.server),
                         agreement.given_up);
    meet(store, "here", next.rank, next.world_size);
    engine = connect(next, address_, store, agreement.server);
  };
  const auto disconnect = [&engine] {
    engine->close("not all members of the new group confirmed it");
    engine.reset();
  };
  Control::Agreement agreement =
      control_->agree(generation_, options, {connect_members, disconnect});
  return {std::make_shared<GlooGroup>(std::move(engine), control_, agreement.generation, next,
                                      address_),
          std::move(agreement.members)};
}

}  // namespace

std::string gloo_unavailable_reason(const TransportOptions& options) {
  return plugin_unavailable_reason("gloo", PluginSymbols::kOwn, options);
}

std::shared_ptr<PointToPoint> make_gloo_engine(const TransportOptions& options) {
  load_plugin("gloo", PluginSymbols::kOwn, options);
  const std::string& interface = wished_interface(options);
  check_interface("gloo", interface);
  const auto store = make_store(options.store, options.rank, options.timeout, access_of(options));
  const std::string address =
      chosen_address(meet(*store, "address", options.rank, options.world_size,
                          address_offer(interface, store->local_address())),
                     options.rank, interface);
  const auto control = std::make_shared<Control>(address, options);
  if (options.rank == 0 && options.job_secret.empty() && options.log) {
    options.log("gloo: no job secret: a plain digest finds control frames that were damaged, and none "
                "that were forged");
  }
  control->set_addresses(
      meet(*store, "here", options.rank, options.world_size, control->address()));
  return std::make_shared<GlooGroup>(connect(options, address, *store), control, 0, options,
                                     address);
}

std::unique_ptr<Transport> make_gloo_transport(const TransportOptions& options) {
  return make_point_to_point_transport("gloo", make_gloo_engine(options), options);
}

}  // namespace gradwire
