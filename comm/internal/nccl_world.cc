#include "gradwire/comm/internal/nccl_world.h"

#include <algorithm>

namespace gradwire {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Between looks: queries of events cost microseconds, and a deadline is tens of seconds.
constexpr milliseconds kBusy{2}, kIdle{50};
// NCCL says that something broke; who died comes from the control group, a moment later.
constexpr milliseconds kExplanation{150};
// A rank that left had made all its calls; what it sent last arrives within this, or never.
constexpr milliseconds kFarewell{500};

}  // namespace

std::string NcclCall::what() const {
  return tag.what.empty() ? std::string(verb) : concat(verb, " of ", tag.what);
}

NcclWorld::NcclWorld(const NcclLibrary& library, const Options& options,
                     const ControlInvitation& invitation, Socket listener)
    : library_(library), options_(options), stream_(cuda::make_stream(options.device_index)) {
  control_ = std::make_unique<ControlGroup>(
      ControlGroup::Options{.rank = options.rank,
                            .world_size = options.world_size,
                            .join_within = options.timeout,
                            .ended =
                                [this](const TransportError&) {
                                  std::lock_guard lock(mutex_);
                                  news_ = true;
                                  changed_.notify_all();
                                }},
      invitation, std::move(listener));
  thread_ = std::thread([this] { run(); });
}

NcclWorld::~NcclWorld() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  thread_.join();
  if (aborter_.joinable()) {
    // NCCL's abort may never return. It owns what it works on, so it can be left behind.
    if (aborting_.wait_for(options_.timeout) == std::future_status::ready) {
      aborter_.join();
    } else {
      aborter_.detach();
    }
  }
  control_.reset();  // its thread calls back here
}

TransportError NcclWorld::as_seen_here(const TransportError& reason) {
  std::lock_guard lock(mutex_);
  return calls_.empty() ? reason
                        : TransportError(concat(calls_.front().what(), ": ", reason.what()),
                                         reason.peer());
}

TransportError NcclWorld::explain(const TransportError& error) {
  return control_->verdict(kExplanation).value_or(error);
}

void NcclWorld::close(const TransportError& reason) noexcept {
  control_->abort(reason);  // its news wake the watchdog
}

void NcclWorld::check() {
  if (const auto known = failure()) {
    keep(as_seen_here(*known));
  }
  throw_if_failed();
}

std::vector<std::string> NcclWorld::gather(const NcclMembers& members, std::string_view mine,
                                           std::string_view what) {
  return control_->gather(mine, {.group = members.group,
                                 .members = members.ranks,
                                 .what = what,
                                 .patience = options_.timeout});
}

std::shared_ptr<NcclCommunicator> NcclWorld::join(const NcclMembers& members,
                                                  const NcclConfig& config) {
  const auto place = std::find(members.ranks.begin(), members.ranks.end(), options_.rank);
  NcclMembership membership{.rank = static_cast<int>(place - members.ranks.begin()),
                            .size = static_cast<int>(members.ranks.size()),
                            .who = concat("rank ", options_.rank),
                            .timeout = options_.timeout};
  std::string mine;
  if (membership.rank == 0) {
    const NcclResult result = library_.functions.get_unique_id(&membership.id);
    if (result != NcclResult::kSuccess) {
      throw TransportError(concat("nccl: ", membership.who, ": ncclGetUniqueId failed: ",
                                  library_.functions.get_error_string(result)));
    }
    mine.assign(membership.id.internal, sizeof(membership.id.internal));
  }
  const auto all = gather(members, mine, "nccl: making a communicator");
  if (all.at(0).size() != sizeof(membership.id.internal)) {
    throw TransportError(concat("nccl: rank ", members.ranks[0], " sent an id of ",
                                all.at(0).size(), " bytes, expected ",
                                sizeof(membership.id.internal)),
                         members.ranks[0]);
  }
  std::copy(all[0].begin(), all[0].end(), membership.id.internal);
  const int outer = cuda::exchange_device(options_.device_index);
  std::shared_ptr<NcclCommunicator> communicator;
  try {
    communicator = std::make_shared<NcclCommunicator>(library_, membership, config,
                                                      [this] { check(); });
  } catch (...) {
    cuda::exchange_device(outer);
    throw;
  }
  cuda::exchange_device(outer);
  std::lock_guard lock(mutex_);
  std::erase_if(communicators_, [](const auto& known) { return known.expired(); });
  communicators_.push_back(communicator);
  return communicator;
}

std::unique_ptr<Event> NcclWorld::take_event() {
  {
    std::lock_guard lock(mutex_);
    if (!free_events_.empty()) {
      auto event = std::move(free_events_.back());
      free_events_.pop_back();
      return event;
    }
  }
  return cuda::make_event(options_.device_index);
}

void NcclWorld::watch(NcclCall call) {
  std::lock_guard lock(mutex_);
  news_ = news_ || calls_.empty();  // the watchdog rests longer while there is nothing to watch
  calls_.push_back(std::move(call));
  changed_.notify_all();
}

bool NcclWorld::drain(const NcclCommunicator* communicator, milliseconds within) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, within, [&] {
    return ended_ || std::none_of(calls_.begin(), calls_.end(), [&](const NcclCall& call) {
             return call.communicator == communicator;
           });
  });
}

void NcclWorld::run() {
  cuda::exempt_thread_from_captures();
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const milliseconds pause = calls_.empty() || ended_ ? kIdle : kBusy;
    changed_.wait_for(lock, pause, [&] { return stop_ || news_; });
    news_ = false;
    if (!stop_ && !ended_) {
      look(lock);
    }
  }
}

void NcclWorld::look(std::unique_lock<std::mutex>& lock) {
  try {
    look_at_calls(lock);
  } catch (const Error& error) {
    // The GPU itself: an event cannot be asked, a status cannot be read.
    lock.unlock();
    end_here(TransportError(concat("nccl: rank ", options_.rank, ": ", error.what()),
                            options_.rank));
    lock.lock();
  }
  lock.unlock();
  if (const auto known = failure()) {
    end_here(*known);
  } else {
    look_at_communicators();
  }
  lock.lock();
}

void NcclWorld::look_at_calls(std::unique_lock<std::mutex>& lock) {
  const auto now = steady_clock::now();
  std::vector<NcclCall> passed;
  // Told without the lock, which news take.
  std::optional<TransportError> left;
  std::optional<TroubledCall> late;
  for (auto it = calls_.begin(); it != calls_.end();) {
    NcclCall& call = *it;
    if (!call.has_begun && call.begin->passed()) {
      call.has_begun = true;
      call.began = now;
    }
    if (call.has_begun && call.end->passed()) {
      passed.push_back(std::move(call));
      it = calls_.erase(it);
      continue;
    }
    const int gone = control_->left_of(call.members->ranks);
    if (gone >= 0 && !call.farewell) {
      call.farewell = now;
    }
    if (gone >= 0 && call.has_begun && now - *call.farewell > kFarewell) {
      left.emplace(concat("rank ", gone, " left the group"), gone);
    } else if (!late && call.has_begun && now - call.began > options_.timeout) {
      late = {.group = call.members->group, .members = call.members->ranks, .number = call.sequence};
    }
    ++it;
  }
  if (passed.empty() && !left && !late) {
    return;
  }
  lock.unlock();
  if (left) {
    control_->abort(*left);
  } else if (late && !blamed_) {
    blamed_ = true;
    control_->blame(*late);  // ends the world, which the next look finds
  }
  // After a failure events pass because the kernels were told to give up.
  const bool fine = !failure();
  std::exception_ptr error;
  try {
    for (const NcclCall& call : passed) {
      if (fine && call.status != nullptr) {
        compare_status(call);
      }
    }
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  for (NcclCall& call : passed) {
    free_events_.push_back(std::move(call.begin));
    free_events_.push_back(std::move(call.end));
  }
  changed_.notify_all();
  if (error) {
    std::rethrow_exception(error);
  }
}

void NcclWorld::compare_status(const NcclCall& call) {
  uint64_t words[2] = {};
  cuda::copy(reinterpret_cast<std::byte*>(words), reinterpret_cast<const std::byte*>(call.status),
             sizeof(words), stream_->device().index, stream_->native_handle());
  stream_->wait();
  // The least of all ranks' words and of their complements: complements of each other only if all
  // ranks had the same.
  if (words[0] != ~words[1]) {
    control_->abort(TransportError(concat(call.what(), ": call ", call.sequence,
                                          ": ranks disagree on shape, dtype or spec, seen on rank ",
                                          options_.rank)));
  }
}

void NcclWorld::look_at_communicators() {
  std::vector<std::shared_ptr<NcclCommunicator>> alive;
  {
    std::lock_guard lock(mutex_);
    for (const auto& known : communicators_) {
      if (auto communicator = known.lock()) {
        alive.push_back(std::move(communicator));
      }
    }
  }
  for (const auto& communicator : alive) {
    const std::string error = communicator->async_error();
    if (error.empty()) {
      continue;
    }
    const auto now = steady_clock::now();
    if (!unexplained_since_) {
      unexplained_since_ = now;
    }
    if (now - *unexplained_since_ >= kExplanation) {
      end_here(TransportError(concat("nccl: rank ", options_.rank, " was told: ", error), -1));
    }
    return;
  }
}

void NcclWorld::end_here(const TransportError& reason) {
  control_->abort(reason);
  keep(as_seen_here(failure().value_or(reason)));
  std::lock_guard lock(mutex_);
  if (ended_) {
    return;
  }
  ended_ = true;
  std::vector<std::shared_ptr<NcclCommunicator>> all;
  for (const auto& known : communicators_) {
    if (auto communicator = known.lock()) {
      all.push_back(std::move(communicator));
    }
  }
  std::promise<void> done;
  aborting_ = done.get_future();
  aborter_ = std::thread([all = std::move(all), done = std::move(done)]() mutable {
    for (const auto& communicator : all) {
      communicator->abort();
    }
    all.clear();
    done.set_value();
  });
  changed_.notify_all();
}

}  // namespace gradwire
