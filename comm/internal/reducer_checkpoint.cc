#include "gradwire/comm/internal/reducer_checkpoint.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include "gradwire/comm/internal/agree.h"
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
void take_estimate(Kept kept, const Epoch::Place& at, bool same_size) {
  if (!same_size) {
    kept.residual.resize(kept.estimate.size());
    std::ranges::transform(kept.estimate, kept.residual.begin(), std::negate<>());
    kept.velocity = kept.estimate;
  }
  at.memory().set_estimate(at.offset, kept.residual, kept.estimate, kept.velocity);
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

void save_checkpoint(std::ostream& out, Epoch& epoch, const Transport& transport) {
  const cuda::StepWords words = epoch.words();
  CheckpointWriter writer(out, {.rank = static_cast<uint32_t>(transport.rank()),
                                .world_size = static_cast<uint32_t>(transport.world_size()),
                                .committed = words.step,
                                .skipped = words.skipped,
                                .model = model_fingerprint(epoch.plan),
                                .plan = epoch.plan.fingerprint(),
                                .parameters = static_cast<uint32_t>(epoch.plan.parameters.size()),
                                .buckets = static_cast<uint32_t>(epoch.buckets.size())});
  for (ParamId p = 0; p < epoch.plan.places.size(); ++p) {
    const Epoch::Place at = epoch.place(p);
    const std::vector<float> estimate = at.feedback.estimate(at.region);
    const std::vector<float> velocity = at.memory().velocity(at.offset, at.numel);
    const bool waits =
        std::ranges::any_of(at.feedback.waiting(at.region), [](float x) { return x != 0; });
    check(estimate.empty() || !waits, "save: parameter '", epoch.plan.parameters[p].name,
          "' has a residual of the plan before ef21, expected a call after the step that sends it");
    writer.parameter({at.numel, at.memory().kept(at.offset, at.numel), estimate, velocity});
  }
  for (const Bucket& bucket : epoch.buckets) {
    const auto states = bucket.states();
    writer.groups(states.size() - 1);
    for (const std::vector<uint64_t>& state : states) {
      writer.words(state);
    }
  }
  writer.finish();
}

Loaded load_checkpoint(const Reducer::OpenCheckpoint& open, const Epoch& epoch,
                       BucketPipeline& pipeline) {
  Transport& transport = pipeline.transport();
  const auto world_size = static_cast<uint32_t>(transport.world_size());
  Loaded loaded;
  std::exception_ptr error;
  try {
    Sources sources = open_sources(open, transport);
    check_sources(sources, epoch.plan);
    const CheckpointHeader& header = loaded.header = sources.header;
    (void)epoch.words();  // what works on the buckets there are is over
    loaded.epoch = make_epoch(epoch.plan, pipeline.lanes(),
                              {.committed = header.committed,
                               .skipped = header.skipped,
                               .stream = epoch.stream});
    const bool same_size = header.world_size == world_size;
    const double scale = same_size ? 1.0 : double(world_size) / header.world_size;
    std::string fault;
    for (ParamId p = 0; p < epoch.plan.places.size(); ++p) {
      const Epoch::Place at = loaded.epoch.place(p);
      const auto kept = next_kept(sources, at.numel, scale);
      fault = fault.empty() ? fault_of(kept, epoch.plan.parameters[p].name) : fault;
      if (kept.estimate.empty()) {
        at.memory().set_kept(at.offset, kept.residual);
        at.memory().set_velocity(at.offset, kept.velocity);
      } else if (at.feedback.has_estimate()) {
        take_estimate(kept, at, same_size);
      }
    }
    for (Bucket& bucket : loaded.epoch.buckets) {
      bucket.memory().place_waiting();
    }
    read_states(sources, loaded.epoch.buckets,
                same_size && header.plan == epoch.plan.fingerprint() ? StatesOf::kBuckets
                : header.world_size >= world_size                    ? StatesOf::kParameters
                                                                     : StatesOf::kNobody);
    check(fault.empty(), fault);  // of bytes that fit their checksum
  } catch (const std::exception&) {
    error = std::current_exception();
  }
  // All ranks load, from one and the same step, or none does.
  const std::string found =
      error ? concat("unreadable on rank ", transport.rank(), "\n")
            : concat("step ", loaded.header.committed, " with ", loaded.header.skipped,
                     " skipped, of ", loaded.header.world_size, " ranks\n");
  agree_or_rethrow("checkpoint", found, error, transport, pipeline.context());
  return loaded;
}

}  // namespace gradwire
