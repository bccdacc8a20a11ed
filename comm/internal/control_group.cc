#include "gradwire/comm/internal/control_group.h"

#include <poll.h>
#include <unistd.h>

#include "gradwire/comm/internal/control_messages.h"

namespace gradwire {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// A rank that runs answers well within this.
constexpr milliseconds kAnswerWithin{200};
}  // namespace

// ---- what other threads ask for

void ControlGroup::abort(const TransportError& reason) noexcept {
  try {
    end(reason);
    ring();
  } catch (const std::exception&) {
    // Out of memory while keeping the reason; there is nobody to tell.
  }
}

void ControlGroup::entered(uint64_t group) {
  std::lock_guard lock(mutex_);
  ++calls_[group];
}

std::optional<TransportError> ControlGroup::verdict(milliseconds patience) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, patience, [this] { return verdict_.has_value(); });
  return verdict_;
}

TransportError ControlGroup::blame(const TroubledCall& call) {
  const bool late = call.trouble.empty();
  {
    std::lock_guard lock(mutex_);
    if (!verdict_ && rank_ != 0 && left_.contains(0)) {
      // It hands messages on, and is no longer there to be asked.
      verdict_.emplace(late ? std::string("rank 0 has left the group, and nobody else knows who "
                                          "keeps it waiting")
                            : concat("rank ", rank_, ": ", call.trouble),
                       late ? 0 : rank_);
      changed_.notify_all();
    }
    // Who takes part, a character for each rank of the world; then what to say if it was nobody.
    std::string text = mask_of(call.members);
    text += late ? concat("rank ", rank_,
                          " heard nothing until the deadline, though all ranks are in the call")
                 : concat("rank ", rank_, ": ", call.trouble);
    // Nobody is behind call 0.
    late_ = {{.kind = Kind::kLate,
              .rank = rank_,
              .group = call.group,
              .calls = late ? call.number.value_or(calls_[call.group]) : 0},
             std::move(text)};
  }
  ring();
  if (const auto known = verdict(kMostPatience)) {
    return *known;
  }
  const TransportError silent("rank 0 stayed silent past the deadline, and when asked why", 0);
  abort(silent);
  return silent;
}

void ControlGroup::ring() {
  const uint64_t one = 1;
  // Fails only when the bell has been rung 2^64 times and not been heard.
  [[maybe_unused]] const ssize_t written = ::write(bell_.fd(), &one, sizeof(one));
}

// ---- the thread

void ControlGroup::run() {
  while (do_as_told()) {
    wait_for_news();
    if (question_ && steady_clock::now() >= question_->until) {
      judge();
    }
  }
  send_to_all({.kind = Kind::kBye, .rank = rank_}, {});
}

/// What other threads have left to do. False when the group is to be left.
bool ControlGroup::do_as_told() {
  std::optional<TransportError> news;
  std::optional<std::pair<Message, std::string>> late;
  bool leaving = false;
  std::vector<std::pair<Message, std::string>> outbox;
  {
    std::lock_guard lock(mutex_);
    outbox.swap(outbox_);
    if (verdict_ && !told_) {
      told_ = true;
      news = verdict_;
    }
    late = std::exchange(late_, std::nullopt);
    // Seen with the news: the bell that rang for both has been heard, and does not ring again.
    leaving = stop_;
  }
  if (news) {
    const std::string what = news->what();
    send_to_all({.kind = Kind::kEnded, .rank = news->peer() >= 0 ? news->peer() : rank_},
                news->peer() >= 0 ? what : concat("rank ", rank_, " ended the group: ", what));
    ended_(*news);
  }
  for (const auto& [message, text] : outbox) {
    if (rank_ == 0) {
      take(0, message, text);
    } else {
      send(0, message, text);
    }
  }
  if (late && rank_ == 0) {
    take(0, late->first, late->second);
  } else if (late) {
    send(0, late->first, late->second);
  }
  return !leaving;
}

void ControlGroup::wait_for_news() {
  std::vector<pollfd> polled = {{bell_.fd(), POLLIN, 0}};
  std::vector<int> ranks = {-1};
  for (int r = 0; r < world_size_; ++r) {
    if (const Socket& socket = links_[static_cast<size_t>(r)].socket) {
      polled.push_back({socket.fd(), POLLIN, 0});
      ranks.push_back(r);
    }
  }
  const int count =
      ::poll(polled.data(), polled.size(), question_ ? control::left_until(question_->until) : -1);
  if (count <= 0) {
    return;  // a question's time is up, or a signal
  }
  if (polled[0].revents != 0) {
    uint64_t rung = 0;
    [[maybe_unused]] const ssize_t heard = ::read(bell_.fd(), &rung, sizeof(rung));
  }
  for (size_t i = 1; i < polled.size(); ++i) {
    if (polled[i].revents != 0) {
      read_from(ranks[i]);
    }
  }
}

void ControlGroup::read_from(int rank) {
  Link& link = links_[static_cast<size_t>(rank)];
  bool open = control::receive(link.socket, link.input);
  std::string why = "died or closed its connections";
  Message message;
  std::string text;
  try {
    while (control::take_message(link.input, link.in, message, text)) {
      take(rank, message, text);
    }
  } catch (const BadFrame& bad) {
    open = false;
    why = concat("is lost: ", bad.what());
  }
  if (!open) {
    link.socket = Socket();
    if (!left_.contains(rank)) {
      end(TransportError(concat("rank ", rank, " ", why), rank));
    }
  }
}

void ControlGroup::take(int from, const Message& message, const std::string& text) {
  switch (message.kind) {
    case Kind::kEnded:
      end(TransportError(text, message.rank));
      break;
    case Kind::kBye: {
      std::unique_lock lock(mutex_);
      left_.insert(message.rank);
      changed_.notify_all();
      lock.unlock();
      if (rank_ == 0) {
        send_to_all(message, text);
      }
      break;
    }
    case Kind::kLate:
      ask(message, text);
      break;
    case Kind::kWhere: {
      std::unique_lock lock(mutex_);
      const Message here{.kind = Kind::kHere,
                         .rank = rank_,
                         .group = message.group,
                         .calls = calls_[message.group]};
      lock.unlock();
      send(0, here, {});
      break;
    }
    case Kind::kHere:
      if (question_ && question_->group == message.group) {
        question_->answers[from] = message.calls;
        if (question_->answers.size() == question_->members.size()) {
          judge();
        }
      }
      break;
    case Kind::kGive:
      collect(message, text);
      break;
    case Kind::kAll:
      deliver(message, text);
      break;
    case Kind::kHello:
    case Kind::kWelcome:
      break;  // said once, before the thread began
  }
}

void ControlGroup::ask(const Message& message, const std::string& text) {
  if (question_ || rank_ != 0 || text.size() < static_cast<size_t>(world_size_)) {
    return;  // one question at a time: its answer ends the world
  }
  question_.emplace();
  question_->group = message.group;
  question_->calls = message.calls;
  question_->asker = message.rank;
  question_->else_say = text.substr(static_cast<size_t>(world_size_));
  question_->until = steady_clock::now() + kAnswerWithin;
  for (int r = 0; r < world_size_; ++r) {
    if (text[static_cast<size_t>(r)] != '1') {
      continue;
    }
    question_->members.push_back(r);
    if (r == 0) {
      std::lock_guard lock(mutex_);
      question_->answers[0] = calls_[message.group];
    } else {
      send(r, {.kind = Kind::kWhere, .group = message.group}, {});
    }
  }
}

/// Names a rank that left, did not answer, or is the furthest behind.
void ControlGroup::judge() {
  const Question question = std::move(*question_);
  question_.reset();
  int culprit = -1;
  uint64_t furthest = question.calls;
  for (const int member : question.members) {
    const auto answer = question.answers.find(member);
    if (left_.contains(member)) {
      end(TransportError(concat("rank ", member, " has left the group"), member));
      return;
    }
    const uint64_t calls = answer == question.answers.end() ? 0 : answer->second;
    if (calls < furthest) {
      furthest = calls;
      culprit = member;
    }
  }
  end(culprit >= 0
          ? TransportError(concat("rank ", culprit, " stayed silent past the deadline"), culprit)
          : TransportError(question.else_say, question.asker));
}

void ControlGroup::end(const TransportError& reason) {
  std::lock_guard lock(mutex_);
  if (!verdict_) {
    verdict_ = reason;
    changed_.notify_all();
  }
}

void ControlGroup::send(int to, const Message& message, std::string_view text) {
  Link& link = links_[static_cast<size_t>(to)];
  if (!link.socket) {
    return;
  }
  try {
    control::write_message(link.socket, link.out, message, text);
  } catch (const TransportError&) {
    // The link is broken, which reading from it will tell with more to say.
  }
}

void ControlGroup::send_to_all(const Message& message, std::string_view text) {
  for (int r = 0; r < world_size_; ++r) {
    send(r, message, text);
  }
}

}  // namespace gradwire
