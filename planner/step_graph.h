#pragma once
// The tasks of some training steps in a row, under a schedule.

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "gradwire/planner/buckets.h"
#include "gradwire/planner/cluster.h"
#include "gradwire/planner/cost.h"
#include "gradwire/planner/profile.h"
#include "gradwire/planner/task_graph.h"

namespace gradwire::planner {

/// What may go on at the same time. After Shi et al., "A DAG Model of Synchronous Stochastic
/// Gradient Descent in Distributed Deep Learning" (arXiv:1805.03812), and what was built on it.
enum class Schedule : uint8_t {
  kNaive,         ///< "bsp": one thing after another
  kOverlappedIo,  ///< "overlapped-io": the next batch is loaded while this one is computed
  kWfbp,         ///< "wfbp": and gradients leave while backward goes on (wait-free backpropagation)
  kMgWfbp,       ///< "mg-wfbp": and wait for one another where a start-up costs more
  kPriority,     ///< "priority": of those waiting the one the next forward needs first goes first,
                 ///< and a layer's next forward waits for its own update alone
  kMultiStream,  ///< "multi-stream": wfbp over several streams
};
inline constexpr size_t kSchedules = 6;

std::string_view name_of(Schedule schedule);
/// @throws InvalidArgument for an unknown name; lists the known ones.
Schedule schedule_named(std::string_view name);

/// What becomes of a bucket on its way.
struct Codec {
  double compression = 1;  ///< dense bytes over payload bytes
  CodecCost cost{};        ///< of a bucket; where payloads are gathered each of them is decoded
  /// Where it runs: in turn with forward and backward, or beside them.
  enum class Place : uint8_t { kCompute, kBeside };
  Place place = Place::kCompute;
};

struct StepOptions {
  Schedule schedule = Schedule::kWfbp;
  /// What travels together; empty: by the schedule's own rule (mg-wfbp), or each tensor alone.
  Buckets buckets{};
  /// kMeasured: the profile's exchange_s, which all buckets then need, in the place of formulas.
  enum class Exchange : uint8_t { kModelled, kMeasured };
  Exchange exchange = Exchange::kModelled;
  Codec codec{};                ///< layers with compress_s and decompress_s of their own keep them
  double copy_bytes_per_s = 0;  ///< from the device to where it is sent, and back; 0: no copy
  double slice_bytes = 0;  ///< priority: a payload travels in pieces of at most so much; 0: whole
};

/// @throws InvalidArgument for rates or ratios out of range, or measured exchanges that are
/// missing.
void validate(const Profile& profile, const StepOptions& options);

/// The buckets that options ask for.
Buckets buckets_of(const Profile& profile, const Cluster& cluster, const StepOptions& options);

/// `steps` steps in a row on the workers that draw `draw` of the cluster makes decide.
struct StepGraph {
  TaskGraph graph;
  Buckets buckets;
  std::vector<Worker> workers;   ///< as tasks' `worker` counts them, the slowest at computing first
  std::vector<TaskId> step_end;  ///< a barrier per step: all updates of all workers are done
};
StepGraph make_step_graph(const Profile& profile, const Cluster& cluster,
                          const StepOptions& options, size_t steps, size_t draw = 0);

}  // namespace gradwire::planner
