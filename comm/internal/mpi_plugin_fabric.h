#pragma once
// Parcels between the processes of MPI_COMM_WORLD, for all engines of this process. Part of
// mpi_plugin.cc; not installed as an interface.

#include <atomic>
#include <deque>
#include <map>
#include <numeric>
#include <set>

#include "gradwire/comm/internal/mpi_plugin_parcel.h"
#include "gradwire/comm/internal/mpi_plugin_thread.h"

class Fabric {
 public:
  /// Never destroyed: MPI's thread outlives static objects.
  static Fabric& instance() {
    static auto* const fabric = new Fabric;
    return *fabric;
  }

  std::mutex mutex;  // of everything here and of all endpoints, but never held in a call of MPI

  /// Starts MPI, or finds it started. Throws as MpiThread::start().
  void start(int64_t timeout_ms) {
    MpiThread::instance().start({[this] { return progress(); }, [this] { return awaited(); },
                                 [this](const char* why) { end(why); },
                                 [this] { return failed_.load(); }},
                                timeout_ms);
  }
  static int rank() { return MpiThread::instance().rank(); }
  static int size() { return MpiThread::instance().size(); }
  static void ring() { MpiThread::instance().ring(); }

  // ---- all that follows under `mutex`

  /// Some group has failed: not all ranks may come to the end.
  void set_failed() { failed_ = true; }

  /// Returns the number by which other ranks know this engine, and says hello to them.
  uint64_t add(Endpoint& endpoint) {
    endpoints_.push_back(&endpoint);
    const uint64_t number = ++last_number_;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank()) {
        send(peer, {.kind = ParcelKind::kHello, .engine = number}, {});
        if (auto& waiting = peers_[peer].hellos; !waiting.empty()) {
          const uint64_t theirs = waiting.front();
          waiting.pop_front();
          join(endpoint, peer, theirs);
        }
      }
    }
    return number;
  }

  /// The endpoint hears nothing more.
  void remove(Endpoint& endpoint) {
    std::erase(endpoints_, &endpoint);
    for (auto& [peer, state] : peers_) {
      for (auto entry = state.joined.begin(); entry != state.joined.end();) {
        if (entry->second == &endpoint) {
          state.retired.insert(entry->first);
          entry = state.joined.erase(entry);
        } else {
          ++entry;
        }
      }
    }
    for (Transfer& transfer : outbox_) {
      transfer.endpoint = transfer.endpoint == &endpoint ? nullptr : transfer.endpoint;
    }
    for (Transfer& transfer : transfers_) {
      Transfer& whole = transfer.whole ? *transfer.whole : transfer;
      whole.endpoint = whole.endpoint == &endpoint ? nullptr : whole.endpoint;
    }
  }

  /// Sends what `parcel` holds; `endpoint` hears when it is done.
  void send(int peer, Envelope envelope, Parcel parcel, Endpoint* endpoint = nullptr,
            uint64_t message = 0) {
    if (!parcel.memory) {
      parcel = take(0);
    }
    envelope.bytes = parcel.bytes;
    std::memcpy(parcel.memory.get(), &envelope, sizeof(envelope));
    outbox_.push_back({true, peer, std::move(parcel), endpoint, message, 0, nullptr});
  }

  /// Forgets what `endpoint` has not begun to send.
  void drop_unsent(Endpoint& endpoint) {
    std::erase_if(outbox_, [&](const Transfer& t) { return t.endpoint == &endpoint; });
  }

  Parcel take(size_t bytes) {
    const size_t needed = bytes + sizeof(Envelope);
    for (Parcel& free : free_) {
      if (free.capacity >= needed && free.capacity <= std::max(4 * needed, kSmallest)) {
        Parcel parcel = std::move(free);
        free = std::move(free_.back());
        free_.pop_back();
        parcel.bytes = bytes;
        return parcel;
      }
    }
    const size_t capacity = std::max((needed + 4095) / 4096 * 4096, kSmallest);
    return {std::unique_ptr<std::byte[]>(new std::byte[capacity]), capacity, bytes};
  }
  void give_back(Parcel parcel) {
    if (parcel.memory && free_.size() < kFreeParcels) {
      free_.push_back(std::move(parcel));
    }
  }

 private:
  static constexpr int kInOrder = 0, kUrgent = 1;  // MPI tags
  static constexpr size_t kPiece = size_t{60} << 10;  // Open MPI's btl_tcp_eager_limit is 64 KiB
  static constexpr size_t kSmallest = 16384;
  static constexpr size_t kFreeParcels = 64;
  static constexpr int kProbesAtOnce = 64;
  static constexpr uint64_t kNoPlace = ~uint64_t{0};  // out of order

  struct Peer {
    std::deque<uint64_t> hellos;                    // engines that wait for one of ours
    std::map<uint64_t, Endpoint*> joined;           // its number -> our engine
    std::map<uint64_t, std::vector<Parcel>> early;  // arrived before the two were joined
    std::set<uint64_t> retired;                     // whose parcels are dropped
    // Receives end in any order, parcels are delivered in the order in which they were sent.
    uint64_t next_probed = 0, next_delivered = 0;
    std::map<uint64_t, Piece> held;
    Parcel partial;  // of which `partial_bytes` are here, envelope included
    size_t partial_bytes = 0;
  };

  // ---- on MPI's thread, which alone changes transfers_ and requests_ (place by place the same)

  bool progress() {
    bool moved = start_sends();
    moved = start_receives() || moved;
    return finish_some() || moved;
  }

  bool start_sends() {
    const size_t first = transfers_.size();
    {
      std::lock_guard lock(mutex);
      for (; !outbox_.empty(); outbox_.pop_front()) {
        Transfer& next = outbox_.front();
        const size_t pieces = (next.parcel.bytes + sizeof(Envelope) + kPiece - 1) / kPiece;
        if (pieces == 1) {
          transfers_.push_back(std::move(next));
          continue;
        }
        const auto whole = std::make_shared<Transfer>(std::move(next));
        for (size_t piece = 0; piece < pieces; ++piece) {
          transfers_.push_back({true, whole->peer, {}, nullptr, piece, 0, whole});
        }
      }
    }
    requests_.resize(transfers_.size(), MPI_REQUEST_NULL);
    for (size_t i = first; i < transfers_.size(); ++i) {
      const Transfer& transfer = transfers_[i];
      const Parcel& parcel = transfer.whole ? transfer.whole->parcel : transfer.parcel;
      const size_t begin = transfer.whole ? transfer.message * kPiece : 0;
      const size_t bytes = std::min(kPiece, parcel.bytes + sizeof(Envelope) - begin);
      const bool urgent = begin == 0 && parcel.envelope().kind == ParcelKind::kAbort;
      note(MPI_Isend(parcel.memory.get() + begin, static_cast<int>(bytes), MPI_BYTE, transfer.peer,
                     urgent ? kUrgent : kInOrder, communicator(), &requests_[i]),
           "MPI_Isend", transfer.peer);
    }
    return transfers_.size() > first;
  }

  bool start_receives() {
    for (int probes = 0; probes < kProbesAtOnce; ++probes) {
      int found = 0, bytes = 0;
      MPI_Message message = MPI_MESSAGE_NULL;
      MPI_Status status;
      note(MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, communicator(), &found, &message, &status),
           "MPI_Improbe", rank());
      if (found == 0) {
        return probes > 0;
      }
      MPI_Get_count(&status, MPI_BYTE, &bytes);
      std::unique_lock lock(mutex);
      const auto length = static_cast<size_t>(bytes);
      Parcel parcel = take(std::max(length, sizeof(Envelope)) - sizeof(Envelope));
      // Of a receive that fails, nothing is taken for an envelope.
      std::memset(parcel.memory.get(), 0, sizeof(Envelope));
      const uint64_t place = status.MPI_TAG == kUrgent ? kNoPlace
                                                       : peers_[status.MPI_SOURCE].next_probed++;
      transfers_.push_back(
          {false, status.MPI_SOURCE, std::move(parcel), nullptr, place, length, nullptr});
      lock.unlock();
      requests_.push_back(MPI_REQUEST_NULL);
      note(MPI_Imrecv(transfers_.back().parcel.memory.get(), bytes, MPI_BYTE, &message,
                      &requests_.back()),
           "MPI_Imrecv", status.MPI_SOURCE);
    }
    return true;
  }

  bool finish_some() {
    if (requests_.empty()) {
      return false;
    }
    const int total = static_cast<int>(requests_.size());
    done_.resize(requests_.size());
    statuses_.resize(requests_.size());
    int count = 0;
    const int code = MPI_Testsome(total, requests_.data(), &count, done_.data(), statuses_.data());
    if (count == MPI_UNDEFINED) {  // none of them has started
      count = total;
      std::iota(done_.begin(), done_.end(), 0);
    } else if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) {
      note(code, "MPI_Testsome", rank());
      return false;
    }
    std::lock_guard lock(mutex);
    for (size_t i = 0; code == MPI_ERR_IN_STATUS && i < static_cast<size_t>(count); ++i) {
      if (statuses_[i].MPI_ERROR != MPI_SUCCESS) {
        const Transfer& transfer = transfers_[static_cast<size_t>(done_[i])];
        if (!transfer.sends) {
          std::memset(transfer.parcel.memory.get(), 0, sizeof(Envelope));
        }
        lose(transfer.peer, "MPI_Testsome: " + mpi_error_text(statuses_[i].MPI_ERROR));
      }
    }
    std::sort(done_.begin(), done_.begin() + count, std::greater<int>());
    for (int i = 0; i < count; ++i) {
      const auto place = static_cast<size_t>(done_[static_cast<size_t>(i)]);
      Transfer transfer = std::exchange(transfers_[place], std::move(transfers_.back()));
      requests_[place] = requests_.back();
      transfers_.pop_back();
      requests_.pop_back();
      if (transfer.sends) {
        sent(std::move(transfer));
      } else if (transfer.message == kNoPlace) {
        deliver(transfer.peer, std::move(transfer.parcel));
      } else {
        put_in_order(transfer.peer, transfer.message,
                     {std::move(transfer.parcel), transfer.bytes});
      }
    }
    return count > 0;
  }

  void sent(Transfer transfer) {
    if (transfer.whole) {
      const std::shared_ptr<Transfer> whole = std::move(transfer.whole);
      if (whole.use_count() > 1) {
        return;  // other pieces are still under way
      }
      transfer = std::move(*whole);
    }
    if (transfer.endpoint != nullptr) {
      transfer.endpoint->sent(transfer.message);
    }
    give_back(std::move(transfer.parcel));
  }

  void put_in_order(int peer, uint64_t place, Piece piece) {
    Peer& from = peers_[peer];
    from.held[place] = std::move(piece);
    for (auto next = from.held.begin();
         next != from.held.end() && next->first == from.next_delivered;
         next = from.held.erase(next), ++from.next_delivered) {
      put_together(peer, std::move(next->second));
    }
  }

  /// Adds the next piece from the peer to the parcel it belongs to, and delivers that when complete.
  void put_together(int peer, Piece piece) {
    Peer& from = peers_[peer];
    if (!from.partial.memory) {
      const Envelope envelope = piece.parcel.envelope();
      if (envelope.magic != Envelope::kMagic || piece.bytes == envelope.bytes + sizeof(Envelope)) {
        deliver(peer, std::move(piece.parcel));
        return;
      }
      from.partial = take(envelope.bytes);
      from.partial_bytes = 0;
    }
    const size_t whole = from.partial.bytes + sizeof(Envelope);
    const size_t bytes = std::min(piece.bytes, whole - from.partial_bytes);
    std::memcpy(from.partial.memory.get() + from.partial_bytes, piece.parcel.memory.get(), bytes);
    from.partial_bytes += bytes;
    give_back(std::move(piece.parcel));
    if (from.partial_bytes == whole) {
      deliver(peer, std::exchange(from.partial, Parcel{}));
    }
  }

  static MPI_Comm communicator() { return MpiThread::instance().communicator(); }

  void note(int code, const char* call, int peer) {
    if (code != MPI_SUCCESS) {
      std::lock_guard lock(mutex);
      lose(peer, std::string(call) + ": " + mpi_error_text(code));
    }
  }

  void lose(int peer, const std::string& why) {
    failed_ = true;
    for (Endpoint* endpoint : endpoints_) {
      endpoint->lost(peer, why);
    }
  }

  void deliver(int peer, Parcel parcel) {
    const Envelope envelope = parcel.envelope();
    Peer& from = peers_[peer];
    const auto found = from.joined.find(envelope.engine);
    if (envelope.magic != Envelope::kMagic || from.retired.count(envelope.engine) != 0) {
      give_back(std::move(parcel));
    } else if (envelope.kind == ParcelKind::kHello) {
      give_back(std::move(parcel));
      const auto first = std::find_if(endpoints_.begin(), endpoints_.end(),
                                      [peer](const Endpoint* e) { return e->lacks(peer); });
      if (first == endpoints_.end()) {
        from.hellos.push_back(envelope.engine);
      } else {
        join(**first, peer, envelope.engine);
      }
    } else if (found != from.joined.end()) {
      tell(*found->second, peer, std::move(parcel));
    } else if (envelope.kind == ParcelKind::kAbort) {  // it gave up before we came
      std::erase(from.hellos, envelope.engine);
      from.early.erase(envelope.engine);
      from.retired.insert(envelope.engine);
    } else {
      from.early[envelope.engine].push_back(std::move(parcel));
    }
  }

  void join(Endpoint& endpoint, int peer, uint64_t number) {
    Peer& from = peers_[peer];
    from.joined[number] = &endpoint;
    endpoint.joined(peer);
    for (Parcel& parcel : from.early[number]) {
      tell(endpoint, peer, std::move(parcel));
    }
    from.early.erase(number);
  }

  void tell(Endpoint& endpoint, int peer, Parcel parcel) {
    const Envelope envelope = parcel.envelope();
    if (envelope.kind == ParcelKind::kData) {
      endpoint.arrived(peer, envelope.tag, std::move(parcel));
      return;
    }
    if (envelope.kind == ParcelKind::kFarewell) {
      endpoint.left(peer, envelope.tag);
    } else {
      endpoint.aborted(peer, {reinterpret_cast<const char*>(parcel.payload()), parcel.bytes});
    }
    give_back(std::move(parcel));
  }

  bool awaited() {
    std::lock_guard lock(mutex);
    return std::any_of(endpoints_.begin(), endpoints_.end(),
                       [](const Endpoint* e) { return e->awaited(); });
  }

  void end(const std::string& why) {
    {
      std::lock_guard lock(mutex);
      for (Endpoint* endpoint : endpoints_) {
        endpoint->aborted(rank(), why);
      }
    }
    // What has been said already, such as farewells, still goes out.
    const auto deadline = steady_clock::now() + milliseconds(1000);
    const auto sends = [](const Transfer& transfer) { return transfer.sends; };
    while (communicator() != MPI_COMM_NULL && steady_clock::now() < deadline &&
           (progress() || std::any_of(transfers_.begin(), transfers_.end(), sends))) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  std::atomic<bool> failed_{false};
  uint64_t last_number_ = 0;
  std::vector<Endpoint*> endpoints_;
  std::map<int, Peer> peers_;
  std::deque<Transfer> outbox_;
  std::vector<Parcel> free_;

  std::vector<Transfer> transfers_;
  std::vector<MPI_Request> requests_;
  std::vector<int> done_;
  std::vector<MPI_Status> statuses_;
};
