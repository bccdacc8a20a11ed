#include "gradwire/comm/internal/plugin_engine.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "gradwire/comm/internal/mesh.h"

namespace gradwire {
namespace {

using std::chrono::milliseconds;

int64_t milliseconds_until(Deadline deadline) {
  const auto left =
      std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now()).count();
  return std::clamp<int64_t>(left, 0, int64_t{1} << 40);
}

/// Keeps the reason of the first failure, which engines do not.
class PluginEngine final : public PointToPoint {
 public:
  PluginEngine(const gradwire_plugin_table& table, const TransportOptions& options,
               const PluginPlace& place)
      : table_(table), rank_(options.rank), world_size_(options.world_size) {
    std::vector<Socket> sockets;
    if (place.store != nullptr) {
      sockets = connect_mesh(*place.store, table_.transport, place.address, options);
    }
    std::vector<int> numbers;
    for (Socket& socket : sockets) {
      numbers.push_back(socket.give_away());
    }
    const gradwire_plugin_options plugin_options{rank_,
                                                 world_size_,
                                                 place.address.c_str(),
                                                 numbers.data(),
                                                 milliseconds_until(place.deadline),
                                                 options.timeout.count()};
    gradwire_plugin_error error{{}, -1};
    const int outcome = table_.open(&plugin_options, &engine_, &error);
    check(outcome != GRADWIRE_PLUGIN_INVALID, table_.transport, ": ", error.text);
    if (outcome != GRADWIRE_PLUGIN_DONE) {
      throw TransportError(
          concat(table_.transport, ": rank ", rank_, " joining the others",
                 place.address.empty() ? "" : " at ", place.address, ": ", error.text),
          error.peer);
    }
  }
  ~PluginEngine() override { table_.destroy(engine_); }
  PluginEngine(const PluginEngine&) = delete;
  PluginEngine& operator=(const PluginEngine&) = delete;

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }

  MessageHandle post_send(int destination, uint64_t tag,
                          std::span<const std::byte> bytes) override {
    uint64_t message = 0;
    gradwire_plugin_error error{{}, -1};
    require(
        table_.post_send(engine_, destination, tag, bytes.data(), bytes.size(), &message, &error),
        destination, error);
    return handle_of(message, destination);
  }
  MessageHandle post_recv(int source, uint64_t tag, std::span<std::byte> bytes) override {
    uint64_t message = 0;
    gradwire_plugin_error error{{}, -1};
    require(table_.post_recv(engine_, source, tag, bytes.data(), bytes.size(), &message, &error),
            source, error);
    return handle_of(message, source);
  }
  void wait(MessageHandle message, Deadline deadline) override {
    gradwire_plugin_error error{{}, -1};
    require(table_.wait(engine_, (message & 0xFFFFFFFF) - 1, milliseconds_until(deadline), &error),
            static_cast<int>(message >> 32), error);
  }
  void leave(std::string_view reason) noexcept override {
    table_.leave(engine_);
    close(reason);
  }
  void close(std::string_view reason) noexcept override {
    keep_reason(reason, -1);
    table_.close(engine_, std::string(reason).c_str());
  }

 private:
  static MessageHandle handle_of(uint64_t message, int peer) {
    return static_cast<uint64_t>(peer) << 32 | (message + 1);
  }

  void keep_reason(std::string_view reason, int peer) noexcept {
    std::lock_guard lock(mutex_);
    keep_reason_locked(reason, peer);
  }
  void keep_reason_locked(std::string_view reason, int peer) noexcept {
    if (reason_.empty()) {
      reason_ = reason.empty() ? "closed" : reason;
      peer_ = peer;
    }
  }

  void require(int outcome, int peer, const gradwire_plugin_error& error) {
    if (outcome == GRADWIRE_PLUGIN_DONE) {
      return;
    }
    peer = error.peer >= 0 ? error.peer : peer;
    if (outcome == GRADWIRE_PLUGIN_TIMED_OUT) {
      std::lock_guard lock(mutex_);
      silent_ = silent_ || reason_.empty();  // of the reason that is kept
      keep_reason_locked(concat("rank ", peer, " stayed silent past the deadline"), peer);
    } else if (outcome == GRADWIRE_PLUGIN_ABORTED) {
      keep_reason(concat("rank ", peer, " closed the group: ", error.text), peer);
    } else if (outcome == GRADWIRE_PLUGIN_FAILED) {
      keep_reason(concat("rank ", peer, " died or closed the connection (", error.text, ")"), peer);
    }
    std::unique_lock lock(mutex_);
    const TransportError failure(reason_, peer_);
    const bool silent = silent_;
    lock.unlock();
    table_.close(engine_, failure.what());
    if (silent) {
      throw SilentPeer(failure.what(), failure.peer());
    }
    throw failure;
  }

  const gradwire_plugin_table& table_;
  const int rank_;
  const int world_size_;
  gradwire_plugin_engine* engine_ = nullptr;
  std::mutex mutex_;
  std::string reason_;
  int peer_ = -1;
  bool silent_ = false;
};

}  // namespace

const gradwire_plugin_table& load_plugin(std::string_view transport, PluginSymbols symbols,
                                         const TransportOptions& options) {
  const std::string target = concat("gradwire_", transport);
  void* const plugin =
      open_plugin(target, plugin_candidates("lib" + target + ".so", options.plugin_path), symbols);
  const auto entry = reinterpret_cast<gradwire_plugin_entry_function>(
      plugin_symbol(plugin, GRADWIRE_PLUGIN_ENTRY));
  const gradwire_plugin_table* const table = entry(GRADWIRE_PLUGIN_ABI_VERSION);
  check(table != nullptr && table->abi_version == GRADWIRE_PLUGIN_ABI_VERSION &&
            table->table_bytes == sizeof(gradwire_plugin_table),
        transport, ": the plug-in speaks another version, expected ", GRADWIRE_PLUGIN_ABI_VERSION,
        ": it comes from a different gradwire");
  check(table->transport == transport, transport, ": the plug-in ", options.plugin_path,
        " is that of the transport '", table->transport, "'");
  return *table;
}

std::string plugin_unavailable_reason(std::string_view transport, PluginSymbols symbols,
                                      const TransportOptions& options) {
  try {
    load_plugin(transport, symbols, options);
    return {};
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

std::shared_ptr<PointToPoint> make_plugin_engine(const gradwire_plugin_table& table,
                                                 const TransportOptions& options,
                                                 const PluginPlace& place) {
  return std::make_shared<PluginEngine>(table, options, place);
}

}  // namespace gradwire
