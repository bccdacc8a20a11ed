#pragma once
// The ranks of a world beside the engine that carries their payloads: who died, who gave up and who
// keeps the others waiting, for engines that cannot say.

#include <array>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "gradwire/comm/internal/frame_seal.h"
#include "gradwire/comm/internal/socket.h"
#include "gradwire/kernels/core/error.h"

namespace gradwire {

/// Where rank 0 listens and what it expects to hear, for the other ranks: plain bytes.
struct ControlInvitation {
  std::array<char, 64> host{};  ///< a numeric address, ends in 0
  uint32_t port = 0;
  std::array<unsigned char, 16> secret{};
};

/// A collective that has not ended as it should, and who takes part in it.
struct TroubledCall {
  uint64_t group = 0;            ///< as given to entered()
  std::span<const int> members;  ///< ranks of the world
  std::string trouble{};  ///< what the engine said; empty: nothing happened until the deadline
  /// Which of the calls it is: who has entered so many is not behind. Empty: the newest one.
  std::optional<uint64_t> number{};
};

/// Rank 0 in the middle, a TCP connection to each other rank, a thread in each. The first failure
/// that reaches rank 0 is what all ranks are told. Frames are sealed (frame_seal.h) with the
/// invitation's secret; a bad one is as a rank that died. Small: nothing is sent while all is well. Once
/// rank 0 has left in good order, each of the others learns of a failure from its engine alone.
class ControlGroup {
 public:
  struct Place {
    Socket listener;
    ControlInvitation invitation;
  };
  /// For rank 0: listens at `host`, a numeric address of this machine, on a port of its own choice.
  /// @throws TransportError when that cannot be.
  static Place open_place(const std::string& host);

  struct Options {
    int rank = 0;
    int world_size = 1;
    std::chrono::milliseconds join_within{0};
    /// Called once, in the group's thread, when the world has failed: not before the constructor
    /// has returned, and not after the destructor has.
    std::function<void(const TransportError&)> ended;
  };
  /// Collective and blocking. `listener` is rank 0's. Callers without the secret are sent away.
  /// @throws TransportError naming the ranks that have not come.
  ControlGroup(const Options& options, const ControlInvitation& invitation, Socket listener);
  /// Leaves: the others are told that this rank has gone in good order.
  ~ControlGroup();
  ControlGroup(const ControlGroup&) = delete;
  ControlGroup& operator=(const ControlGroup&) = delete;

  /// Tells every rank that the world has failed. From any thread; the first reason stays.
  void abort(const TransportError& reason) noexcept;

  /// Says that this rank has entered another call of the group.
  void entered(uint64_t group);

  /// What ended the world, waiting for it at most so long.
  std::optional<TransportError> verdict(std::chrono::milliseconds patience);

  /// A call of this rank has come to its deadline, or failed in the engine, which cannot say why:
  /// asks all ranks where they are, ends the world, and returns an error that names who left, does
  /// not answer or, at a deadline, is behind. Takes at most kMostPatience.
  TransportError blame(const TroubledCall& call);

  static constexpr std::chrono::milliseconds kMostPatience{400};

  /// Which ranks exchange messages, and what they are for.
  struct Gathering {
    uint64_t group = 0;            ///< a number of theirs
    std::span<const int> members;  ///< ranks of the world, ascending
    std::string_view what;         ///< for messages
    std::chrono::milliseconds patience{30000};
  };
  /// Blocking: what each member passed, in the order of the ranks; together at most kMostGathered
  /// bytes. Members call it the same number of times. @throws TransportError naming a rank that left
  /// or is missing at the end of the patience; the world has then ended.
  std::vector<std::string> gather(std::string_view mine, const Gathering& among);
  static constexpr size_t kMostGathered = size_t{60} << 10;

  /// The lowest of the ranks that has left in good order, -1 if none.
  int left_of(std::span<const int> members);

 private:
  enum class Kind : uint32_t {
    kHello = 1,
    kWelcome,
    kEnded,
    kLate,
    kWhere,
    kHere,
    kBye,
    kGive,  // to rank 0: the members, a character each, and a message
    kAll,   // the messages of all members, each behind its length
  };
  struct Message {
    uint32_t magic = 0x31435747;  // "GWC1"
    Kind kind{};
    int32_t rank = -1;        ///< at fault, or of the sender
    uint32_t unused = 0;  // no padding travels
    uint64_t group = 0;
    uint64_t calls = 0;  ///< entered in that group
  };
  struct Link {
    Socket socket;
    std::string input;
    FrameSeal in, out;
  };
  /// Rank 0's question to all where they are.
  struct Question {
    uint64_t group = 0;
    uint64_t calls = 0;
    int asker = 0;
    std::string else_say;  ///< where nobody is to blame
    std::vector<int> members;
    std::map<int, uint64_t> answers;
    Deadline until{};
  };

  void welcome_all(const ControlInvitation& invitation, const Socket& listener,
                   std::chrono::milliseconds join_within);
  bool admit(Link& visitor);
  void knock(const ControlInvitation& invitation, std::chrono::milliseconds join_within);
  std::string missing() const;

  void run();
  void wait_for_news();
  bool do_as_told();
  void read_from(int rank);
  void take(int from, const Message& message, const std::string& text);
  void ask(const Message& message, const std::string& text);
  void judge();
  void end(const TransportError& reason);
  void send(int to, const Message& message, std::string_view text);
  void send_to_all(const Message& message, std::string_view text);
  void ring();
  std::string mask_of(std::span<const int> members) const;
  void collect(const Message& message, const std::string& text);
  void deliver(const Message& message, const std::string& text);

  const int rank_;
  const int world_size_;
  std::function<void(const TransportError&)> ended_;
  Socket bell_;

  // Of the thread alone once it runs.
  std::vector<Link> links_;  ///< by rank; without a socket when there is none
  std::map<std::pair<uint64_t, uint64_t>, std::map<int, std::string>> given_;  ///< by group, round
  std::optional<Question> question_;
  bool told_ = false;  ///< the others know the verdict

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<TransportError> verdict_;
  std::map<uint64_t, uint64_t> calls_;
  std::set<int> left_;  ///< written by the thread alone
  std::map<std::pair<uint64_t, uint64_t>, std::vector<std::string>> gathered_;  ///< not yet taken
  std::vector<std::pair<Message, std::string>> outbox_;  ///< to be sent to rank 0
  std::optional<std::pair<Message, std::string>> late_;  ///< to be sent to rank 0
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace gradwire
