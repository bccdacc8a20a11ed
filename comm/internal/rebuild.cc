#include "gradwire/comm/internal/rebuild.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "gradwire/comm/fingerprint.h"
#include "gradwire/comm/internal/reducer_agreement.h"
#include "gradwire/comm/stages.h"

namespace gradwire {
namespace {

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

// The lowest of the ranks that have come furthest, parameters included.
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

// Of all parameters with ef21: ranks that are behind do not have them.
std::vector<std::vector<float>> newest_estimates(Epoch& epoch, Transport& transport, size_t newest,
                                                 Context& context) {
  std::vector<std::vector<float>> estimates(epoch.plan.places.size());
  for (ParamId p = 0; p < estimates.size(); ++p) {
    const Epoch::Place at = epoch.place(p);
    estimates[p] = at.feedback.estimate(at.region);
    if (!estimates[p].empty()) {
      transport.broadcast(std::as_writable_bytes(std::span(estimates[p])),
                          static_cast<int>(newest), {fnv1a("estimate"), "estimate"}, context);
    }
  }
  context.stream.wait();
  return estimates;
}

}  // namespace

Recovery recover(Epoch& epoch, BucketPipeline& pipeline, const Progressed& own,
                 Transport& survivors) {
  Context& context = pipeline.context();
  const auto progress = gather_progress(own, survivors, context);
  const size_t newest = newest_of(progress);
  const Progressed& target = progress[newest];
  const bool any_commits_here = std::ranges::any_of(
      progress, [&](const Progressed& p) { return p.committed < target.committed; });
  // As the plan was in the step that they are behind.
  const Plan of_step = plan_in_step(epoch.plan, std::max<uint64_t>(target.committed, 1) - 1);
  for (const PlanBucket& bucket : of_step.buckets) {
    check(find_exchange(bucket.exchange).complete_on_commit || !any_commits_here,
          "rebuild: a rank is a step behind, and with exchange '", bucket.exchange,
          "' what it keeps of that step may not be complete; load a checkpoint");
  }
  Plan plan = epoch.plan;
  plan.ranks_per_node = 1;  // nodes are not whole any more
  agree_on(plan, pipeline.options(), survivors, context);
  BucketPipeline::Links links = pipeline.open(survivors);
  Epoch next = make_epoch(plan, links.lanes, {target.committed, target.skipped, epoch.stream});
  const auto estimates = newest_estimates(epoch, survivors, newest, context);

  // From here on nobody else can fail.
  if (own.committed < target.committed) {
    epoch.commit();
  }
  carry_over_scaled(epoch, next, double(next.ranks) / epoch.ranks,
                    any_commits_here ? Bucket::Learnt::kBySome : Bucket::Learnt::kByAllRanks);
  restart_estimates(next, estimates);
  take_gradients(epoch, next);
  const auto is_behind = [&target](const Progressed& p) {
    return p.has_parameters == 0 || p.concluded() < target.concluded();
  };
  const bool any_behind = std::ranges::any_of(progress, is_behind);
  return {.epoch = std::move(next),
          .links = std::move(links),
          .concluded = target.concluded(),
          .rebuilt = {.committed_steps = target.committed,
                      .source = any_behind ? static_cast<int>(newest) : -1,
                      .behind = is_behind(own)}};
}

}  // namespace gradwire
