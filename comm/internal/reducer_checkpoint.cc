// Everything a rank keeps between steps, to a stream and back. The equation for another world size
// is in CHECKPOINT_FORMAT.md.

#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include "gradwire/comm/internal/checkpoint.h"
#include "gradwire/comm/internal/reducer_state.h"
#include "gradwire/kernels/ops/elementwise.h"

namespace gradwire {
namespace {

/// What this rank takes over: its own checkpoint, or those of the old ranks that fall to it.
struct Sources {
  CheckpointHeader header;  // of any: what they must agree on
  std::vector<CheckpointReader> readers;
  bool joins = false;  // this rank was not there: of rank 0's it takes what all ranks share
};

CheckpointReader open_checkpoint(const Reducer::OpenCheckpoint& open, int rank) {
  std::unique_ptr<std::istream> in = open(rank);
  check(in != nullptr, "checkpoint of rank ", rank, ": there is none, expected one of every rank");
  return {std::move(in), rank};
}

Sources open_sources(const Reducer::OpenCheckpoint& open, const Transport& transport) {
  const int rank = transport.rank(), world_size = transport.world_size();
  Sources sources;
  if (std::unique_ptr<std::istream> own = open(rank)) {
    sources.readers.emplace_back(std::move(own), rank);
    sources.header = sources.readers[0].header();
  } else {  // must know the step, and what is the same on all ranks
    sources.readers.push_back(open_checkpoint(open, 0));
    sources.header = sources.readers[0].header();
    sources.joins = true;
  }
  const auto old_size = static_cast<int64_t>(sources.header.world_size);
  check((rank < old_size) == !sources.joins, "checkpoint of rank ", rank, ": there is ",
        sources.joins ? "none" : "one", ", of ", old_size, " ranks that saved");
  for (int64_t old = rank + world_size; old < old_size; old += world_size) {
    sources.readers.push_back(open_checkpoint(open, static_cast<int>(old)));
  }
  return sources;
}

void check_sources(const Sources& sources, const Plan& plan) {
  check(sources.header.model == model_fingerprint(plan),
        "checkpoint: names, shapes or dtype of its parameters differ from the plan's, expected the "
        "same");
  constexpr uint64_t kMostSteps = std::numeric_limits<uint32_t>::max();
  check(sources.header.committed <= kMostSteps && sources.header.skipped <= kMostSteps,
        "checkpoint: of ", sources.header.committed, " committed and ", sources.header.skipped,
        " skipped steps, expected at most ", kMostSteps, " of each");
  for (const CheckpointReader& reader : sources.readers) {
    const CheckpointHeader &has = reader.header(), &should = sources.header;
    check(has.world_size == should.world_size && has.committed == should.committed &&
              has.skipped == should.skipped && has.model == should.model &&
              has.plan == should.plan &&
              has.parameters == plan.parameters.size() &&
              (has.plan != plan.fingerprint() || has.buckets == plan.buckets.size()),
          "checkpoint of rank ", has.rank, ": step ", has.committed, " of ", has.world_size,
          " ranks, expected that of rank ", should.rank, ": step ", should.committed, " of ",
          should.world_size, ", and the same plan");
  }
}

struct Kept {
  std::vector<float> residual, estimate, velocity;
};

/// Values of old ranks that add up.
class Sum {
 public:
  void add(std::span<const float> values) {
    sum_.resize(std::max(sum_.size(), values.size()), -0.0);
    for (size_t i = 0; i < values.size(); ++i) {
      sum_[i] += double{values[i]};
    }
  }
  std::vector<float> times(double scale) const {
    std::vector<float> scaled(sum_.size());
    std::ranges::transform(sum_, scaled.begin(),
                           [scale](double x) { return static_cast<float>(scale * x); });
    return scaled;
  }

 private:
  std::vector<double> sum_;
};

// e' = scale * sum over the sources, in float64; of one source with scale 1 its bits.
Kept next_kept(Sources& sources, size_t numel, double scale) {
  Sum residual, velocity;
  std::vector<float> estimate;
  for (CheckpointReader& reader : sources.readers) {
    const CheckpointReader::Parameter of_rank = reader.parameter(numel);
    estimate.assign(of_rank.estimate.begin(), of_rank.estimate.end());
    if (!sources.joins) {
      residual.add(of_rank.kept);
      velocity.add(of_rank.velocity);
    }
  }
  return {residual.times(scale), std::move(estimate), velocity.times(scale)};
}

// Steps commit finite values alone: with another one no later step would be committed. What is taken over
// of several old ranks may be beyond float32 too.
std::string fault_of(const Kept& kept, std::string_view parameter) {
  for (const auto& [what, values] : {std::pair{"residual", &kept.residual},
                                     std::pair{"estimate", &kept.estimate},
                                     std::pair{"velocity", &kept.velocity}}) {
    if (!cpu::all_finite(*values)) {
      return concat("checkpoint: the ", what, " of parameter '", parameter,
                    "' holds NaN or infinity, expected finite values, the only ones that are saved");
    }
  }
  return {};
}

// With another number of ranks what each has sent is lost: all start from the estimate, which the
// velocity averages towards. Where the plan has ef21 no more nothing waits.
void take_estimate(Kept kept, Bucket& bucket, size_t offset, bool same_size) {
  if (!bucket.memory().has_estimate(offset)) {
    return;
  }
  if (!same_size) {
    kept.residual.resize(kept.estimate.size());
    std::ranges::transform(kept.estimate, kept.residual.begin(), std::negate<>());
    kept.velocity = kept.estimate;
  }
  bucket.memory().set_estimate(offset, kept.residual, kept.estimate);
  bucket.memory().set_average(offset, kept.estimate.size(), kept.velocity);
}

/// To whom the states of a checkpoint mean something: to the same buckets; to parameters, where all
/// ranks have a checkpoint to learn the same from; to nobody.
enum class StatesOf : uint8_t { kBuckets, kParameters, kNobody };

void read_states(Sources& sources, std::deque<Bucket>& buckets, StatesOf whose) {
  for (CheckpointReader& reader : sources.readers) {
    for (uint32_t b = 0; b < reader.header().buckets; ++b) {
      std::vector<std::vector<uint64_t>> states(reader.groups() + 1);
      for (std::vector<uint64_t>& state : states) {
        state = reader.words();
      }
      if (whose == StatesOf::kBuckets) {
        buckets.at(b).set_states(states);
      }
      for (Bucket& bucket : buckets) {
        if (whose == StatesOf::kParameters) {
          bucket.learn_from(states);
        }
      }
    }
    reader.finish();
  }
}

}  // namespace

void Reducer::save(std::ostream& out) const {
  State& s = *state_;
  check(!s.begun || s.finished, "save: step ", s.step,
        " has begun, expected a call between wait() and the next grad_ready()");
  if (!s.begun) {
    s.begin_stage();  // what is learned is of the specs of the next step, as in load()
  }
  const State::Counts counts = s.counts();
  CheckpointWriter writer(out, {.rank = static_cast<uint32_t>(s.transport->rank()),
                                .world_size = static_cast<uint32_t>(s.transport->world_size()),
                                .committed = counts.committed,
                                .skipped = counts.skipped,
                                .model = model_fingerprint(s.plan),
                                .plan = s.plan.fingerprint(),
                                .parameters = static_cast<uint32_t>(s.plan.parameters.size()),
                                .buckets = static_cast<uint32_t>(s.buckets.size())});
  for (size_t p = 0; p < s.plan.places.size(); ++p) {
    const auto [bucket, offset] = s.plan.places[p];
    const size_t numel = s.plan.parameters[p].numel();
    const Bucket& from = s.buckets[bucket];
    const std::vector<float> estimate = from.memory().estimate(offset, numel);
    const std::vector<float> velocity = from.memory().velocity(offset, numel);
    const bool waits = std::ranges::any_of(from.memory().waiting(offset, numel), [](float x) { return x != 0; });
    check(estimate.empty() || !waits, "save: parameter '", s.plan.parameters[p].name,
          "' has a residual of the plan before ef21, expected a call after the step that sends it");
    writer.parameter({numel, from.memory().kept(offset, numel), estimate, velocity});
  }
  for (const Bucket& bucket : s.buckets) {
    const auto states = bucket.states();
    writer.groups(states.size() - 1);
    for (const std::vector<uint64_t>& state : states) {
      writer.words(state);
    }
  }
  writer.finish();
}

void Reducer::load(const OpenCheckpoint& open) {
  State& s = *state_;
  s.throw_if_finished();
  check(!s.begun, "load: step ", s.step,
        " has begun, expected a call between wait() and the next grad_ready()");
  std::deque<Bucket> buckets;
  CheckpointHeader header;
  std::shared_ptr<DeviceState> shared;
  std::exception_ptr error;
  try {
    Sources sources = open_sources(open, *s.transport);
    check_sources(sources, s.plan);
    header = sources.header;
    if (s.gpu != nullptr) {
      (void)s.gpu->read();  // what works on the buckets there are is over
    }
    shared = s.make_commits(header.committed, header.skipped);
    buckets = s.make_buckets(s.plan, s.lanes, header.committed, shared);
    const bool same_size = header.world_size == static_cast<uint32_t>(s.transport->world_size());
    const double scale = same_size ? 1.0 : double(s.transport->world_size()) / header.world_size;
    std::string fault;
    for (size_t p = 0; p < s.plan.places.size(); ++p) {
      const auto [bucket, offset] = s.plan.places[p];
      const auto kept = next_kept(sources, s.plan.parameters[p].numel(), scale);
      fault = fault.empty() ? fault_of(kept, s.plan.parameters[p].name) : fault;
      if (kept.estimate.empty()) {
        buckets[bucket].memory().set_kept(offset, kept.residual);
        buckets[bucket].memory().set_velocity(offset, kept.velocity);
      } else {
        take_estimate(kept, buckets[bucket], offset, same_size);
      }
    }
    for (Bucket& bucket : buckets) {
      bucket.memory().place_waiting();
    }
    const bool all_have_one =
        header.world_size >= static_cast<uint32_t>(s.transport->world_size());
    read_states(sources, buckets,
                same_size && header.plan == s.plan.fingerprint() ? StatesOf::kBuckets
                : all_have_one                                   ? StatesOf::kParameters
                                                                 : StatesOf::kNobody);
    check(fault.empty(), fault);  // of bytes that fit their checksum
  } catch (const std::exception&) {
    error = std::current_exception();
  }
  // All ranks load, from one and the same step, or none does.
  std::string found = error ? concat("unreadable on rank ", s.transport->rank(), "\n")
                            : concat("step ", header.committed, " with ", header.skipped,
                                     " skipped, of ", header.world_size, " ranks\n");
  try {
    s.transport->agree("checkpoint", found, s.compression.context);
  } catch (const InvalidArgument&) {
    if (!error) {
      throw;
    }
  }
  if (error) {
    std::rethrow_exception(error);
  }
  s.take_gradients(buckets);
  s.adopt(std::move(buckets), std::move(shared));
  s.residual_ranks = s.transport->world_size();
  s.has_parameters = true;
  s.step = header.committed + header.skipped;
  s.begin_plan(header.committed);
}

}  // namespace gradwire
