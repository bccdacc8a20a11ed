#include "gradwire/comm/internal/control.h"

#include <algorithm>
#include <sstream>

namespace gradwire {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

}  // namespace

Control::Control(const std::string& host, const TransportOptions& options)
    : Control(listen_on(host, "0"), host, options) {}

Control::Control(Socket listener, const std::string& host, const TransportOptions& options)
    : host_(host),
      secret_(options.job_secret),
      address_(concat(host, ":", local_port_of(listener))),
      rank_(options.rank),
      server_(std::move(listener),
              {concat("rank ", rank_, "'s control socket ", address_), secret_,
               static_cast<size_t>(options.world_size), options.log},
              {[this](Server::Client client, const std::string& request) {
                 answer(client, request);
               },
               [this](Server::Client client) { forget(client); }}) {}

void Control::set_addresses(std::vector<std::string> addresses) {
  std::lock_guard lock(mutex_);
  addresses_ = std::move(addresses);
}

void Control::closed(uint64_t generation, const Reason& reason) {
  std::lock_guard lock(mutex_);
  const Reason& first = reasons_.emplace(generation, reason).first->second;
  std::erase_if(asking_, [&](const auto& asking) {
    if (asking.second != generation) {
      return false;
    }
    server_.send(asking.first, concat("R ", first.culprit, " ", first.text));
    return true;
  });
}

std::optional<Control::Reason> Control::ask(uint64_t generation, int peer, milliseconds patience) {
  const Deadline deadline = steady_clock::now() + patience;
  Attempt ignored{};
  const std::optional<Socket> socket = reach(peer, deadline, ignored);
  if (!socket) {
    return std::nullopt;
  }
  try {
    write_frame(*socket, concat("W ", generation), deadline);
    std::istringstream answer(read_frame(*socket, deadline));
    std::string kind;
    Reason reason;
    if (answer >> kind >> reason.culprit && kind == "R") {
      std::getline(answer >> std::ws, reason.text, '\0');
      return reason;
    }
  } catch (const TransportError&) {
    // It died, or knows no more than that its connection to this rank broke.
  }
  return std::nullopt;
}

std::string Control::refusal(uint64_t generation, int rank) const {
  if (generation == generation_) {
    return {};
  }
  const auto members = went_on_.find(generation);
  return members == went_on_.end()
             ? concat("rebuild: rank ", rank, " speaks of generation ", generation,
                      " of the group, expected ", generation_)
             : left_behind(rank, members->second.members);
}

bool Control::hand_on(Server::Client client, std::string_view kind, uint64_t generation, int rank) {
  const auto passed = went_on_.find(generation);
  if (passed == went_on_.end() ||
      !std::binary_search(passed->second.members.begin(), passed->second.members.end(), rank)) {
    return false;
  }
  // Who asks how far this rank is asks for the decision then.
  server_.send(client, kind == "J"   ? passed->second.told
                       : kind == "P" ? std::string("S ") + static_cast<char>(State::kCollecting)
                                     : std::string("N"));
  return true;
}

void Control::answer(Server::Client client, const std::string& request) {
  std::istringstream words(request);
  std::string kind;
  uint64_t generation = 0;
  int rank = -1;
  words >> kind >> generation;
  std::lock_guard lock(mutex_);
  if (kind == "W") {
    if (const auto reason = reasons_.find(generation); reason != reasons_.end()) {
      server_.send(client, concat("R ", reason->second.culprit, " ", reason->second.text));
    } else {
      asking_.emplace_back(client, generation);
    }
    return;
  }
  words >> rank;
  if (!words || (kind != "P" && kind != "J" && kind != "L")) {
    server_.send(client, "E rebuild: a request that is none");
    return;
  }
  if (hand_on(client, kind, generation, rank)) {
    return;
  }
  if (const std::string why = refusal(generation, rank); !why.empty()) {
    server_.send(client, "E " + why);
    return;
  }
  if (kind == "L" || (kind == "J" && state_ == State::kFollowing)) {
    joins_.erase(rank);
    server_.send(client, "N");
    return;
  }
  int64_t left_ms = 0;
  if (kind == "J" && words >> left_ms && rank >= 0 && rank < static_cast<int>(addresses_.size())) {
    joins_[rank] = {client, steady_clock::now() + milliseconds(left_ms)};
    joined_.notify_all();
  }
  server_.send(client, std::string("S ") + static_cast<char>(state_));
}

void Control::forget(Server::Client client) {
  std::lock_guard lock(mutex_);
  std::erase_if(asking_, [client](const auto& asking) { return asking.first == client; });
  std::erase_if(joins_, [client](const auto& entry) { return entry.second.client == client; });
  joined_.notify_all();
}

std::optional<Socket> Control::reach(int rank, Deadline deadline, Attempt& why_not) const {
  std::string address;
  {
    std::lock_guard lock(mutex_);
    address = addresses_[static_cast<size_t>(rank)];
  }
  const size_t colon = address.rfind(':');
  why_not = Attempt::kSilent;
  try {
    Socket socket;
    const int error =
        connect_once(address.substr(0, colon), address.substr(colon + 1), deadline, socket);
    if (error != 0) {
      why_not = error == ECONNREFUSED ? Attempt::kGone : Attempt::kSilent;
      return std::nullopt;
    }
    why_not = Attempt::kNext;  // it may be ending: a second attempt tells
    prove(socket, secret_, deadline);
    return socket;
  } catch (const WrongPeer&) {
    why_not = Attempt::kSilent;  // its port is another's by now
  } catch (const TransportError&) {
    why_not = steady_clock::now() >= deadline ? Attempt::kSilent : why_not;
  }
  return std::nullopt;
}

std::string Control::told(const Agreement& agreement) {
  std::string message = concat("G ", agreement.store, " ", agreement.server);
  for (const int member : agreement.members) {
    message += concat(" ", member);
  }
  return message;
}

void Control::go_on(const Agreement& agreement) {
  const std::vector<int>& members = agreement.members;
  std::lock_guard lock(mutex_);
  std::vector<std::string> addresses;
  for (const int member : members) {
    addresses.push_back(addresses_[static_cast<size_t>(member)]);
  }
  for (const auto& [rank, join] : joins_) {
    if (!std::binary_search(members.begin(), members.end(), rank)) {
      server_.send(join.client, "E " + left_behind(rank, members));
    }
  }
  joins_.clear();
  addresses_ = std::move(addresses);
  rank_ = static_cast<int>(std::lower_bound(members.begin(), members.end(), rank_) -
                           members.begin());
  went_on_[generation_] = {members, told(agreement)};
  ++generation_;
  state_ = State::kIdle;
}

void Control::set_state(State state) {
  std::lock_guard lock(mutex_);
  state_ = state;
}

}  // namespace gradwire
