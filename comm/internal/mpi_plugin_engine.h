#pragma once
// The engine behind the MPI plug-in's C interface: posted messages and who waits for them until
// when. Part of mpi_plugin.cc; not installed as an interface.

#include "gradwire/comm/internal/mpi_plugin_fabric.h"

/// Buffers of callers are read in post_send() and written in wait(), by the calling thread, and
/// never besides.
struct gradwire_plugin_engine final : Endpoint {
  static constexpr const char* kTransport = "mpi";

  explicit gradwire_plugin_engine(const gradwire_plugin_options& options)
      : deadline_(steady_clock::now() + milliseconds(options.connect_timeout_ms)) {
    fabric_.start(options.connect_timeout_ms);
    rank_ = Fabric::rank();
    if (options.rank != rank_ || options.world_size != Fabric::size()) {
      throw InvalidOptions("rank " + std::to_string(options.rank) + " of " +
                           std::to_string(options.world_size) + " was asked for, MPI says rank " +
                           std::to_string(rank_) + " of " + std::to_string(Fabric::size()) +
                           ": are all processes started by one mpirun?");
    }
    peers_.resize(static_cast<size_t>(Fabric::size()));
    peers_[static_cast<size_t>(rank_)].joined = true;
    std::unique_lock lock(fabric_.mutex);
    number_ = fabric_.add(*this);
    Fabric::ring();
    ++waiting_;
    const bool in_time =
        changed_.wait_until(lock, deadline_, [this] { return closed_ || all_joined(); });
    --waiting_;
    if (!in_time || closed_) {
      const std::string why = closed_ ? "rank " + std::to_string(lost_peer_) + ": " + why_
                                      : "no sign of " + missing() + " " +
                                            gradwire::within(milliseconds(options.timeout_ms));
      tell(ParcelKind::kAbort, why);
      fabric_.remove(*this);
      Fabric::ring();
      throw std::runtime_error(why);
    }
  }

  ~gradwire_plugin_engine() override {
    {
      std::lock_guard lock(fabric_.mutex);
      if (!closed_) {
        tell(ParcelKind::kFarewell, {});
      } else if (!told_) {
        tell(ParcelKind::kAbort, why_);
      }
      fabric_.remove(*this);
    }
    Fabric::ring();
  }

  int post(bool sends, int peer, uint64_t tag, std::pair<void*, size_t> bytes, uint64_t* message,
           gradwire_plugin_error* error) {
    std::unique_lock lock(fabric_.mutex);
    Parcel parcel;
    if (sends && !closed_) {
      parcel = fabric_.take(bytes.second);
      lock.unlock();
      if (bytes.second > 0) {
        std::memcpy(parcel.payload(), bytes.first, bytes.second);
      }
      lock.lock();
    }
    if (closed_) {
      fabric_.give_back(std::move(parcel));
      return closed_outcome(error);
    }
    *message = keep(sends, peer, bytes);
    if (sends) {
      ++peers_[static_cast<size_t>(peer)].parcels_sent;
      fabric_.send(peer, {.kind = ParcelKind::kData, .engine = number_, .tag = tag},
                   std::move(parcel), this, *message);
      lock.unlock();
      Fabric::ring();
      return GRADWIRE_PLUGIN_DONE;
    }
    const Key key{peer, tag};
    if (const auto found = stash_.find(key); found != stash_.end()) {
      parcel = std::move(found->second.front());
      found->second.pop_front();
      if (found->second.empty()) {
        stash_.erase(found);
      }
      complete(*message, std::move(parcel));
    } else {
      posted_[key].push_back(*message);
    }
    return GRADWIRE_PLUGIN_DONE;
  }

  int wait(uint64_t message, int64_t timeout_ms, gradwire_plugin_error* error) {
    const auto deadline = steady_clock::now() + milliseconds(timeout_ms);
    std::unique_lock lock(fabric_.mutex);
    const auto slot = [this, message]() -> Slot& { return slots_[message]; };
    ++waiting_;
    const bool in_time = changed_.wait_until(lock, deadline, [&] {
      return slot().done || closed_ || peers_[static_cast<size_t>(slot().peer)].left();
    });
    --waiting_;
    if (slot().done) {
      const Slot finished = release(message);
      Parcel parcel = std::move(arrived_[message]);
      lock.unlock();
      if (!finished.sends && parcel.bytes > 0) {
        std::memcpy(finished.data, parcel.payload(), parcel.bytes);
      }
      lock.lock();
      fabric_.give_back(std::move(parcel));
      return GRADWIRE_PLUGIN_DONE;
    }
    if (!closed_) {
      finish(in_time ? GRADWIRE_PLUGIN_FAILED : GRADWIRE_PLUGIN_TIMED_OUT, slot().peer,
             in_time ? "it left the group" : "");
    }
    return closed_outcome(error);
  }

  /// What was posted leaves from MPI's thread, which outlives this.
  void leave() {}

  void close(const char* reason) {
    {
      std::lock_guard lock(fabric_.mutex);
      finish(GRADWIRE_PLUGIN_CLOSED, -1, reason);
      if (!told_) {
        fabric_.drop_unsent(*this);
        tell(ParcelKind::kAbort, reason);
      }
    }
    Fabric::ring();
  }

  // ---- Endpoint

  bool lacks(int peer) const override {
    return !closed_ && !peers_[static_cast<size_t>(peer)].joined;
  }
  void joined(int peer) override {
    peers_[static_cast<size_t>(peer)].joined = true;
    changed_.notify_all();
  }
  void arrived(int peer, uint64_t tag, Parcel parcel) override {
    ++peers_[static_cast<size_t>(peer)].parcels_arrived;
    const Key key{peer, tag};
    if (const auto found = posted_.find(key); found != posted_.end()) {
      const uint64_t message = found->second.front();
      found->second.pop_front();
      if (found->second.empty()) {
        posted_.erase(found);
      }
      complete(message, std::move(parcel));
    } else if (!closed_) {
      stash_[key].push_back(std::move(parcel));
    }
    changed_.notify_all();
  }
  void sent(uint64_t message) override {
    slots_[message].done = true;
    changed_.notify_all();
  }
  void left(int peer, uint64_t parcels) override {
    Peer& state = peers_[static_cast<size_t>(peer)];
    state.gone = true;
    state.parcels_in_all = parcels;
    changed_.notify_all();
  }
  void aborted(int peer, const std::string& reason) override {
    if (peer == rank_ && !closed_) {  // MPI ends here
      tell(ParcelKind::kAbort, reason);
    }
    told_ = told_ || !closed_;  // the others hear it from the same rank
    finish(GRADWIRE_PLUGIN_ABORTED, peer, reason);
  }
  void lost(int peer, const std::string& why) override {
    finish(GRADWIRE_PLUGIN_FAILED, peer, why);
  }
  bool awaited() const override { return waiting_ > 0; }

 private:
  struct Slot {
    bool sends = false;
    bool done = false;
    int peer = -1;
    void* data = nullptr;
    size_t size = 0;
  };
  struct Peer {
    bool joined = false;
    bool gone = false;
    uint64_t parcels_sent = 0, parcels_arrived = 0, parcels_in_all = 0;
    /// Done, and all it sent is here.
    bool left() const { return gone && parcels_arrived == parcels_in_all; }
  };
  using Key = std::pair<int, uint64_t>;  // peer, tag

  bool all_joined() const {
    return std::all_of(peers_.begin(), peers_.end(), [](const Peer& p) { return p.joined; });
  }
  std::string missing() const {
    std::string list;
    for (size_t peer = 0; peer < peers_.size(); ++peer) {
      if (!peers_[peer].joined) {
        list += (list.empty() ? "rank " : ", ") + std::to_string(peer);
      }
    }
    return list;
  }

  /// To all peers.
  void tell(ParcelKind kind, const std::string& reason) {
    told_ = true;
    for (int peer = 0; peer < Fabric::size(); ++peer) {
      if (peer != rank_) {
        Parcel parcel = fabric_.take(reason.size());
        std::copy_n(reinterpret_cast<const std::byte*>(reason.data()), reason.size(),
                    parcel.payload());
        fabric_.send(peer,
                     {.kind = kind,
                      .engine = number_,
                      .tag = peers_[static_cast<size_t>(peer)].parcels_sent},
                     std::move(parcel));
      }
    }
  }

  void complete(uint64_t message, Parcel parcel) {
    Slot& slot = slots_[message];
    if (parcel.bytes > slot.size) {
      finish(GRADWIRE_PLUGIN_FAILED, slot.peer,
             "it sent " + std::to_string(parcel.bytes) + " bytes where " +
                 std::to_string(slot.size) + " were posted");
      return;
    }
    slot.done = true;
    arrived_[message] = std::move(parcel);
  }

  /// The first reason stays.
  void finish(int outcome, int peer, const std::string& why) {
    if (!closed_) {
      closed_ = true;
      outcome_ = outcome;
      lost_peer_ = peer;
      why_ = why;
      posted_.clear();
      stash_.clear();
      if (peer != rank_) {
        fabric_.set_failed();
      }
      changed_.notify_all();
    }
  }

  int closed_outcome(gradwire_plugin_error* error) const {
    error->peer = lost_peer_;
    write_error(error, why_.c_str());
    return outcome_;
  }

  uint64_t keep(bool sends, int peer, std::pair<void*, size_t> bytes) {
    size_t index = slots_.size();
    if (free_.empty()) {
      slots_.emplace_back();
      arrived_.emplace_back();
    } else {
      index = free_.back();
      free_.pop_back();
    }
    slots_[index] = {sends, false, peer, bytes.first, bytes.second};
    return index;
  }
  Slot release(uint64_t message) {
    const Slot slot = slots_[message];
    slots_[message] = {};
    free_.push_back(message);
    return slot;
  }

  Fabric& fabric_ = Fabric::instance();
  const steady_clock::time_point deadline_;
  int rank_ = 0;
  uint64_t number_ = 0;

  // Under fabric_.mutex.
  std::condition_variable changed_;
  int waiting_ = 0;
  std::vector<Peer> peers_;
  std::vector<Slot> slots_;
  std::vector<Parcel> arrived_;  // for the slot of the same place
  std::vector<uint64_t> free_;   // places in both
  std::map<Key, std::deque<uint64_t>> posted_;
  std::map<Key, std::deque<Parcel>> stash_;
  bool closed_ = false;
  bool told_ = false;
  int outcome_ = GRADWIRE_PLUGIN_CLOSED;
  int lost_peer_ = -1;
  std::string why_;
};
