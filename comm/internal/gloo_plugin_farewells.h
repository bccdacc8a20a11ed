#pragma once
// How the ranks of a Gloo engine part: farewells, receipts for them, and connections that end
// without either. Part of gloo_plugin.cc; not installed as an interface.
//
// Gloo resets a connection that it closes, and what the kernel has not sent by then is thrown away:
// the last payload of a rank that is done before the others. So the farewell of a rank comes behind
// all else that it has sent, and a peer that has it answers with a receipt: it has the rest too.

#include <gloo/transport/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "gradwire/comm/internal/plugin_process.h"

constexpr std::chrono::milliseconds kNoTimeout{int64_t{1} << 40};  // 35 years

class Farewells {
 public:
  // Tags of messages stay below them.
  static constexpr uint64_t kFarewell = ~uint64_t{0}, kReceipt = kFarewell - 1;

  /// `lost` hears of a peer whose connection ends without a farewell while nobody leaves, and why;
  /// on a thread of this object.
  Farewells(std::shared_ptr<gloo::transport::Context> context,
            std::function<void(int, std::string)> lost)
      : context_(std::move(context)), lost_(std::move(lost)) {
    for (int rank = 0; rank < context_->size; ++rank) {
      if (rank != context_->rank) {
        Peer& peer = peers_.emplace_back();
        peer.rank = rank;
        peer.farewell = context_->createUnboundBuffer(&peer.farewell_heard, 1);
        peer.farewell->recv(rank, kFarewell);
      }
    }
  }
  ~Farewells() {
    abort();
    for (Peer& peer : peers_) {
      if (peer.thread.joinable()) {
        peer.thread.join();
      }
    }
  }
  Farewells(const Farewells&) = delete;
  Farewells& operator=(const Farewells&) = delete;

  /// From here on it listens.
  void start() {
    for (Peer& peer : peers_) {
      peer.thread = std::thread([this, &peer] { watch(peer); });
    }
  }

  /// Tells each peer that this rank leaves, and returns when each has received all that it was
  /// sent, has left or has died, or when `patience` is over. Nothing more is sent after it.
  void say(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    if (aborted_ || std::exchange(leaving_, true)) {
      return;
    }
    for (Peer& peer : peers_) {
      if (!peer.over) {
        peer.goodbye = context_->createUnboundBuffer(&peer.said, 1);
        peer.receipt = context_->createUnboundBuffer(&peer.receipt_heard, 1);
      }
    }
    lock.unlock();
    bool answered = false;
    // Not by a timeout of Gloo's, at which it would close all connections.
    std::thread alarm([this, &answered, until = std::chrono::steady_clock::now() + patience] {
      std::unique_lock waiting(mutex_);
      if (!answered_.wait_until(waiting, until, [&answered] { return answered; })) {
        abort_receipts();
      }
    });
    // Each is told, whatever has become of the connections to the rest, before one is waited for.
    for (Peer& peer : peers_) {
      peer.told = peer.goodbye && reached([&peer] {
                    peer.receipt->recv(peer.rank, kReceipt);
                    peer.goodbye->send(peer.rank, kFarewell);
                  });
    }
    for (Peer& peer : peers_) {
      if (peer.told) {
        reached([&peer] { peer.receipt->waitRecv(nullptr, kNoTimeout); });
      }
    }
    lock.lock();
    answered = true;
    lock.unlock();
    answered_.notify_all();
    alarm.join();
  }

  /// The connections are about to be closed: wakes whoever waits here.
  void abort() {
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    for (Peer& peer : peers_) {
      peer.farewell->abortWaitRecv();
    }
    abort_receipts();
  }

 private:
  /// Buffers whose messages are under way live as long as the connection.
  struct Peer {
    int rank = 0;
    // The messages say nothing but that they are there.
    char said = 0, farewell_heard = 0, receipt_heard = 0;
    bool over = false;  // it has left or died, and has no use for what it has not received
    bool told = false;
    // A receive that only the peer's farewell or the end of its connection completes. Gloo can lose
    // the completion of a send to a rank that dies; it does not lose that of a receive long posted.
    std::unique_ptr<gloo::transport::UnboundBuffer> farewell;
    std::unique_ptr<gloo::transport::UnboundBuffer> answer;   // our receipt for it
    std::unique_ptr<gloo::transport::UnboundBuffer> goodbye;  // our own farewell
    std::unique_ptr<gloo::transport::UnboundBuffer> receipt;  // the peer's for that
    std::thread thread;
  };

  void watch(Peer& peer) {
    const WithoutPipeSignal quiet;
    bool left = false;
    std::string why;
    try {
      left = peer.farewell->waitRecv(nullptr, kNoTimeout);
    } catch (const std::exception& exception) {
      why = exception.what();
    }
    {
      std::unique_lock lock(mutex_);
      peer.over = true;
      if (peer.receipt) {
        peer.receipt->abortWaitRecv();
      }
      if (left && !aborted_) {
        peer.answer = context_->createUnboundBuffer(&peer.said, 1);
        lock.unlock();
        // Where the peer is gone by now nobody waits for it.
        reached([&peer] { peer.answer->send(peer.rank, kReceipt); });
        return;
      }
      // Who is leaving has nothing more to hear, and others must still get its farewell.
      if (why.empty() || aborted_ || leaving_) {
        return;
      }
    }
    lost_(peer.rank, why);
  }

  void abort_receipts() {
    for (Peer& peer : peers_) {
      if (peer.receipt) {
        peer.receipt->abortWaitRecv();
      }
    }
  }

  /// False when the peer is gone.
  template <class F>
  static bool reached(const F& call) {
    try {
      call();
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }

  const std::shared_ptr<gloo::transport::Context> context_;
  const std::function<void(int, std::string)> lost_;
  std::mutex mutex_;
  std::condition_variable answered_;
  std::deque<Peer> peers_;  // their places must not move
  bool leaving_ = false;
  bool aborted_ = false;
};
