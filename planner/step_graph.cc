#include "gradwire/planner/step_graph.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "gradwire/kernels/core/error.h"

namespace gradwire::planner {
namespace {

// What a worker runs things on.
struct Lines {
  uint32_t loader, copy, compute, codec, processor;
};

bool computes(TaskKind kind) {
  return kind == TaskKind::kForward || kind == TaskKind::kBackward || kind == TaskKind::kHandOver ||
         kind == TaskKind::kCompress || kind == TaskKind::kDecompress || kind == TaskKind::kUpdate;
}

// Adds one step after another.
class Builder {
 public:
  Builder(const Profile& profile, const Cluster& cluster, const StepOptions& options,
          StepGraph& out)
      : profile_(profile),
        cluster_(cluster),
        options_(options),
        out_(out),
        backward_(backward_parts(profile)) {
    const bool many = options.schedule == Schedule::kMultiStream;
    exchange_ = add("exchange", many ? cluster.streams : 1, many ? stream_share(cluster) : 1.0);
    for (size_t w = 0; w < out.workers.size(); ++w) {
      const uint32_t compute = add("compute");
      const uint32_t input = add("input"), copy = add("copy");
      lines_.push_back(
          {input, copy, compute,
           options.codec.place == Codec::Place::kCompute ? compute : add("codec"),
           counts_cores() ? out.graph.add_processor({cluster.cores_per_worker}) : kNone});
    }
    for (uint32_t b = 0; b < out.buckets.size(); ++b) {
      costs_.push_back(cost_of(b));
    }
    history_.resize(out.workers.size());
  }

  void add_step(uint32_t step) {
    step_ = step;
    std::vector<Gradients> gradients;
    for (uint32_t w = 0; w < out_.workers.size(); ++w) {
      const TaskId batch = add_input(w);
      gradients.push_back(add_backward(w, add_forward(w, batch)));
    }
    // Without overlap a barrier follows each phase; with it the buckets alone order what follows.
    std::vector<TaskId> ends;
    for (const Gradients& of_worker : gradients) {
      ends.push_back(of_worker.end);
    }
    const TaskId computed = serial() ? barrier(ends) : kNone;
    exchange_all(gradients, computed);
    const TaskId end = add_updates(gradients);
    out_.step_end.push_back(end);
  }

 private:
  struct Gradients {
    std::vector<TaskId> ready;  // by layer
    TaskId end = kNone;         // of the backward pass
    std::vector<TaskId> mean;   // by bucket: the mean is in place
  };
  struct BucketCost {
    double compress_s = 0, decompress_s = 0, copy_s = 0;
    std::vector<ExchangeCost> pieces;
    double priority = 0;
  };
  struct History {  // what the next step of a worker waits for
    TaskId batch = kNone;
    TaskId backward = kNone, backward_before = kNone;
    std::vector<TaskId> update;  // by layer
    TaskId end = kNone;
  };

  bool counts_cores() const { return cluster_.cores_per_worker > 0; }
  bool exchanges() const {
    return cluster_.workers > 1 || options_.exchange == StepOptions::Exchange::kMeasured;
  }

  bool serial() const {
    return options_.schedule == Schedule::kNaive || options_.schedule == Schedule::kOverlappedIo;
  }

  uint32_t add(std::string name, size_t slots = 1, double share = 1) {
    return out_.graph.add_resource({std::move(name), slots, share});
  }

  TaskId add(TaskKind kind, uint32_t worker, uint32_t item, uint32_t resource, double seconds) {
    const bool on_cores = counts_cores() && computes(kind);
    return out_.graph.add({.kind = kind,
                           .step = step_,
                           .worker = worker,
                           .item = item,
                           .resource = resource,
                           .seconds = seconds,
                           // Between two gradients: a hook of backward, which goes on behind it.
                           .priority = kind == TaskKind::kHandOver ? -1.0 : 0.0,
                           .processor = on_cores ? lines_[worker].processor : kNone,
                           // The profile's times are those with as many as there are.
                           .cores = std::min(cluster_.threads, cluster_.cores_per_worker),
                           .threads = cluster_.threads});
  }

  void order(TaskId first, TaskId then) {
    if (first != kNone) {
      out_.graph.order(first, then);
    }
  }

  TaskId barrier(std::span<const TaskId> tasks) {
    const TaskId all = out_.graph.add({.step = step_});
    for (const TaskId task : tasks) {
      order(task, all);
    }
    return all;
  }

  BucketCost cost_of(uint32_t b) const {
    BucketCost cost;
    double dense = 0, compress = 0, decompress = 0, exchange = 0, exchange_cpu = 0;
    bool own_codec = false;
    cost.priority = static_cast<double>(profile_.layers.size());
    for (const uint32_t l : out_.buckets[b]) {
      const LayerProfile& layer = profile_.layers[l];
      dense += layer.bytes();
      compress += layer.compress_s.value_or(0);
      decompress += layer.decompress_s.value_or(0);
      exchange += layer.exchange_s.value_or(0);
      exchange_cpu += layer.exchange_cpu_s.value_or(0);
      own_codec = own_codec || layer.compress_s || layer.decompress_s;
      cost.priority = std::min(cost.priority, static_cast<double>(l));
    }
    const Codec& codec = options_.codec;
    const double payloads =
        cluster_.pattern == Pattern::kGather ? static_cast<double>(cluster_.workers) : 1.0;
    if (own_codec) {
      cost.compress_s = compress;
      cost.decompress_s = decompress;
    } else if (cluster_.workers > 1) {
      cost.compress_s = codec.cost.encode_s(dense);
      cost.decompress_s = codec.cost.decode_s(dense, payloads);
    }
    const double payload = dense / codec.compression;
    if (options_.copy_bytes_per_s > 0 && cluster_.workers > 1) {
      cost.copy_s = payload / options_.copy_bytes_per_s;
    }
    if (options_.exchange == StepOptions::Exchange::kMeasured) {
      cost.pieces.push_back({exchange, 0, exchange_cpu});
      return cost;
    }
    const bool sliced = options_.schedule == Schedule::kPriority && options_.slice_bytes > 0;
    const double pieces = sliced ? std::max(1.0, std::ceil(payload / options_.slice_bytes)) : 1.0;
    const ExchangeCost piece = exchange_cost(cluster_, payload / pieces);
    const bool many = options_.schedule == Schedule::kMultiStream;
    // Alone on the network nothing is shared: the one stream's own rate is all there is.
    cost.pieces.assign(static_cast<size_t>(pieces),
                       many ? piece
                            : ExchangeCost{piece.fixed_s + piece.shared_s / stream_share(cluster_),
                                           0, piece.cpu_s});
    return cost;
  }

  TaskId add_input(uint32_t w) {
    History& history = history_[w];
    const double factor = out_.workers[w].input;
    const TaskId io = add(TaskKind::kIo, w, kNone, lines_[w].loader, profile_.io_s * factor);
    const TaskId copied =
        add(TaskKind::kHostToDevice, w, kNone, lines_[w].copy, profile_.host_to_device_s * factor);
    order(io, copied);
    if (options_.schedule == Schedule::kNaive) {
      order(history.end, io);
    } else {
      order(history.batch, io);                // one buffer on the host,
      order(history.backward_before, copied);  // two on the device
    }
    history.batch = copied;
    return copied;
  }

  TaskId add_forward(uint32_t w, TaskId batch) {
    const History& history = history_[w];
    const double factor = out_.workers[w].compute;
    const bool by_layer = options_.schedule == Schedule::kPriority && !history.update.empty();
    TaskId before = add(TaskKind::kForward, w, kNone, lines_[w].compute, profile_.other_s * factor);
    order(batch, before);
    order(by_layer ? history.backward : history.end, before);
    for (uint32_t l = 0; l < profile_.layers.size(); ++l) {
      const TaskId forward =
          add(TaskKind::kForward, w, l, lines_[w].compute, profile_.layers[l].forward_s * factor);
      order(before, forward);
      if (by_layer) {
        order(history.update[l], forward);
      }
      before = forward;
    }
    return before;
  }

  Gradients add_backward(uint32_t w, TaskId before) {
    Gradients gradients;
    gradients.ready.assign(profile_.layers.size(), kNone);
    for (const BackwardPart& part : backward_) {
      const TaskId task = add(TaskKind::kBackward, w, part.layer == kNoLayer ? kNone : part.layer,
                              lines_[w].compute, part.seconds * out_.workers[w].compute);
      order(before, task);
      before = task;
      if (part.layer != kNoLayer) {
        gradients.ready[part.layer] = task;
      }
    }
    gradients.end = before;
    history_[w].backward_before = history_[w].backward;
    history_[w].backward = before;
    return gradients;
  }

  // Seconds of a phase of bucket b on worker w, after the tasks given; returns the task, or what it
  // would have waited for where it takes no time.
  TaskId phase(TaskKind kind, uint32_t w, uint32_t b, double seconds, TaskId after) {
    if (seconds <= 0) {
      return after;
    }
    const bool copies = kind == TaskKind::kCopy;
    const uint32_t on = copies                        ? lines_[w].copy
                        : kind == TaskKind::kHandOver ? lines_[w].compute
                                                      : lines_[w].codec;
    const TaskId task = add(kind, w, b, on, copies ? seconds : seconds * out_.workers[w].compute);
    order(after, task);
    return task;
  }

  // Runs `of(w, b)` for all workers and buckets; where nothing overlaps, a barrier over their
  // results.
  template <class Of>
  TaskId for_all(Of of) {
    std::vector<TaskId> tasks;
    for (uint32_t b = 0; b < out_.buckets.size(); ++b) {
      for (uint32_t w = 0; w < out_.workers.size(); ++w) {
        tasks.push_back(of(w, b));
      }
    }
    return serial() ? barrier(tasks) : kNone;
  }

  void exchange_all(std::vector<Gradients>& gradients, TaskId computed) {
    const size_t buckets = out_.buckets.size(), workers = out_.workers.size();
    // at[b * workers + w]: the last task of the bucket there.
    std::vector<TaskId> at(buckets * workers);
    const auto slot = [&](uint32_t w, uint32_t b) -> TaskId& { return at[b * workers + w]; };
    const TaskId compressed = for_all([&](uint32_t w, uint32_t b) {
      const double hand_over_s = exchanges() ? profile_.hand_over_s : 0;
      const TaskId ready = phase(TaskKind::kHandOver, w, b, hand_over_s,
                                 serial() ? computed : bucket_ready(gradients[w], w, b));
      return slot(w, b) = phase(TaskKind::kCompress, w, b, costs_[b].compress_s, ready);
    });
    const TaskId copied = for_all([&](uint32_t w, uint32_t b) {
      const TaskId after = serial() ? compressed : slot(w, b);
      return slot(w, b) = phase(TaskKind::kCopy, w, b, costs_[b].copy_s, after);
    });
    std::vector<TaskId> means;
    for (uint32_t b = 0; b < buckets; ++b) {
      means.push_back(add_exchange(b, {&slot(0, b), workers}, copied));
    }
    const TaskId exchanged = serial() ? barrier(means) : kNone;
    const TaskId back = for_all([&](uint32_t w, uint32_t b) {
      const TaskId after = serial() ? exchanged : means[b];
      return slot(w, b) = phase(TaskKind::kCopy, w, b, costs_[b].copy_s, after);
    });
    for_all([&](uint32_t w, uint32_t b) {
      const TaskId after = serial() ? back : slot(w, b);
      gradients[w].mean.push_back(
          phase(TaskKind::kDecompress, w, b, costs_[b].decompress_s, after));
      return gradients[w].mean.back();
    });
  }

  TaskId bucket_ready(const Gradients& gradients, uint32_t w, uint32_t b) {
    if (out_.buckets[b].size() == 1) {
      return gradients.ready[out_.buckets[b][0]];
    }
    const TaskId all = out_.graph.add({.step = step_, .worker = w, .item = b});
    for (const uint32_t l : out_.buckets[b]) {
      order(gradients.ready[l], all);
    }
    return all;
  }

  TaskId add_exchange(uint32_t b, std::span<const TaskId> payloads, TaskId copied) {
    std::vector<TaskId> pieces;
    for (const ExchangeCost& piece : costs_[b].pieces) {
      const double cores = cores_of(piece);
      const TaskId task = out_.graph.add(
          {.kind = TaskKind::kExchange,
           .step = step_,
           .item = b,
           .resource = exchange_,
           .seconds = piece.fixed_s,
           .shared_s = piece.shared_s,
           .priority = options_.schedule == Schedule::kPriority ? costs_[b].priority : 0.0,
           .processor = cores > 0 ? kEvery : kNone,
           .cores = cores});
      if (copied != kNone) {
        order(copied, task);
      } else {
        for (const TaskId payload : payloads) {
          order(payload, task);
        }
      }
      pieces.push_back(task);
    }
    return pieces.size() == 1 ? pieces[0] : barrier(pieces);
  }

  // That an exchange keeps busy while nothing is computed: then it takes what it takes, so it never
  // wants more than there are.
  double cores_of(const ExchangeCost& piece) const {
    const double alone_s = piece.fixed_s + piece.shared_s / stream_share(cluster_);
    return counts_cores() && alone_s > 0
               ? std::min(piece.cpu_s / alone_s, cluster_.cores_per_worker)
               : 0.0;
  }

  TaskId add_updates(const std::vector<Gradients>& gradients) {
    std::vector<TaskId> all;
    for (uint32_t w = 0; w < out_.workers.size(); ++w) {
      History& history = history_[w];
      const bool at_once = options_.schedule == Schedule::kPriority;
      std::vector<TaskId> done = gradients[w].mean;
      done.push_back(gradients[w].end);
      const TaskId reduced = at_once ? kNone : barrier(done);
      history.update.assign(profile_.layers.size(), kNone);
      std::vector<TaskId> updates = {gradients[w].end};
      for (uint32_t b = 0; b < out_.buckets.size(); ++b) {
        for (const uint32_t l : out_.buckets[b]) {
          const TaskId update =
              add(TaskKind::kUpdate, w, l, lines_[w].compute,
                  profile_.layers[l].update_s.value_or(0) * out_.workers[w].compute);
          order(at_once ? gradients[w].mean[b] : reduced, update);
          history.update[l] = update;
          updates.push_back(update);
        }
      }
      history.end = barrier(updates);
      all.push_back(history.end);
    }
    return barrier(all);
  }

  const Profile& profile_;
  const Cluster& cluster_;
  const StepOptions& options_;
  StepGraph& out_;
  const std::vector<BackwardPart> backward_;
  uint32_t exchange_ = 0;
  uint32_t step_ = 0;
  std::vector<Lines> lines_;
  std::vector<BucketCost> costs_;
  std::vector<History> history_;
};

}  // namespace

StepGraph make_step_graph(const Profile& profile, const Cluster& cluster,
                          const StepOptions& options, size_t steps, size_t draw) {
  check(steps > 0, "step graph: 0 steps, must be at least 1");
  StepGraph out{.graph = {},
                .buckets = buckets_of(profile, cluster, options),
                .workers = deciding_workers(cluster, draw),
                .step_end = {}};
  Builder builder(profile, cluster, options, out);
  for (uint32_t step = 0; step < steps; ++step) {
    builder.add_step(step);
  }
  return out;
}

}  // namespace gradwire::planner
