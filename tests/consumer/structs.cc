// The structs of options and results, made as users make them, by a compiler that looks through
// what is inline: with -O3 and -Werror none of it may warn.

#include <span>
#include <utility>
#include <vector>

#include <gradwire/comm/choose.h>
#include <gradwire/comm/probe.h>
#include <gradwire/comm/reducer.h>
#include <gradwire/comm/store.h>
#include <gradwire/comm/transport/carrier.h>
#include <gradwire/comm/verify.h>
#include <gradwire/optimizers/large_batch.h>
#include <gradwire/optimizers/optimizer.h>
#if CONSUMER_HAS_PLANNER
#include <gradwire/planner/autopilot.h>
#include <gradwire/planner/breakdown.h>
#include <gradwire/planner/bucket_options.h>
#include <gradwire/planner/cluster.h>
#include <gradwire/planner/cost_file.h>
#include <gradwire/planner/importers.h>
#include <gradwire/planner/predict.h>
#include <gradwire/planner/recommend.h>
#endif

namespace consumer {
namespace {

/// The compiler must take it for used.
template <class T>
void keep(const T& made) {
  asm volatile("" : : "r"(&made) : "memory");
}

template <class T>
void make() {
  T made;
  keep(made);
  T other{};
  T copy = made;
  keep(copy);
  copy = other;
  T moved = std::move(other);
  keep(moved);
  copy = std::move(moved);
  keep(copy);
  std::vector<T> several;
  several.push_back(copy);
  keep(several);
}

template <class... Structs>
void make_all() {
  (make<Structs>(), ...);
}

}  // namespace

void make_structs() {
  using namespace gradwire;
  make_all<CompressorSpec, CompressorShape, Segment, CpuStreamOptions>();
  make_all<ParamInfo, SpecRule, PlanOptions, PlanGroup, PlanBucket, Plan, ReducerOptions,
           ReplanOptions, MergeOptions, ProbeOptions, LinkCosts, StepTrace, BucketTrace>();
  make_all<TransportOptions, NcclOptions, RebuildOptions, StoreAccess, VerifyOptions, Carrier,
           CarrierOptions, ExchangeLoad, ExchangeReport, ExchangeContext>();
  make_all<OptimizerSpec, ParamGroup, gradwire::StepOptions, Parameter, Binding>();
}

#if CONSUMER_HAS_PLANNER
void make_structs_of_the_planner() {
  using namespace gradwire::planner;
  make_all<PilotOptions, PilotPlan, PilotCosts, PilotWindow, GuardOptions, GuardWindow,
           GuardVerdict, GuardNorms, AutopilotOptions, Decision>();
  make_all<BucketOptionRequest, BucketOption, BucketSearch, BucketPlan, SpecTraffic, Profile,
           LayerProfile, Costs, CostFile, Cluster, gradwire::planner::StepOptions, TableOptions>();
  make_all<RecommendOptions, Recommendation, Configuration, Instance, StepDemand, Hardware,
           StepBreakdown, Prediction>();
}

void pilot(std::vector<gradwire::ParamInfo> parameters, gradwire::Transport& transport) {
  gradwire::planner::Pilot usual(parameters, 4);
  gradwire::planner::Autopilot reducer(parameters, transport);
  gradwire::planner::Autopilot by_options(parameters, transport, {.pilot = {.specs = {"int8"}}});
  keep(by_options);
  gradwire::planner::PilotOptions options;
  options.plan.seed = 3;
  gradwire::planner::Autopilot careful(std::move(parameters), transport,
                                       {.pilot = std::move(options)});
  keep(usual.plan().name);
  keep(reducer.plan().buckets);
}
#endif

void reduce(std::span<const gradwire::ParamInfo> parameters, gradwire::Transport& transport) {
  gradwire::Reducer usual(gradwire::make_plan(parameters, {}), transport);
  gradwire::Reducer by_options(
      gradwire::make_plan(parameters, {.spec = gradwire::parse_spec("int8"), .seed = 3}), transport,
      {.streams = 2});
  by_options.replan({.plan = {.exchange = "dense"}});
  by_options.replan({});
  keep(usual.plan().buckets);
}

std::unique_ptr<gradwire::Transport> join() {
  gradwire::TransportOptions options;
  options.rank = 1;
  options.world_size = 2;
  options.store = "file:/tmp/meet";
  return gradwire::make_transport("gloo", options);
}

std::unique_ptr<gradwire::Transport> join_alone() { return gradwire::make_transport("gloo", {}); }

std::unique_ptr<gradwire::Optimizer> optimize(std::vector<gradwire::Parameter> parameters) {
  return gradwire::make_optimizer({.name = "sgd", .momentum = 0}, std::move(parameters));
}

}  // namespace consumer
