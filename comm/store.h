#pragma once
// Where ranks that do not know each other yet meet: a small table of keys and values all of them
// can write and read.

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/comm/point_to_point.h"

namespace gradwire {

/// A key is written once, by one rank. Calls block at most until the deadline given at construction
/// and throw TransportError after it; an answer of a tcp store may come a little later. Not
/// thread-safe.
class Store {
 public:
  virtual ~Store() = default;

  /// @throws TransportError when the key exists already: the place was used before.
  virtual void set(std::string_view key, std::span<const char> value) = 0;

  /// Blocks until the key is there.
  std::vector<char> get(std::string_view key);

  /// The value if the key is there now.
  virtual bool try_get(std::string_view key, std::vector<char>& value) = 0;

  /// Where this is, for messages: "file:/tmp/run" or "tcp:10.0.0.1:29500".
  const std::string& address() const { return address_; }
  Deadline deadline() const { return deadline_; }
  std::chrono::milliseconds timeout() const { return timeout_; }  ///< what the deadline is made of

  /// IPv4 or IPv6 address of this machine from which the store is reached, on the machine of rank 0
  /// maybe a loopback one; empty for a folder.
  virtual std::string local_address() const { return {}; }

  /// Removes what the group wrote, so that the next one can use the same place. Called by rank 0
  /// when every rank is done with the store.
  virtual void clear() noexcept {}

 protected:
  Store(std::string address, std::chrono::milliseconds timeout)
      : address_(std::move(address)),
        timeout_(timeout),
        deadline_(std::chrono::steady_clock::now() + timeout) {}

 private:
  std::string address_;
  std::chrono::milliseconds timeout_;
  Deadline deadline_;
};

/// Who may use a store, and where it says whom it refused.
struct StoreAccess {
  /// TransportOptions::job_secret. A TCP store lets in only who knows it, and keys lie under a name
  /// made from it: groups with other secrets do not see each other.
  std::string secret{};
  std::function<void(std::string_view)> log{};  ///< TransportOptions::log
  size_t clients = 1024;  ///< ranks expected at most: bounds the connections held
  /// Where the ranks are, as far as it is known: all on one machine, or some on others.
  enum class Ranks : uint8_t { kAnywhere, kOnOneMachine, kOnSeveral } ranks = Ranks::kAnywhere;
  /// Ends the attempts to reach a TCP store: nobody will be there any more.
  std::function<bool()> given_up{};
};

/// "file:DIR": one file per key in DIR, which is created. "tcp:HOST:PORT": rank 0 listens and
/// serves the others while its store lives. At HOST alone where that is a numeric address, or a
/// name and all ranks are on one machine. For any other name at all addresses of its machine, since
/// what a name stands for differs between machines: one's own is 127.0.1.1 to Debian's /etc/hosts,
/// and a launcher may say localhost to rank 0 alone. So it does for 127.0.0.1 where ranks are known
/// to be elsewhere. A name that is not known yet, or an address where nobody listens, is tried
/// until the deadline.
/// @throws InvalidArgument for another address, TransportError when the place cannot be used or,
/// for tcp, rank 0 does not answer in time or has another secret.
std::unique_ptr<Store> make_store(std::string_view address, int rank,
                                  std::chrono::milliseconds timeout,
                                  const StoreAccess& access = {});

/// Waits until all ranks have called this with the same stage, and returns what each brought. A rank
/// that need not wait may set "<stage>/<its rank>" to nothing instead.
/// @throws TransportError naming the ranks that are missing at the deadline, or both world sizes and
/// ranks when they disagree on the world size.
std::vector<std::string> meet(Store& store, std::string_view stage, int rank, int world_size,
                              std::string_view mine = {});

struct TransportOptions;
/// Of a group with these options.
StoreAccess access_of(const TransportOptions& options);

/// In front of every key of a job: of its secret, which it does not give away. Empty without one.
std::string key_prefix(std::string_view secret);

}  // namespace gradwire
