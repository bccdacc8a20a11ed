// How the protocol of succession.h is driven: the caller's thread connects, another one speaks with
// all other ranks, and the server's answers them.

#include <algorithm>
#include <thread>

#include "gradwire/comm/internal/control.h"
#include "gradwire/comm/internal/control_links.h"

namespace gradwire {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using News = SuccessionProtocol::News;

constexpr milliseconds kLeastSilence{50};  // of RebuildOptions::silence

int place_of(int rank, const std::vector<int>& ranks) {
  return static_cast<int>(std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

}  // namespace

int64_t milliseconds_now() {
  return std::chrono::duration_cast<milliseconds>(steady_clock::now().time_since_epoch()).count();
}

void Control::settle() {
  groups_.emplace(protocol_->generation(), protocol_->base());
  in_vain_ = protocol_->connects_in_vain();
  for (News news = protocol_->take_news(); news.kind != News::Kind::kNone;
       news = protocol_->take_news()) {
    news_.push_back(std::move(news));
    settled_.notify_all();
  }
}

std::string Control::open_place() {
  Socket listener = listen_on(host_, "0");
  const std::string place = concat(host_, ":", local_port_of(listener));
  places_[place] = std::move(listener);
  return place;
}

Control::Agreement Control::agreement_of(const News& news, uint64_t generation) {
  Agreement agreement;
  agreement.generation = generation;
  agreement.members = news.members;
  agreement.rank = place_of(rank_, news.members);
  if (news.kind == News::Kind::kConnect) {
    agreement.store = news.place;
    agreement.server = place_of(news.leader, news.members);
    agreement.listener = std::move(places_[news.place]);
    agreement.given_up = [this] { return in_vain_.load(); };
  }
  return agreement;
}

void Control::drive(milliseconds silence) {
  ControlLinks links(addresses_, rank_, secret_);
  bool stops = false;
  do {
    stops = !driven_;  // once more then, for the last word
    ControlLinks::Words words;
    {
      std::lock_guard lock(mutex_);
      protocol_->tick(milliseconds_now());
      settle();
      words.to = protocol_->base();
      words.changed = protocol_->take_change();
      words.frame = protocol_->frame(milliseconds_now());
    }
    links.speak(words, silence);
    const ControlLinks::Heard heard = links.listen(stops ? milliseconds(0) : milliseconds(2));
    std::lock_guard lock(mutex_);
    for (const int rank : heard.gone) {
      protocol_->found_gone(rank, milliseconds_now());
    }
    for (const std::string& frame : heard.frames) {
      protocol_->heard(frame, milliseconds_now());
    }
    settle();
  } while (!stops);
}

Control::Agreement Control::agree(uint64_t generation, const RebuildOptions& options,
                                  const Connecting& how) {
  const milliseconds silence = std::max(options.silence, kLeastSilence);
  const Deadline deadline = steady_clock::now() + options.timeout;
  std::unique_lock lock(mutex_);
  news_.clear();
  protocol_->begin(milliseconds_now(),
                   {options.timeout.count(), silence.count(), [this] { return open_place(); }});
  settle();
  driven_ = true;
  std::thread driver([this, silence] { drive(silence); });
  const auto stop = [&] {
    lock.unlock();
    driven_ = false;
    driver.join();
    places_.clear();
  };
  try {
    for (;;) {
      settled_.wait(lock, [this] { return !news_.empty(); });
      const News news = std::move(news_.front());
      news_.pop_front();
      Agreement agreement = agreement_of(news, protocol_->generation());
      if (news.kind == News::Kind::kFormed) {
        stop();
        // As the group that was rebuilt counts them.
        for (int& member : agreement.members) {
          member = place_of(member, groups_.at(generation));
        }
        return agreement;
      }
      if (news.kind == News::Kind::kFailed) {
        throw TransportError(news.reason);
      }
      lock.unlock();
      std::optional<TransportError> failure;
      try {
        if (news.kind == News::Kind::kConnect) {
          how.connect(agreement);
        } else {
          how.disconnect();
        }
      } catch (const TransportError& error) {
        failure = error;
      }
      lock.lock();
      if (news.kind == News::Kind::kConnect) {
        protocol_->connected(!failure, milliseconds_now());
        settle();
        if (failure && steady_clock::now() >= deadline) {
          throw TransportError(*failure);
        }
      }
    }
  } catch (...) {
    if (!lock.owns_lock()) {
      lock.lock();
    }
    protocol_->give_up();
    stop();
    throw;
  }
}

}  // namespace gradwire
