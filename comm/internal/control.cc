#include "gradwire/comm/internal/control.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include "gradwire/comm/internal/control_links.h"

namespace gradwire {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

Control::Control(const std::string& host, const TransportOptions& options)
    : Control(listen_on(host, "0"), host, options) {}

Control::Control(Socket listener, const std::string& host, const TransportOptions& options)
    : host_(host),
      secret_(options.job_secret),
      address_(concat(host, ":", local_port_of(listener))),
      rank_(options.rank),
      protocol_(make_succession(options.rank, options.world_size)),
      server_(
          std::move(listener),
          {concat("rank ", rank_, "'s control socket ", address_), secret_,
           static_cast<size_t>(options.world_size), options.log},
          {[this](Server::Client client, const std::string& request) { answer(client, request); },
           [this](Server::Client client) { forget(client); }}) {}

void Control::set_addresses(std::vector<std::string> addresses) {
  std::lock_guard lock(mutex_);
  addresses_ = std::move(addresses);
  groups_[0] = protocol_->base();
}

std::vector<std::string> Control::addresses_of(uint64_t generation) const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> addresses;
  for (const int rank : groups_.at(generation)) {
    addresses.push_back(addresses_[static_cast<size_t>(rank)]);
  }
  return addresses;
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
  std::optional<ProvenSocket> socket =
      reach(addresses_of(generation)[static_cast<size_t>(peer)], deadline);
  if (!socket) {
    return std::nullopt;
  }
  try {
    socket->write(concat("W ", generation), deadline);
    std::istringstream answer(socket->read(deadline));
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

void Control::answer(Server::Client client, const std::string& request) {
  std::lock_guard lock(mutex_);
  if (!request.starts_with("W ")) {
    protocol_->heard(request, milliseconds_now());
    settle();
    server_.send(client, protocol_->frame(milliseconds_now()));
    return;
  }
  uint64_t generation = 0;
  std::istringstream(request.substr(2)) >> generation;
  if (const auto reason = reasons_.find(generation); reason != reasons_.end()) {
    server_.send(client, concat("R ", reason->second.culprit, " ", reason->second.text));
  } else {
    asking_.emplace_back(client, generation);
  }
}

void Control::forget(Server::Client client) {
  std::lock_guard lock(mutex_);
  std::erase_if(asking_, [client](const auto& asking) { return asking.first == client; });
}

std::optional<ProvenSocket> Control::reach(const std::string& address, Deadline deadline) const {
  const size_t colon = address.rfind(':');
  try {
    Socket socket;
    const int error =
        connect_once(address.substr(0, colon), address.substr(colon + 1), deadline, socket);
    if (error == 0) {
      return ProvenSocket(std::move(socket), secret_, deadline);
    }
  } catch (const TransportError&) {
    // It has just ended, is silent, or its port is another's by now.
  }
  return std::nullopt;
}

}  // namespace gradwire
