#pragma once
// What the MPI plug-in sends. Part of mpi_plugin.cc; not installed as an interface.
//
// A parcel is an envelope with the 64-bit tag, then the bytes, on a communicator of our own. It
// travels under one MPI tag in pieces that Open MPI sends over TCP without asking the receiver first;
// MPI keeps the order of the pieces of a pair. MPI tags have 15 to 31 bits, so MPI cannot match ours; and it can
// take back neither sends nor, in time, receives. So MPI sees only the parcels' memory, never a
// caller's: matching happens here, and a failed call leaves nothing of its caller's under way.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

enum class ParcelKind : uint32_t {
  kHello,     // an engine was opened; the first of its parcels
  kData,      // tag: the message's
  kFarewell,  // an engine was destroyed; tag: how many data parcels it sent to this peer
  kAbort      // an engine was closed; the bytes are the reason
};

struct Envelope {
  static constexpr uint32_t kMagic = 0x4D504757;  // "WGPM"

  uint32_t magic = kMagic;
  ParcelKind kind = ParcelKind::kData;
  uint64_t engine = 0;  // the sender's number of it
  uint64_t tag = 0;
  uint64_t bytes = 0;  // of the payload
};

/// Memory of one message, envelope included.
struct Parcel {
  std::unique_ptr<std::byte[]> memory;
  size_t capacity = 0;
  size_t bytes = 0;  // of the payload

  std::byte* payload() const { return memory.get() + sizeof(Envelope); }
  Envelope envelope() const {
    Envelope envelope;
    std::memcpy(&envelope, memory.get(), sizeof(envelope));
    return envelope;
  }
};

/// What an engine is told, on MPI's thread or inside its own calls, always under Fabric::mutex.
class Endpoint {
 public:
  virtual ~Endpoint() = default;
  /// Whether the engine of this rank that corresponds to this one is not known yet.
  virtual bool lacks(int peer) const = 0;
  virtual void joined(int peer) = 0;
  virtual void arrived(int peer, uint64_t tag, Parcel parcel) = 0;
  virtual void sent(uint64_t message) = 0;
  /// The peer is done, and sent so many parcels in all.
  virtual void left(int peer, uint64_t parcels) = 0;
  virtual void aborted(int peer, const std::string& reason) = 0;
  /// MPI itself failed with this peer.
  virtual void lost(int peer, const std::string& why) = 0;
  virtual bool awaited() const = 0;  // some caller waits
};

/// A send or a receive of MPI's.
struct Transfer {
  bool sends = false;
  int peer = 0;
  Parcel parcel;
  Endpoint* endpoint = nullptr;
  uint64_t message = 0;             // of a piece: its place; of a receive: that from its peer
  size_t bytes = 0;                 // of a receive: its length
  std::shared_ptr<Transfer> whole;  // of a piece: what all pieces of a parcel share
};

/// Some of a parcel's bytes, as received.
struct Piece {
  Parcel parcel;
  size_t bytes = 0;
};
