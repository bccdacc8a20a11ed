#include "gradwire/comm/transport/gloo.h"

#include <algorithm>
#include <exception>
#include <mutex>

#include "gradwire/comm/internal/interface.h"
#include "gradwire/comm/internal/plugin.h"
#include "gradwire/comm/store.h"
#include "gradwire/comm/transport/gloo_plugin_abi.h"
#include "gradwire/comm/transport/point_to_point_transport.h"

namespace gradwire {
namespace {

using std::chrono::milliseconds;

const gradwire_gloo_table& load_table(const TransportOptions& options) {
  void* const plugin = open_plugin(plugin_candidates("libgradwire_gloo.so", options.plugin_path));
  const auto entry =
      reinterpret_cast<gradwire_gloo_entry_function>(plugin_symbol(plugin, GRADWIRE_GLOO_ENTRY));
  const gradwire_gloo_table* const table = entry(GRADWIRE_GLOO_ABI_VERSION);
  check(table != nullptr && table->abi_version == GRADWIRE_GLOO_ABI_VERSION &&
            table->table_bytes == sizeof(gradwire_gloo_table),
        "gloo: the plug-in speaks another version, expected ", GRADWIRE_GLOO_ABI_VERSION,
        ": it comes from a different gradwire");
  return *table;
}

/// The plug-in's way to a Store; keeps the exception that must not cross the C interface.
struct StoreCalls {
  Store& store;
  std::exception_ptr error;

  gradwire_gloo_store table() { return {this, &set, &get}; }

  template <class F>
  int guarded(const F& body) {
    try {
      body();
      return 0;
    } catch (const std::exception&) {
      error = std::current_exception();
      return 1;
    }
  }
  static int set(void* self, const char* key, const void* value, size_t bytes) {
    auto& calls = *static_cast<StoreCalls*>(self);
    return calls.guarded([&] {
      calls.store.set(concat("gloo/", key), {static_cast<const char*>(value), bytes});
    });
  }
  static int get(void* self, const char* key, void* value, size_t capacity, size_t* bytes) {
    auto& calls = *static_cast<StoreCalls*>(self);
    return calls.guarded([&] {
      const std::vector<char> found = calls.store.get(concat("gloo/", key));
      std::copy_n(found.data(), std::min(capacity, found.size()), static_cast<char*>(value));
      *bytes = found.size();
    });
  }
};

/// Messages through the plug-in. Keeps the reason of the first failure, which Gloo does not.
class GlooEngine final : public PointToPoint {
 public:
  GlooEngine(const gradwire_gloo_table& table, const TransportOptions& options, Store& store,
             const std::string& network_interface)
      : table_(table), rank_(options.rank), world_size_(options.world_size) {
    StoreCalls calls{store, nullptr};
    const auto left = std::chrono::duration_cast<milliseconds>(store.deadline() -
                                                               std::chrono::steady_clock::now());
    const gradwire_gloo_options plugin_options{rank_, world_size_, network_interface.c_str(),
                                               left.count(), calls.table()};
    gradwire_gloo_error error{{}, -1};
    if (table_.open(&plugin_options, &engine_, &error) != GRADWIRE_GLOO_DONE) {
      if (calls.error) {
        std::rethrow_exception(calls.error);
      }
      throw TransportError(concat("gloo: connecting over ", network_interface, ": ", error.text));
    }
  }
  ~GlooEngine() override { table_.destroy(engine_); }
  GlooEngine(const GlooEngine&) = delete;
  GlooEngine& operator=(const GlooEngine&) = delete;

  int rank() const override { return rank_; }
  int world_size() const override { return world_size_; }

  MessageHandle post_send(int destination, uint64_t tag,
                          std::span<const std::byte> bytes) override {
    uint64_t message = 0;
    gradwire_gloo_error error{{}, -1};
    require(
        table_.post_send(engine_, destination, tag, bytes.data(), bytes.size(), &message, &error),
        destination, error);
    return handle_of(message, destination);
  }
  MessageHandle post_recv(int source, uint64_t tag, std::span<std::byte> bytes) override {
    uint64_t message = 0;
    gradwire_gloo_error error{{}, -1};
    require(table_.post_recv(engine_, source, tag, bytes.data(), bytes.size(), &message, &error),
            source, error);
    return handle_of(message, source);
  }
  void wait(MessageHandle message, Deadline deadline) override {
    using std::chrono::steady_clock;
    const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now()).count();
    gradwire_gloo_error error{{}, -1};
    require(table_.wait(engine_, (message & 0xFFFFFFFF) - 1,
                        std::clamp<int64_t>(left, 0, int64_t{1} << 40), &error),
            static_cast<int>(message >> 32), error);
  }
  void close(std::string_view reason) noexcept override {
    keep_reason(reason, -1);
    table_.close(engine_);
  }

 private:
  static MessageHandle handle_of(uint64_t message, int peer) {
    return static_cast<uint64_t>(peer) << 32 | (message + 1);
  }

  void keep_reason(std::string_view reason, int peer) noexcept {
    std::lock_guard lock(mutex_);
    if (reason_.empty()) {
      reason_ = reason.empty() ? "closed" : reason;
      peer_ = peer;
    }
  }

  void require(int outcome, int peer, const gradwire_gloo_error& error) {
    if (outcome == GRADWIRE_GLOO_DONE) {
      return;
    }
    peer = error.peer >= 0 ? error.peer : peer;
    if (outcome == GRADWIRE_GLOO_TIMED_OUT) {
      keep_reason(concat("rank ", peer, " stayed silent past the deadline"), peer);
    } else if (outcome == GRADWIRE_GLOO_FAILED) {
      keep_reason(concat("rank ", peer, " died or closed the connection (", error.text, ")"), peer);
    }
    table_.close(engine_);
    std::lock_guard lock(mutex_);
    throw TransportError(reason_, peer_);
  }

  const gradwire_gloo_table& table_;
  const int rank_;
  const int world_size_;
  gradwire_gloo_engine* engine_ = nullptr;
  std::mutex mutex_;
  std::string reason_;
  int peer_ = -1;
};

}  // namespace

std::string gloo_unavailable_reason(const TransportOptions& options) {
  try {
    load_table(options);
    return {};
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

std::unique_ptr<Transport> make_gloo_transport(const TransportOptions& options) {
  const gradwire_gloo_table& table = load_table(options);
  check(options.network_interface.empty() || has_interface(options.network_interface),
        "gloo: interface '", options.network_interface,
        "' has no IPv4 address here, known: ", list_interfaces());
  const auto store = make_store(options.store, options.rank, options.timeout);
  const std::string interface = options.network_interface.empty()
                                    ? interface_of(store->local_address())
                                    : options.network_interface;
  meet(*store, "here", options.rank, options.world_size);
  auto engine = std::make_shared<GlooEngine>(table, options, *store, interface);
  // Rank 0 keeps the store until the others need it no more.
  if (options.rank == 0) {
    meet(*store, "connected", 0, options.world_size);
    store->clear();
  } else {
    store->set(concat("connected/", options.rank), {});
  }
  return make_point_to_point_transport("gloo", std::move(engine), options);
}

}  // namespace gradwire
