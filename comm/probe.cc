#include "gradwire/comm/probe.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "gradwire/comm/exchange/message.h"
#include "gradwire/comm/fingerprint.h"

namespace gradwire {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRepeats = 3;  // of which the fastest counts
constexpr size_t kSmallest = 64, kGrowth = 8;

/// Calls that both sides of a probe make.
class Probe {
 public:
  Probe(Transport& transport, Context& context, size_t most_bytes)
      : transport_(transport),
        context_(context),
        messages_(transport.world_size(), most_bytes, transport.traits().device),
        tag_{fnv1a("probe"), "the probe"} {}

  /// Seconds per message of the fastest of a few all-gathers.
  double seconds_of(size_t bytes) {
    double fastest = std::numeric_limits<double>::infinity();
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      gather(kSmallest);  // all are here
      const auto begin = Clock::now();
      gather(bytes);
      const std::chrono::duration<double> took = Clock::now() - begin;
      fastest = std::min(fastest, took.count() / (transport_.world_size() - 1));
    }
    return std::max(fastest, 1e-9);  // a clock may stand still
  }

  /// Rank 0's value, on every rank.
  template <class T>
  T agreed(T value) {
    const std::string_view own(reinterpret_cast<const char*>(&value), sizeof value);
    const std::string first = transport_.gather_words(own, sizeof value, tag_, context_).at(0);
    std::memcpy(&value, first.data(), std::min(first.size(), sizeof value));
    return value;
  }

 private:
  /// Messages of so many bytes; waits.
  void gather(size_t bytes) {
    const auto own = static_cast<size_t>(transport_.rank());
    messages_.length(own) = bytes;
    const Parts room = messages_.parts();
    const Parts all{room.bytes.first(bytes * room.lengths.size()), bytes, room.lengths};
    transport_.all_gather(messages_.length(own), all.bytes.subspan(own * bytes, bytes), all, tag_,
                          context_);
    context_.stream.wait();
    transport_.throw_if_failed();  // of which a GPU's stream says nothing
  }

  Transport& transport_;
  Context& context_;
  Messages messages_;
  CallTag tag_;
};

}  // namespace

LinkCosts fit_link(std::span<const MessageTime> times) {
  check(!times.empty(), "fit_link: 0 measurements, expected at least one");
  for (const MessageTime& time : times) {
    check(time.seconds > 0, "fit_link: a message took ", time.seconds, " s, must be positive");
  }
  const auto by_bytes = [](const MessageTime& a, const MessageTime& b) {
    return a.bytes < b.bytes;
  };
  const auto [first, last] = std::minmax_element(times.begin(), times.end(), by_bytes);
  const double more = last->bytes - first->bytes;
  const double beta = more > 0 ? std::max(0.0, (last->seconds - first->seconds) / more) : 0.0;
  return {std::max(0.0, first->seconds - beta * first->bytes), beta};
}

LinkCosts probe_link(Transport& transport, Context& context, const ProbeOptions& options) {
  check(options.most_bytes >= kSmallest, "probe: most_bytes is ", options.most_bytes,
        ", must be at least ", kSmallest);
  check(options.budget.count() >= 0, "probe: budget is ", options.budget.count(),
        " us, must not be negative");
  if (transport.world_size() == 1) {
    return {};
  }
  Probe probe(transport, context, options.most_bytes);
  probe.seconds_of(kSmallest);  // connections and buffers warm up
  std::vector<MessageTime> times;
  for (size_t bytes = kSmallest, growth = kGrowth; growth > 1;) {
    const double seconds = probe.seconds_of(bytes);
    times.push_back({static_cast<double>(bytes), seconds});
    // What a message takes to begin it takes at any size: only what bytes have added may grow.
    const double added = seconds - times.front().seconds;
    const double fits = std::chrono::duration<double>(options.budget).count() /
                        (std::max(added, 1e-9) * kRepeats * (transport.world_size() - 1));
    growth = probe.agreed(static_cast<size_t>(std::clamp<double>(fits, 0, kGrowth)));
    const size_t next = std::min(bytes * growth, options.most_bytes);
    growth = next > bytes ? growth : 0;
    bytes = next;
  }
  return probe.agreed(fit_link(times));
}

}  // namespace gradwire
