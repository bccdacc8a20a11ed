#include "gradwire/comm/internal/control_links.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace gradwire {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kSayEvery{10};   // between frames to one rank
constexpr milliseconds kReachAgain{5};  // before another attempt to connect
constexpr milliseconds kLongestTry{
    200};  // for an attempt; what the system tries again comes too late

template <class T>
bool take_value(std::string& input, T& value) {
  if (input.size() < sizeof(value)) {
    return false;
  }
  std::memcpy(&value, input.data(), sizeof(value));
  input.erase(0, sizeof(value));
  return true;
}

}  // namespace

ControlLinks::ControlLinks(std::vector<std::string> addresses, int rank, std::string secret)
    : addresses_(std::move(addresses)),
      rank_(rank),
      secret_(std::move(secret)),
      links_(addresses_.size()) {
  for (size_t r = 0; r < links_.size(); ++r) {
    links_[r].rank = static_cast<int>(r);
  }
}

void ControlLinks::drop(Link& link, Deadline again) {
  link = Link{.rank = link.rank, .again = again};
}

void ControlLinks::connect(Link& link, Heard& heard) {
  const std::string& address = addresses_[static_cast<size_t>(link.rank)];
  const size_t colon = address.rfind(':');
  const int error =
      start_connecting(address.substr(0, colon), address.substr(colon + 1), link.socket);
  if (error == ECONNREFUSED) {
    heard.gone.push_back(link.rank);
  }
  const auto now = steady_clock::now();
  if (error != 0) {
    drop(link, now + kLongestTry);
    return;
  }
  link.state = State::kConnecting;
  link.waits = true;
  link.heard = now;
}

void ControlLinks::speak(const Words& words, milliseconds silence) {
  const auto now = steady_clock::now();
  const milliseconds every = kSayEvery + milliseconds(links_.size() / 4);
  const milliseconds longest = std::min(kLongestTry, silence / 2);
  frame_ = words.frame;
  for (const int rank : words.to) {
    Link& link = at(rank);
    if (rank == rank_) {
      continue;
    }
    if (link.state != State::kNone && link.waits && now - link.heard > longest) {
      drop(link, now);
    }
    if (link.state == State::kNone && now >= link.again) {
      connect(link, found_);
    } else if (link.state == State::kReady && (words.changed || now - link.said >= every)) {
      link.output += link.seals.client.seal(frame_);
      link.said = now;
      link.heard = link.waits ? link.heard : now;
      link.waits = true;
      write(link);
    }
  }
}

ControlLinks::Heard ControlLinks::listen(milliseconds at_most) {
  Heard heard = std::exchange(found_, {});
  std::vector<pollfd> polled;
  std::vector<Link*> links;
  for (Link& link : links_) {
    if (link.state != State::kNone) {
      const int events = link.output.empty() ? POLLIN : POLLIN | POLLOUT;
      polled.push_back({link.socket.fd(), static_cast<short>(events), 0});
      links.push_back(&link);
    }
  }
  ::poll(polled.data(), polled.size(), static_cast<int>(at_most.count()));
  for (size_t i = 0; i < links.size(); ++i) {
    if ((polled[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0 && !read(*links[i], heard)) {
      drop(*links[i], steady_clock::now() + kReachAgain);
    } else if ((polled[i].revents & POLLOUT) != 0) {
      write(*links[i]);
    }
  }
  return heard;
}

void ControlLinks::write(Link& link) {
  const ssize_t count =
      ::send(link.socket.fd(), link.output.data(), link.output.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (count > 0) {
    link.output.erase(0, static_cast<size_t>(count));
  }  // an error is one of reading too
}

bool ControlLinks::read(Link& link, Heard& heard) {
  char bytes[4096];
  const ssize_t count = ::recv(link.socket.fd(), bytes, sizeof(bytes), MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) {
    return true;
  }
  if (count <= 0) {
    if (count < 0 && errno == ECONNREFUSED) {
      heard.gone.push_back(link.rank);
    }
    return false;
  }
  link.input.append(bytes, static_cast<size_t>(count));
  if (link.state == State::kConnecting && !take_challenge(link)) {
    return false;
  }
  if (link.state == State::kProving && !take_verdict(link)) {
    return false;
  }
  try {
    for (std::string frame;
         link.state == State::kReady && link.seals.server.take(link.input, frame);) {
      heard.frames.push_back(frame);
      link.heard = steady_clock::now();
      link.waits = false;
    }
  } catch (const BadFrame&) {
    return false;  // as a rank that is lost: it is reached anew
  }
  return true;
}

// False when it is not one of ours. True too while bytes are missing; so below.
bool ControlLinks::take_challenge(Link& link) {
  Challenge challenge;
  if (!take_value(link.input, challenge)) {
    return true;
  }
  Proof proof;
  link.server = challenge.nonce;
  link.client = proof.nonce = random_nonce();
  proof.digest = proof_of("client", secret_, link.server, link.client);
  link.output.assign(reinterpret_cast<const char*>(&proof), sizeof(proof));
  link.state = State::kProving;
  write(link);
  return challenge.magic == Challenge::kMagic;
}

bool ControlLinks::take_verdict(Link& link) {
  Verdict verdict;
  if (!take_value(link.input, verdict)) {
    return true;
  }
  link.seals = seals_of(secret_, link.server, link.client);
  link.state = State::kReady;
  link.output += link.seals.client.seal(frame_);
  link.said = steady_clock::now();
  write(link);
  return verdict.outcome == Verdict::kAccepted &&
         same_digest(verdict.digest, proof_of("server", secret_, link.server, link.client));
}

}  // namespace gradwire
