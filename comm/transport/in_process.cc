#include "gradwire/comm/transport/in_process.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>

#include "gradwire/comm/internal/quorum.h"
#include "gradwire/comm/transport.h"

namespace gradwire {
namespace {

enum class State : uint8_t { kFree, kPosted, kCopying, kDone };

struct Post {
  State state = State::kFree;
  bool sends = false;
  int peer = 0;
  uint64_t tag = 0;
  std::byte* data = nullptr;
  size_t size = 0;
};

/// What the ranks share: every rank's posted messages under one lock, and the reason it all ended.
/// Whoever posts second finds the other and copies, outside the lock.
class Mailboxes {
 public:
  explicit Mailboxes(int world_size)
      : ranks_(static_cast<size_t>(world_size)), round_(std::make_shared<Round>(ranks_.size())) {}

  int world_size() const { return static_cast<int>(ranks_.size()); }

  MessageHandle post(int rank, const Post& wanted) {
    std::unique_lock lock(mutex_);
    throw_if_closed(rank);
    const size_t mine = add(rank, wanted);
    const size_t theirs = find_partner(rank, wanted);
    if (theirs != kNone) {
      join(lock, rank, mine, wanted.peer, theirs);
    }
    return mine + 1;
  }

  void wait(int rank, MessageHandle message, Deadline deadline) {
    std::unique_lock lock(mutex_);
    Rank& self = at(rank);
    const size_t index = message - 1;
    const auto over = [&] {
      const Post& post = self.posts[index];
      return post.state == State::kDone || closed_ ||
             (post.state == State::kPosted && at(post.peer).left);
    };
    const bool in_time = self.changed.wait_until(lock, deadline, over);
    const Post post = self.posts[index];
    if (post.state == State::kDone) {
      self.posts[index].state = State::kFree;
      return;
    }
    if (!closed_) {
      close_locked(rank, post.peer,
                   in_time ? concat("rank ", post.peer, " left the group")
                           : concat("rank ", post.peer, " stayed silent past the deadline"));
    }
    withdraw(lock, rank);
    throw_if_closed(rank);
  }

  void close(int rank, std::string_view reason) noexcept {
    std::lock_guard lock(mutex_);
    close_locked(rank, -1, reason);
  }

  void leave(int rank) noexcept {
    std::unique_lock lock(mutex_);
    withdraw(lock, rank);
    at(rank).left = true;
    notify_all();
  }

  struct Next {
    std::shared_ptr<Mailboxes> mailboxes;
    std::vector<int> members;
  };

  /// The mailboxes of the ranks that call this, agreed on by all of them.
  Next rebuild(int rank, Deadline deadline) {
    std::unique_lock lock(mutex_);
    if (!next_.members.empty()) {
      throw TransportError(left_behind(rank, next_.members));
    }
    const std::shared_ptr<Round> round = round_;
    round->presence[static_cast<size_t>(rank)] = Presence::kJoined;
    round->deadline = std::min(round->deadline, deadline);
    notify_all();
    Rank& self = at(rank);
    while (!round->over && !complete(*round) &&
           self.changed.wait_until(lock, round->deadline) != std::cv_status::timeout) {
    }
    if (!round->over) {
      decide(*round);
    }
    if (!round->failure.empty()) {
      throw TransportError(round->failure);
    }
    return next_;
  }

 private:
  static constexpr size_t kNone = ~size_t{0};

  struct Rank {
    std::vector<Post> posts;  // a slot is used again once its message has been waited for
    std::condition_variable changed;
    bool left = false;
  };

  /// One attempt to rebuild. A failed one is followed by another.
  struct Round {
    explicit Round(size_t world_size) : presence(world_size, Presence::kUnknown) {}
    std::vector<Presence> presence;
    Deadline deadline = Deadline::max();
    bool over = false;
    std::string failure;
  };

  /// Nobody is left to wait for. Marks those that are gone.
  bool complete(Round& round) {
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].left && round.presence[r] == Presence::kUnknown) {
        round.presence[r] = Presence::kGone;
      }
    }
    return std::count(round.presence.begin(), round.presence.end(), Presence::kUnknown) == 0;
  }

  void decide(Round& round) {
    round.over = true;
    round.failure = why_too_few(round.presence);
    if (round.failure.empty()) {
      next_.members = joined_ranks(round.presence);
      next_.mailboxes = std::make_shared<Mailboxes>(static_cast<int>(next_.members.size()));
    } else {
      round_ = std::make_shared<Round>(ranks_.size());
    }
    notify_all();
  }

  Rank& at(int rank) { return ranks_[static_cast<size_t>(rank)]; }

  size_t add(int rank, const Post& wanted) {
    std::vector<Post>& posts = at(rank).posts;
    size_t index = 0;
    while (index < posts.size() && posts[index].state != State::kFree) {
      ++index;
    }
    if (index == posts.size()) {
      posts.emplace_back();
    }
    posts[index] = wanted;
    posts[index].state = State::kPosted;
    return index;
  }

  size_t find_partner(int rank, const Post& wanted) {
    const std::vector<Post>& posts = at(wanted.peer).posts;
    for (size_t i = 0; i < posts.size(); ++i) {
      const Post& post = posts[i];
      if (post.state == State::kPosted && post.peer == rank && post.tag == wanted.tag &&
          post.sends != wanted.sends) {
        return i;
      }
    }
    return kNone;
  }

  void join(std::unique_lock<std::mutex>& lock, int rank, size_t mine, int peer, size_t theirs) {
    const Post a = at(rank).posts[mine], b = at(peer).posts[theirs];
    const Post& from = a.sends ? a : b;
    const Post& to = a.sends ? b : a;
    if (from.size > to.size) {
      close_locked(
          rank, peer,
          concat("rank ", to.peer, " sent ", from.size, " bytes where ", to.size, " were posted"));
      withdraw(lock, rank);
      throw_if_closed(rank);
    }
    at(rank).posts[mine].state = at(peer).posts[theirs].state = State::kCopying;
    lock.unlock();
    if (from.size > 0) {
      std::memcpy(to.data, from.data, from.size);
    }
    lock.lock();
    at(rank).posts[mine].state = at(peer).posts[theirs].state = State::kDone;
    at(rank).changed.notify_all();
    at(peer).changed.notify_all();
  }

  // After this nobody reads or writes the rank's buffers any more.
  void withdraw(std::unique_lock<std::mutex>& lock, int rank) {
    Rank& self = at(rank);
    self.changed.wait(lock, [&self] {
      for (const Post& post : self.posts) {
        if (post.state == State::kCopying) {
          return false;
        }
      }
      return true;
    });
    for (Post& post : self.posts) {
      post.state = State::kFree;
    }
  }

  void close_locked(int rank, int peer, std::string_view reason) {
    if (!closed_) {
      closed_ = true;
      closer_ = rank;
      peer_ = peer;
      reason_ = reason;
      notify_all();
    }
  }

  void throw_if_closed(int rank) const {
    if (closed_) {
      throw TransportError(
          rank == closer_ ? reason_ : concat("rank ", closer_, " closed the group: ", reason_),
          rank == closer_ || peer_ >= 0 ? peer_ : closer_);
    }
  }

  void notify_all() {
    for (Rank& rank : ranks_) {
      rank.changed.notify_all();
    }
  }

  std::mutex mutex_;
  std::vector<Rank> ranks_;
  bool closed_ = false;
  int closer_ = -1;
  int peer_ = -1;
  std::string reason_;
  std::shared_ptr<Round> round_;
  Next next_;
};

class InProcessEngine final : public PointToPoint {
 public:
  InProcessEngine(std::shared_ptr<Mailboxes> mailboxes, int rank)
      : mailboxes_(std::move(mailboxes)), rank_(rank) {}
  ~InProcessEngine() override { mailboxes_->leave(rank_); }

  int rank() const override { return rank_; }
  int world_size() const override { return mailboxes_->world_size(); }

  MessageHandle post_send(int destination, uint64_t tag,
                          std::span<const std::byte> bytes) override {
    // Never written through: a send's data only ever is the source of the copy.
    return mailboxes_->post(rank_, {State::kPosted, true, destination, tag,
                                    const_cast<std::byte*>(bytes.data()), bytes.size()});
  }
  MessageHandle post_recv(int source, uint64_t tag, std::span<std::byte> bytes) override {
    return mailboxes_->post(rank_,
                            {State::kPosted, false, source, tag, bytes.data(), bytes.size()});
  }
  void wait(MessageHandle message, Deadline deadline) override {
    mailboxes_->wait(rank_, message, deadline);
  }
  void close(std::string_view reason) noexcept override { mailboxes_->close(rank_, reason); }

  Survivors rebuild(const RebuildOptions& options) override {
    Mailboxes::Next next =
        mailboxes_->rebuild(rank_, std::chrono::steady_clock::now() + options.timeout);
    const auto place = std::find(next.members.begin(), next.members.end(), rank_);
    const auto rank = static_cast<int>(place - next.members.begin());
    return {std::make_shared<InProcessEngine>(std::move(next.mailboxes), rank),
            std::move(next.members)};
  }

 private:
  std::shared_ptr<Mailboxes> mailboxes_;
  int rank_;
};

}  // namespace

std::vector<std::unique_ptr<PointToPoint>> make_in_process_engines(int world_size) {
  check(world_size >= 1, "in_process: world_size is ", world_size, ", must be at least 1");
  const auto mailboxes = std::make_shared<Mailboxes>(world_size);
  std::vector<std::unique_ptr<PointToPoint>> engines;
  for (int r = 0; r < world_size; ++r) {
    engines.push_back(std::make_unique<InProcessEngine>(mailboxes, r));
  }
  return engines;
}

}  // namespace gradwire
