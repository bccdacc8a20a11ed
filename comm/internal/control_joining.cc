// How the ranks of a control group find each other, and strangers do not.

#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "gradwire/comm/internal/control_group.h"
#include "gradwire/comm/internal/control_messages.h"
#include "gradwire/comm/internal/handshake.h"
#include "gradwire/comm/internal/within.h"

namespace gradwire {
namespace {

using std::chrono::steady_clock;

std::string_view bytes_of(const std::array<unsigned char, 16>& secret) {
  return {reinterpret_cast<const char*>(secret.data()), secret.size()};
}

}  // namespace

ControlGroup::Place ControlGroup::open_place(const std::string& host) {
  Place place;
  check(!host.empty() && host.size() < place.invitation.host.size(), "control group: host is '",
        host, "', must be a numeric address");
  place.listener = listen_on(host, "0");
  sockaddr_storage address{};
  socklen_t length = sizeof(address);
  if (getsockname(place.listener.fd(), reinterpret_cast<sockaddr*>(&address), &length) != 0 ||
      getrandom(place.invitation.secret.data(), place.invitation.secret.size(), 0) !=
          static_cast<ssize_t>(place.invitation.secret.size())) {
    throw TransportError(concat("control group: ", std::strerror(errno)), 0);
  }
  place.invitation.port =
      ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                          : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
  std::copy(host.begin(), host.end(), place.invitation.host.begin());
  return place;
}

ControlGroup::ControlGroup(const Options& options, const ControlInvitation& invitation,
                           Socket listener)
    : rank_(options.rank),
      world_size_(options.world_size),
      ended_(options.ended),
      bell_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      links_(static_cast<size_t>(options.world_size)) {
  if (!bell_) {
    throw TransportError(concat("control group: eventfd: ", std::strerror(errno)), rank_);
  }
  if (rank_ == 0) {
    welcome_all(invitation, listener, options.join_within);
  } else {
    knock(invitation, options.join_within);
  }
  thread_ = std::thread([this] { run(); });
}

ControlGroup::~ControlGroup() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  ring();
  thread_.join();
}

// Connections that have not said who they are, beside those of the ranks that are missing.
constexpr size_t kMostVisitors = 256;

void ControlGroup::welcome_all(const ControlInvitation& invitation, const Socket& listener,
                               std::chrono::milliseconds join_within) {
  const Deadline join_by = steady_clock::now() + join_within;
  std::vector<Link> visitors;
  std::vector<pollfd> polled;
  while (!missing().empty()) {
    polled.assign({{listener.fd(), POLLIN, 0}});
    for (const Link& visitor : visitors) {
      polled.push_back({visitor.socket.fd(), POLLIN, 0});
    }
    const int count = ::poll(polled.data(), polled.size(), control::left_until(join_by));
    if (count == 0 || steady_clock::now() >= join_by) {
      throw TransportError(
          concat("control group: ", missing(), " did not come ", within(join_within)));
    }
    for (size_t i = visitors.size(); count > 0 && i-- > 0;) {
      if (polled[i + 1].revents != 0 && !admit(visitors[i])) {
        visitors.erase(visitors.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    if (count > 0 && polled[0].revents != 0) {
      Socket socket(::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (socket) {
        visitors.push_back({std::move(socket),
                            {},
                            {bytes_of(invitation.secret), "client"},
                            {bytes_of(invitation.secret), "server"}});
        if (visitors.size() > kMostVisitors) {  // whoever is silent longest goes first
          visitors.erase(visitors.begin());
        }
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // out of descriptors: no spinning
      }
    }
  }
  send_to_all({.kind = Kind::kWelcome}, {});
}

/// False when the visitor is to be forgotten: it became a link, or it is none of ours.
bool ControlGroup::admit(Link& visitor) {
  Message hello;
  std::string nothing;
  if (!control::receive(visitor.socket, visitor.input)) {
    return false;
  }
  try {
    // Its seal shows that it has the secret.
    if (!control::take_message(visitor.input, visitor.in, hello, nothing)) {
      return visitor.input.size() < FrameSeal::kHeadBytes + sizeof(hello);
    }
  } catch (const BadFrame&) {
    return false;
  }
  if (hello.kind == Kind::kHello && hello.rank > 0 &&
      hello.rank < world_size_ && !links_[static_cast<size_t>(hello.rank)].socket) {
    links_[static_cast<size_t>(hello.rank)] = std::move(visitor);
  }
  return false;
}

void ControlGroup::knock(const ControlInvitation& invitation,
                         std::chrono::milliseconds join_within) {
  const Deadline join_by = steady_clock::now() + join_within;
  Link& link = links_[0];
  Message welcome;
  try {
    link.socket = connect_to(invitation.host.data(), std::to_string(invitation.port), join_by);
    link.out = {bytes_of(invitation.secret), "client"};
    link.in = {bytes_of(invitation.secret), "server"};
    control::write_message(link.socket, link.out, Message{.kind = Kind::kHello, .rank = rank_}, {});
    const std::string bytes = read_frame(link.socket, link.in, join_by);
    if (bytes.size() == sizeof(welcome)) {
      std::memcpy(&welcome, bytes.data(), sizeof(welcome));
    }
  } catch (const TransportError& error) {
    const bool late = steady_clock::now() >= join_by;
    throw TransportError(
        concat("control group: rank 0", late ? concat(" let nobody in ", within(join_within)) : "",
               ": ", error.what()),
        0);
  }
  if (welcome.magic != Message{}.magic || welcome.kind != Kind::kWelcome) {
    throw TransportError("control group: rank 0 sent no welcome", 0);
  }
}

std::string ControlGroup::missing() const {
  std::string names;
  for (int r = 1; r < world_size_; ++r) {
    if (!links_[static_cast<size_t>(r)].socket) {
      names += concat(names.empty() ? "rank " : ", rank ", r);
    }
  }
  return names;
}

}  // namespace gradwire
