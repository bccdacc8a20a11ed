// Small messages that members of a control group exchange beside their engine.

#include <algorithm>

#include "gradwire/comm/internal/control_group.h"
#include "gradwire/comm/internal/control_messages.h"

namespace gradwire {
namespace {

// Rounds count apart from the calls of the same group.
constexpr uint64_t rounds_of(uint64_t group) { return ~group; }

std::vector<std::string> unpack(std::string_view text) {
  std::vector<std::string> messages;
  for (uint32_t length = 0; text.size() >= sizeof(length);) {
    std::memcpy(&length, text.data(), sizeof(length));
    text.remove_prefix(sizeof(length));
    messages.emplace_back(text.substr(0, length));
    text.remove_prefix(std::min<size_t>(length, text.size()));
  }
  return messages;
}

}  // namespace

std::vector<std::string> ControlGroup::gather(std::string_view mine, const Gathering& among) {
  const uint64_t group = rounds_of(among.group);
  const size_t together = (mine.size() + sizeof(uint32_t)) * among.members.size();
  check(together <= kMostGathered, among.what, ": ", among.members.size(), " messages of ",
        mine.size(), " bytes, together at most ", kMostGathered, " can be gathered");
  std::unique_lock lock(mutex_);
  if (verdict_) {
    throw *verdict_;
  }
  const uint64_t round = ++calls_[group];
  outbox_.emplace_back(
      Message{.kind = Kind::kGive, .rank = rank_, .group = group, .calls = round},
      mask_of(among.members).append(mine));
  lock.unlock();
  ring();
  lock.lock();
  const auto there = [&] { return gathered_.contains({group, round}); };
  // Without rank 0, member or not, nobody hands the messages on.
  const auto gone = [&] {
    return left_.contains(0) || std::any_of(among.members.begin(), among.members.end(),
                       [this](int r) { return left_.contains(r); });
  };
  changed_.wait_for(lock, among.patience, [&] { return verdict_ || there() || gone(); });
  if (there()) {  // even where the world has ended since
    return std::move(gathered_.extract({group, round}).mapped());
  }
  if (verdict_) {
    throw *verdict_;
  }
  lock.unlock();
  const TransportError error = blame({.group = group, .members = among.members});
  throw TransportError(concat(among.what, ": ", error.what()), error.peer());
}

int ControlGroup::left_of(std::span<const int> members) {
  std::lock_guard lock(mutex_);
  const auto found = std::find_if(members.begin(), members.end(),
                                  [this](int r) { return left_.contains(r); });
  return found == members.end() ? -1 : *found;
}

std::string ControlGroup::mask_of(std::span<const int> members) const {
  std::string mask(static_cast<size_t>(world_size_), '0');
  for (const int member : members) {
    mask[static_cast<size_t>(member)] = '1';
  }
  return mask;
}

/// Rank 0: keeps what was given until all members have, then hands it to them.
void ControlGroup::collect(const Message& message, const std::string& text) {
  const auto world = static_cast<size_t>(world_size_);
  if (rank_ != 0 || text.size() < world) {
    return;
  }
  auto& given = given_[{message.group, message.calls}];
  given[message.rank] = text.substr(world);
  if (given.size() != static_cast<size_t>(std::count(text.begin(), text.begin() + world_size_, '1'))) {
    return;
  }
  std::string all;
  for (const auto& [from, part] : given) {
    const auto length = static_cast<uint32_t>(part.size());
    all.append(reinterpret_cast<const char*>(&length), sizeof(length)).append(part);
  }
  const Message answer{.kind = Kind::kAll, .group = message.group, .calls = message.calls};
  for (const auto& [to, part] : given) {
    if (to == 0) {
      deliver(answer, all);
    } else {
      send(to, answer, all);
    }
  }
  given_.erase({message.group, message.calls});
}

void ControlGroup::deliver(const Message& message, const std::string& text) {
  std::lock_guard lock(mutex_);
  gathered_[{message.group, message.calls}] = unpack(text);
  changed_.notify_all();
}

}  // namespace gradwire
