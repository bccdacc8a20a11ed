#include "gradwire/comm/internal/succession_frame.h"

#include <algorithm>
#include <sstream>

namespace gradwire {
namespace {

// Above any group; keeps a count from becoming an allocation.
constexpr size_t kMost = 1 << 16;

class Writer {
 public:
  Writer& operator<<(const Attempt& attempt) {
    out_ << ' ' << attempt.leader << ' ' << attempt.number;
    return *this << attempt.members << attempt.votes << attempt.place;
  }
  template <class T>
  Writer& operator<<(const std::vector<T>& list) {
    out_ << ' ' << list.size();
    for (const T& entry : list) {
      *this << entry;
    }
    return *this;
  }
  Writer& operator<<(const std::pair<int, uint64_t>& entry) {
    return *this << entry.first << entry.second;
  }
  Writer& operator<<(const std::string& text) {
    out_ << ' ' << text.size() << ' ' << text;
    return *this;
  }
  template <class T>
    requires std::is_integral_v<T>
  Writer& operator<<(T value) {
    out_ << ' ' << +value;
    return *this;
  }
  std::string text() const { return "S" + out_.str(); }

 private:
  std::ostringstream out_;
};

class Reader {
 public:
  explicit Reader(const std::string& text) : in_(text) {}
  Reader& operator>>(Attempt& attempt) {
    in_ >> attempt.leader >> attempt.number;
    *this >> attempt.members >> attempt.votes >> attempt.place;
    if (attempt.members.size() != attempt.votes.size() ||
        !std::is_sorted(attempt.members.begin(), attempt.members.end())) {
      in_.setstate(std::ios::failbit);
    }
    return *this;
  }
  template <class T>
  Reader& operator>>(std::vector<T>& list) {
    size_t count = 0;
    if (in_ >> count && count > kMost) {
      in_.setstate(std::ios::failbit);
    }
    for (size_t i = 0; i < count && in_; ++i) {
      T entry{};
      *this >> entry;
      list.push_back(std::move(entry));
    }
    return *this;
  }
  Reader& operator>>(std::pair<int, uint64_t>& entry) {
    return *this >> entry.first >> entry.second;
  }
  Reader& operator>>(std::string& text) {
    size_t size = 0;
    in_ >> size;
    if (in_ && size <= kMost) {
      text.resize(size);
      in_.ignore(1);
      in_.read(text.data(), static_cast<std::streamsize>(size));
    } else {
      in_.setstate(std::ios::failbit);
    }
    return *this;
  }
  template <class T>
    requires std::is_integral_v<T>
  Reader& operator>>(T& value) {
    in_ >> value;
    return *this;
  }
  Reader& operator>>(char& value) {
    int code = 0;
    in_ >> code;
    value = static_cast<char>(code);
    return *this;
  }
  bool fine() const { return !in_.fail(); }

 private:
  std::istringstream in_;
};

}  // namespace

bool Attempt::has(int rank) const {
  return std::binary_search(members.begin(), members.end(), rank);
}

uint64_t Attempt::vote_of(int rank) const {
  const auto at = std::lower_bound(members.begin(), members.end(), rank);
  return votes[static_cast<size_t>(at - members.begin())];
}

std::string SuccessionFrame::to_text() const {
  Writer out;
  out << rank << sequence << history << vote << static_cast<char>(phase) << follows << left_ms
      << hears << gone << std::vector<Attempt>(decision ? 1 : 0, decision.value_or(Attempt{}))
      << pending << failure << failed;
  return out.text();
}

std::optional<SuccessionFrame> SuccessionFrame::parse(const std::string& text) {
  if (!text.starts_with("S ")) {
    return std::nullopt;
  }
  SuccessionFrame frame;
  char phase = 0;
  std::vector<Attempt> decisions;
  Reader in(text.substr(1));
  in >> frame.rank >> frame.sequence >> frame.history >> frame.vote >> phase >> frame.follows >>
      frame.left_ms >> frame.hears >> frame.gone >> decisions >> frame.pending >> frame.failure >>
      frame.failed;
  if (!in.fine()) {
    return std::nullopt;
  }
  frame.phase = static_cast<Phase>(phase);
  if (!decisions.empty()) {
    frame.decision = std::move(decisions.front());
  }
  return frame;
}

}  // namespace gradwire
