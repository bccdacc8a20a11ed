#pragma once
// Tasks, what they wait for and what they hold, and the event simulator that runs them.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gradwire::planner {

enum class TaskKind : uint8_t {
  kIo,
  kHostToDevice,
  kForward,
  kBackward,
  kHandOver,
  kCopy,
  kCompress,
  kExchange,
  kDecompress,
  kUpdate,
  kBarrier,  ///< takes no time and holds nothing
};
std::string_view name_of(TaskKind kind);

using TaskId = uint32_t;
inline constexpr uint32_t kNone = UINT32_MAX;       ///< no task, no resource, no processor
inline constexpr uint32_t kEvery = UINT32_MAX - 1;  ///< every processor there is

/// Takes hold of one slot of its resource, keeps it `seconds` by itself and then until `shared_s`
/// seconds of the resource's common rate are done, which the slots divide among them. Both are
/// times with the `cores` it wants; with a part of them it goes that much slower.
struct Task {
  TaskKind kind = TaskKind::kBarrier;
  uint32_t step = 0;
  uint32_t worker = 0;
  uint32_t item = kNone;      ///< layer or bucket, whichever the kind is about
  uint32_t resource = kNone;  ///< none: begins as soon as what it waits for has ended
  double seconds = 0;
  double shared_s = 0;
  /// Of those that wait for a slot the least goes first; of equals the one that waits longest.
  double priority = 0;
  uint32_t processor = kNone;  ///< whose cores it wants; kEvery: of each so many, and waits for all
  double cores = 0;            ///< that it keeps busy where nobody else is
  double threads = 1;          ///< that want them: a scheduler is fair among threads
};

/// `slots` tasks at once. Each gets at most `most_share` of the common rate, and all together 1:
/// streams of one network, each of which alone cannot fill it.
struct Resource {
  std::string name;
  size_t slots = 1;
  double most_share = 1;
};

/// Cores that the tasks on them share by max-min fairness, as a fair scheduler gives them to
/// threads: who wants less than an equal part gets all of it, and the others divide what is left.
struct Processor {
  double cores = 1;
};

class TaskGraph {
 public:
  uint32_t add_resource(Resource resource);
  /// @throws InvalidArgument for cores that are not above 0 and finite.
  uint32_t add_processor(Processor processor);
  /// @throws InvalidArgument for times that are negative or not finite, an unknown resource or
  /// processor, no cores of a processor, or fewer than one thread.
  TaskId add(const Task& task);
  /// `then` begins after `first` has ended. @throws InvalidArgument for tasks that are not there.
  void order(TaskId first, TaskId then);

  const std::vector<Task>& tasks() const { return tasks_; }
  const std::vector<Resource>& resources() const { return resources_; }
  const std::vector<Processor>& processors() const { return processors_; }
  struct Edge {
    TaskId first, then;
  };
  const std::vector<Edge>& edges() const { return edges_; }

 private:
  std::vector<Task> tasks_;
  std::vector<Resource> resources_;
  std::vector<Processor> processors_;
  std::vector<Edge> edges_;
};

/// When each task ran, in seconds from the beginning.
struct Timeline {
  std::vector<double> begin_s;
  std::vector<double> end_s;
  /// The task whose end let this one begin: the last one it waited for, or the one that gave its
  /// slot free. kNone for those that begin at 0.
  std::vector<TaskId> cause;
  double end() const;  ///< of the last task
};

/// Runs the graph: a task that can begin does, no task is interrupted. The same graph gives the
/// same times, to the bit. @throws InvalidArgument for a cycle, which it names.
Timeline simulate(const TaskGraph& graph);

/// The chain of causes that ends with `last`, in order of time.
std::vector<TaskId> critical_path(const Timeline& timeline, TaskId last);

}  // namespace gradwire::planner
