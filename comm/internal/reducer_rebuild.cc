// A reducer goes on with the ranks that are left.

#include <algorithm>
#include <cstring>
#include <functional>

#include "gradwire/comm/fingerprint.h"
#include "gradwire/comm/internal/reducer_state.h"
#include "gradwire/comm/stages.h"

namespace gradwire {
namespace {

/// How far a rank has come.
struct Progressed {
  uint64_t committed = 0;
  uint64_t skipped = 0;
  uint64_t has_parameters = 0;

  uint64_t concluded() const { return committed + skipped; }
};

std::vector<Progressed> gather_progress(const Progressed& own, Transport& transport,
                                        Context& context) {
  Messages all(transport.world_size(), sizeof own);
  const auto rank = static_cast<size_t>(transport.rank());
  all.length(rank) = sizeof own;
  std::memcpy(all.room(rank).data(), &own, sizeof own);
  transport.all_gather(all.length(rank), all.room(rank), all.parts(),
                       {fnv1a("progress"), "progress"}, context);
  context.stream.wait();
  std::vector<Progressed> progress(static_cast<size_t>(transport.world_size()));
  for (size_t r = 0; r < progress.size(); ++r) {
    check(all.message(r).size() == sizeof own, "rebuild: rank ", r, " sent ", all.message(r).size(),
          " bytes of progress, expected ", sizeof own);
    std::memcpy(&progress[r], all.message(r).data(), sizeof own);
  }
  return progress;
}

/// The estimates of all groups with ef21, of the rank that has come furthest: those behind do not
/// have them.
std::vector<std::vector<float>> newest_estimates(const Plan& plan, const std::deque<Bucket>& buckets,
                                                 Transport& transport, size_t newest,
                                                 Context& context) {
  std::vector<std::vector<float>> estimates(plan.places.size());
  for (size_t p = 0; p < plan.places.size(); ++p) {
    const auto [bucket, offset] = plan.places[p];
    const size_t numel = plan.parameters[p].numel();
    estimates[p] = buckets[bucket].memory().estimate(offset, numel);
    if (!estimates[p].empty()) {
      transport.broadcast(std::as_writable_bytes(std::span(estimates[p])),
                          static_cast<int>(newest), {fnv1a("estimate"), "estimate"}, context);
    }
  }
  context.stream.wait();
  return estimates;
}

/// The lowest of the ranks that have come furthest, parameters included.
size_t newest_of(const std::vector<Progressed>& progress) {
  const auto key = [](const Progressed& p) {
    return std::pair(p.has_parameters, p.concluded());
  };
  const auto newest = static_cast<size_t>(
      std::max_element(progress.begin(), progress.end(),
                       [&](const auto& a, const auto& b) { return key(a) < key(b); }) -
      progress.begin());
  for (size_t r = 0; r < progress.size(); ++r) {
    const auto ahead = progress[newest].concluded() - progress[r].concluded();
    check(progress[newest].has_parameters != 0 &&
              progress[r].committed <= progress[newest].committed &&
              progress[r].skipped <= progress[newest].skipped && ahead <= 1,
          "rebuild: rank ", r, " has committed ", progress[r].committed, " and skipped ",
          progress[r].skipped, " steps, while of those that have their parameters rank ", newest,
          " has come furthest, to ", progress[newest].committed, " and ", progress[newest].skipped,
          "; expected at most one step less: load a checkpoint");
  }
  return newest;
}

}  // namespace

Reducer::Rebuilt Reducer::rebuild(Transport& survivors) {
  State& s = *state_;
  s.process.check_here("reducer");
  s.refuse_on_gpu("rebuild");
  if (s.launched > 0 && !s.failed) {
    s.fail_step(concat("rank ", s.transport->rank(), "'s reducer is rebuilt in step ", s.step), -1);
  }
  s.drain();
  s.launched = 0;
  const State::Counts counts = s.counts();
  const Progressed own{counts.committed, counts.skipped, s.has_parameters};
  const auto progress = gather_progress(own, survivors, s.compression.context);
  const size_t newest = newest_of(progress);
  const Progressed& target = progress[newest];
  const auto stays_behind = [&target](const Progressed& p) {
    return p.committed < target.committed;
  };
  // As the plan was in the step that they are behind.
  const Plan of_step = plan_in_step(s.plan, std::max<uint64_t>(target.committed, 1) - 1);
  for (const PlanBucket& bucket : of_step.buckets) {
    check(find_exchange(bucket.exchange).complete_on_commit ||
              std::none_of(progress.begin(), progress.end(), stays_behind),
          "rebuild: a rank is a step behind, and with exchange '", bucket.exchange,
          "' what it keeps of that step may not be complete; load a checkpoint");
  }
  Plan plan = s.plan;
  plan.ranks_per_node = 1;  // nodes are not whole any more
  s.check_everywhere(plan, survivors);
  std::vector<Lane> lanes = s.make_lanes(survivors);
  std::unique_ptr<ReadyRounds> rounds = s.make_rounds(survivors);
  std::shared_ptr<DeviceState> shared = s.make_commits(target.committed, target.skipped);
  std::deque<Bucket> buckets = s.make_buckets(plan, lanes, target.committed, shared);

  const auto estimates =
      newest_estimates(s.plan, s.buckets, survivors, newest, s.compression.context);

  // From here on nobody else can fail.
  const auto is_behind = [&target](const Progressed& p) {
    return p.has_parameters == 0 || p.concluded() < target.concluded();
  };
  if (own.committed < target.committed) {
    s.commit();
  }
  s.has_parameters = !is_behind(own);
  s.step = target.concluded();
  const bool any_commits_here = std::any_of(progress.begin(), progress.end(), stays_behind);
  s.scale_kept(buckets, double(survivors.world_size()) / s.residual_ranks,
               any_commits_here ? Bucket::Learnt::kBySome : Bucket::Learnt::kByAllRanks);
  s.restart_estimates(buckets, estimates);
  s.take_gradients(buckets);
  s.adopt(std::move(buckets), std::move(shared));
  s.plan = std::move(plan);
  s.lanes = std::move(lanes);
  s.rounds = std::move(rounds);
  s.transport = &survivors;
  s.residual_ranks = survivors.world_size();
  s.failure.reset();
  s.finished.reset();
  s.failed = false;
  s.unused_everywhere.clear();  // made for as many ranks
  s.begin_plan(target.committed);
  const bool any_behind = std::any_of(progress.begin(), progress.end(), is_behind);
  return {.committed_steps = target.committed,
          .source = any_behind ? static_cast<int>(newest) : -1,
          .behind = is_behind(own)};
}

// What these buckets keep, velocities included, times `scale`, and what their compressors learned.
void Reducer::State::scale_kept(std::deque<Bucket>& into, double scale,
                                Bucket::Learnt learnt) const {
  const auto times_scale = [scale](float x) { return static_cast<float>(scale * x); };
  std::vector<float> scaled;
  for (size_t p = 0; p < plan.places.size(); ++p) {
    const auto [bucket, offset] = plan.places[p];
    if (into[bucket].memory().has_estimate(offset)) {  // beside it a plan before may have left something
      const ConstResidual waiting =
          buckets[bucket].memory().waiting(offset, plan.parameters[p].numel());
      scaled.resize(waiting.size());
      std::ranges::transform(waiting, scaled.begin(), times_scale);
      into[bucket].memory().carry_over(offset, scaled);
      continue;
    }
    const std::vector<float> kept =
        buckets[bucket].memory().kept(offset, plan.parameters[p].numel());
    scaled.resize(kept.size());
    std::ranges::transform(kept, scaled.begin(), times_scale);
    into[bucket].memory().set_kept(offset, scaled);
    std::vector<float> velocity = buckets[bucket].memory().velocity(offset, plan.parameters[p].numel());
    std::ranges::transform(velocity, velocity.begin(), times_scale);
    into[bucket].memory().set_velocity(offset, velocity);
  }
  for (size_t b = 0; b < buckets.size(); ++b) {
    into[b].learn_from(buckets[b], learnt);
  }
}

// All that are left start from the same: the mean of what they have sent is the estimate again.
void Reducer::State::restart_estimates(std::deque<Bucket>& into,
                                       std::span<const std::vector<float>> estimates) const {
  std::vector<float> residual;
  for (size_t p = 0; p < plan.places.size(); ++p) {
    if (!estimates[p].empty()) {
      residual.resize(estimates[p].size());
      std::ranges::transform(estimates[p], residual.begin(), std::negate<>());
      const auto [bucket, offset] = plan.places[p];
      into[bucket].memory().set_estimate(offset, residual, estimates[p]);
      into[bucket].memory().set_average(offset, residual.size(), estimates[p]);
    }
  }
}

}  // namespace gradwire
