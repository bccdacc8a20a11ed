// Which gradients a step has: ready, accumulated, unused on this rank, unused on all.

#include <algorithm>
#include <cstring>

#include "gradwire/comm/fingerprint.h"
#include "gradwire/comm/internal/reducer_state.h"

namespace gradwire {
namespace {

constexpr size_t kNamedParameters = 5;  // in a message about missing ones

bool not_ready(Given given) { return given != Given::kReady; }

}  // namespace

void Reducer::State::check_not_ready(std::string_view call, ParamId p) const {
  throw_if_finished();
  check(p < given.size(), call, ": parameter ", p, " is not in the plan of ", given.size(),
        " parameters");
  check(not_ready(given[p]), call, ": parameter ", p, " ('", plan.parameters[p].name,
        "') is already ready in step ", step, ", expected once a step");
}

void Reducer::State::set_ready(ParamId p) {
  if (!any_ready) {
    begin_stage();
  }
  given[p] = Given::kReady;
  ready_us[p] = now_us();
  const BucketId bucket = plan.places[p].bucket;
  --progress[bucket].missing;
  note_ready(bucket, ready_us[p]);
}

void Reducer::State::set_unused(ParamId p) {
  if (given[p] == Given::kNothing) {
    const auto [bucket, offset] = plan.places[p];
    const Gradient gradient = buckets[bucket].gradient(offset, plan.parameters[p].numel());
    std::memset(gradient.data, 0, gradient.size_bytes());
    reached[p] = 0;
  }
  set_ready(p);
}

// Every rank exchanges every bucket, so each decides alone which of its gradients are zero.
void Reducer::State::complete_gradients() {
  if (options.unused == UnusedParameters::kError) {
    check_all_ready();
    return;
  }
  for (ParamId p = 0; p < given.size(); ++p) {
    if (not_ready(given[p])) {
      set_unused(p);
    }
  }
  compare_unused();
}

void Reducer::State::check_all_ready() const {
  const auto missing = std::count_if(given.begin(), given.end(), not_ready);
  if (missing == 0) {
    return;
  }
  std::string names;
  size_t named = 0;
  for (size_t p = 0; p < given.size() && named < kNamedParameters; ++p) {
    if (not_ready(given[p])) {
      names += concat(named++ == 0 ? "" : ", ", "'", plan.parameters[p].name, "'");
    }
  }
  const bool more = static_cast<size_t>(missing) > named;
  throw InvalidArgument(concat("wait: ", missing, " of ", given.size(),
                               " parameters have no gradient in step ", step, ": ", names,
                               more ? ", ..." : "", ", expected grad_ready() for each"));
}

// On the first lane, once its buckets have left on every rank: the calls of a lane have one order.
// Behind the rounds, which enqueue buckets there.
void Reducer::State::compare_unused() {
  const auto own = static_cast<size_t>(transport->rank());
  const size_t bytes = (given.size() + 7) / 8;
  if (unused_everywhere.size() != given.size()) {
    unused_everywhere.assign(given.size(), 0);
    reached_bits = Messages(transport->world_size(), bytes);
  }
  const std::span<std::byte> mine = reached_bits.room(own);
  std::fill(mine.begin(), mine.end(), std::byte{0});
  for (size_t p = 0; p < given.size(); ++p) {
    mine[p / 8] |= std::byte(reached[p] << p % 8);
  }
  reached_bits.length(own) = bytes;
  const auto enqueue = [this] {
    compression.stream->enqueue(
        [this] { lanes[0].worker->stream->enqueue([this] { exchange_unused(); }); });
  };
  if (rounds == nullptr) {
    enqueue();
  } else {
    rounds->enqueue(enqueue);
  }
}

void Reducer::State::exchange_unused() {
  // Belongs to the last bucket, for messages: it is what this call waits for.
  guarded(buckets.size() - 1, [this] {
    const auto own = static_cast<size_t>(transport->rank());
    lanes[0].transport->all_gather(reached_bits.length(own), reached_bits.room(own),
                                   reached_bits.parts(), {fnv1a("unused"), "unused parameters"},
                                   lanes[0].worker->context);
    const size_t expected = (given.size() + 7) / 8;
    for (size_t r = 0; r < static_cast<size_t>(transport->world_size()); ++r) {
      const size_t bytes = reached_bits.message(r).size();
      if (bytes != expected) {
        throw TransportError(concat("rank ", r, " sent ", bytes, " bytes about unused parameters, ",
                                    "expected ", expected),
                             static_cast<int>(r));
      }
    }
  });
}

void Reducer::State::read_unused() {
  const auto ranks = static_cast<size_t>(transport->world_size());
  for (size_t p = 0; p < given.size(); ++p) {
    bool reached_by_any = false;
    for (size_t r = 0; r < ranks; ++r) {
      reached_by_any |= (reached_bits.message(r)[p / 8] >> p % 8 & std::byte{1}) != std::byte{0};
    }
    unused_everywhere[p] = !reached_by_any;
  }
}

}  // namespace gradwire
