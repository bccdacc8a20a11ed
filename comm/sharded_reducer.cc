#include "gradwire/comm/sharded_reducer.h"

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <iterator>
#include <limits>
#include <utility>

#include "gradwire/comm/exchange/message.h"
#include "gradwire/comm/fingerprint.h"
#include "gradwire/comm/internal/worker.h"
#include "gradwire/kernels/compress/feedback.h"
#include "gradwire/kernels/compress/warmup.h"
#include "gradwire/kernels/ops/elementwise.h"

namespace gradwire {
namespace {

constexpr std::string_view kEnd = "end of backward";
constexpr size_t kWords = 24;  // bytes a rank may say there
// What it says: one of these and the group's number, or nothing. A sum is known to its owner alone.
constexpr char kNotFinite = '!', kOverflows = '+';

void check_floats(std::string_view what, std::span<const float> values, size_t numel) {
  check(values.size() == numel, "state['", what, "']: has ", values.size(), " elements, must have ",
        numel);
  check(cpu::all_finite(values), "state['", what, "']: holds NaN or infinity, must be finite");
}

void fill_with_nan(Gradient shard) {
  dispatch(shard.dtype, [&]<class T>() {
    std::ranges::fill(shard.as<T>(), from_float<T>(std::numeric_limits<float>::quiet_NaN()));
  });
}

}  // namespace

struct ShardedReducer::State {
  /// What goes to one rank.
  struct Slice {
    std::unique_ptr<Compressor> compressor;
    Feedback memory;
  };

  /// A group's slices, by the rank they are sent to, and their messages. All compressors have one
  /// spec, until another one takes its place.
  struct Slices {
    std::shared_ptr<DeviceState> commits;
    uint64_t change_at;  // committed steps behind which the spec is another one
    std::deque<Slice> to_rank;
    GroupMessages outgoing, incoming;
  };

  struct Group {
    CallTag tag() const { return {fnv1a(what), what}; }

    ShardedGroup of;
    std::string what;
    std::unique_ptr<Slices> slices;   // null where it is not compressed
    std::vector<ConstPayload> parts;  // received, of each rank
    std::atomic<bool> uses_gradient = false;
    bool finite = true;      // all that this rank sent in the step
    bool overflows = false;  // the sum, of what was finite on all ranks
  };

  static SliceState read(const Slice& slice) {
    const std::span<const float> velocity = slice.compressor->velocity();
    return {.residual = slice.memory.residual({0, slice.compressor->shape().numel}),
            .velocity = {velocity.begin(), velocity.end()},
            .learned = slice.compressor->state()};
  }

  /// What both the slice and the state keep.
  static void write(Slice& slice, const SliceState& state) {
    if (slice.compressor->spec().feedback.on && !state.residual.empty()) {
      slice.memory.set_residual(0, state.residual);
    }
    const std::span<float> velocity = slice.compressor->velocity();
    std::ranges::copy_n(state.velocity.begin(),
                        static_cast<ptrdiff_t>(std::min(velocity.size(), state.velocity.size())),
                        velocity.begin());
  }

  State(std::vector<ShardedGroup> of, Transport& over, ShardedOptions how)
      : transport(over),
        options(std::move(how)),
        ranks(static_cast<size_t>(over.world_size())),
        own(static_cast<size_t>(over.rank())),
        worker({}, std::make_shared<ThreadPool>(options.threads), "gw-shards") {
    const CompressorSpec& spec = options.spec;
    check(transport.traits().device.type == DeviceType::kCpu,
          "sharded reducer: the transport carries memory of a GPU, expected one of CPU memory");
    check(!spec.feedback.ef21 && !find_compressor(spec.name).low_rank(),
          "sharded reducer: cannot carry '", to_string(spec),
          "', expected a spec whose payloads one rank decodes alone");
    // The largest first, in whose memory the messages of the others have room.
    std::vector<Group*> order;
    for (ShardedGroup& each : of) {
      Group& group = groups.emplace_back();
      group.what = concat("slices of '", each.name, "'");
      group.of = std::move(each);
      order.push_back(&group);
    }
    std::ranges::stable_sort(order, std::greater<>(), [](const Group* g) { return g->of.numel; });
    for (Group* group : order) {
      group->parts.resize(ranks);
      group->slices = group->of.compressed ? make(*group, 0) : nullptr;
    }
  }

  std::unique_ptr<Slices> make(const Group& group, uint32_t step) {
    const ShardedGroup& of = group.of;
    const CompressorSpec now = spec_in_step(options.spec, step);
    auto commits = std::make_shared<DeviceState>(Device{});
    commits->words()->step = step;
    std::deque<Slice> to_rank;
    for (size_t d = 0; d < ranks; ++d) {
      auto compressor = make_compressor(now, {.numel = of.numel,
                                              .dtype = of.dtype,
                                              .segments = of.segments,
                                              .seed = of.seed + d,
                                              .rank = transport.rank(),
                                              .world_size = transport.world_size()});
      compressor->set_step(step);
      to_rank.push_back({std::move(compressor), Feedback(now, of.numel, {.state = commits})});
    }
    if (std::exchange(messages_behind, step) != step) {
      message_memory = MessageMemory();  // groups go on to another spec together
    }
    message_memory.begin_bucket();
    Compressor& mine = *to_rank[own].compressor;
    const ExchangeContext made_from{.compressors = {&mine},
                                    .transport = &transport,
                                    .tag = group.tag(),
                                    .memory = &message_memory};
    const auto room = [bytes = mine.capacity_bytes()](size_t, size_t) { return bytes; };
    return std::make_unique<Slices>(Slices{.commits = std::move(commits),
                                           .change_at = next_change(options.spec, step),
                                           .to_rank = std::move(to_rank),
                                           .outgoing = GroupMessages(made_from, room),
                                           .incoming = GroupMessages(made_from, room)});
  }

  uint32_t step(const Group& group) const {
    return group.slices != nullptr ? group.slices->commits->words()->step : 0;
  }

  /// Ranks say nothing to each other: all have committed the same.
  void begin_stage(Group& group) {
    if (step(group) < group.slices->change_at) {
      return;
    }
    auto next = make(group, step(group));
    for (size_t d = 0; d < ranks; ++d) {
      write(next->to_rank[d], read(group.slices->to_rank[d]));
    }
    group.slices = std::move(next);
  }

  void begin(size_t g) {
    check(std::ranges::find(pending, g) == pending.end(), "gradients of '", group(g).of.name,
          "': are reduced twice in one backward, must be once; after a backward that broke off a "
          "forward pass must come first");
    pending.push_back(g);
  }

  Group& group(size_t g) {
    check(g < groups.size(), "group: is ", g, ", must be below ", groups.size());
    return groups[g];
  }

  // On the worker's thread.

  void run(size_t g, ConstGradient gradient, Gradient shard, float scale) {
    Group& group = groups[g];
    GroupMessages &outgoing = group.slices->outgoing, &incoming = group.slices->incoming;
    Compressor& mine = *group.slices->to_rank[own].compressor;
    compress(group, gradient);
    group.uses_gradient = false;
    const size_t own_length = incoming.length(own);  // is where it belongs
    transport.all_to_all(outgoing.parts(), incoming.parts(), group.tag(), worker.context);
    incoming.length(own) = own_length;
    bool finite = true;
    incoming.read([&](size_t, size_t) { return Region{0, group.of.numel}; },
                  [&](size_t, size_t r, const MessageReader::Item& item) {
                    group.parts[r] = item.payload;
                    finite = finite && !item.nonfinite;
                  });
    bool sum_is_finite = true;
    if (finite) {
      blame_sender({mine, group.parts, shard, group.what}, worker.context, [&] {
        mine.decompress(group.parts, scale, shard, worker.context, &sum_is_finite);
      });
    }
    group.overflows = !sum_is_finite;
    if (!finite || group.overflows) {
      fill_with_nan(shard);
    }
  }

  void compress(Group& group, ConstGradient gradient) {
    const Region whole{0, group.of.numel};
    group.finite = true;
    for (size_t d = 0; d < ranks; ++d) {
      const Slice& slice = group.slices->to_rank[d];
      const auto write_one = [&](size_t, Region, Payload out) {
        Workspace::Frame frame(worker.context.workspace);
        const Feedback::Lent lent =
            slice.memory.lend(whole, Feedback::Holding::kCommitted, frame, worker.context);
        slice.compressor->compress(gradient.subview(d * whole.end, whole.end), lent.e, lent.e_next,
                                   out, worker.context);
        slice.memory.take_back(whole, lent, worker.context);
        group.finite = group.finite && !is_nonfinite(out);
      };
      GroupMessages& messages = d == own ? group.slices->incoming : group.slices->outgoing;
      messages.write(d, [&](size_t) { return whole; }, write_one);
    }
  }

  // Behind wait().

  std::string words(std::span<const size_t> of_step) const {
    for (const size_t g : of_step) {
      if (!groups[g].finite) {
        return concat(kNotFinite, g);
      }
    }
    const auto over = std::ranges::find_if(of_step, [&](size_t g) { return groups[g].overflows; });
    return over == of_step.end() ? std::string() : concat(kOverflows, *over);
  }

  /// What is wrong with the step, by what each rank said; empty: nothing.
  std::string what_is_wrong(std::span<const std::string> told) {
    // A rank that is to blame comes before owners of sums.
    for (const char kind : {kNotFinite, kOverflows}) {
      const auto said = std::ranges::find_if(
          told, [&](const std::string& words) { return words.starts_with(kind); });
      if (said == told.end()) {
        continue;
      }
      const std::string& name = group(std::stoul(said->substr(1))).of.name;
      return kind == kOverflows
                 ? concat("the sum of the ranks' finite gradients of '", name, "' overflows")
                 : concat("rank ", said - told.begin(), "'s gradients of '", name,
                          "' hold NaN or infinity",
                          options.spec.feedback.on ? ", or overflow with their residuals" : "");
    }
    return {};
  }

  void commit(Group& group) const {
    if (group.slices == nullptr) {
      return;
    }
    cuda::conclude(*group.slices->commits->words(), false);
    for (const Slice& slice : group.slices->to_rank) {
      slice.compressor->commit();
    }
  }

  Transport& transport;
  const ShardedOptions options;
  const size_t ranks, own;
  std::deque<Group> groups;
  MessageMemory message_memory;  // of all groups, which travel one after another
  uint32_t messages_behind = 0;  // the committed steps that it was made behind
  std::vector<size_t> pending;   // in the order of the step
  Worker worker;                 // behind all that its tasks use
};

ShardedReducer::ShardedReducer(std::vector<ShardedGroup> groups, Transport& transport,
                               ShardedOptions options)
    : state_(std::make_unique<State>(std::move(groups), transport, std::move(options))) {}

ShardedReducer::~ShardedReducer() {
  if (pending() > 0) {
    state_->transport.abort(
        concat("rank ", state_->transport.rank(), " left in the middle of a step"));
  }
}

const ShardedGroup& ShardedReducer::group(size_t g) const { return state_->group(g).of; }

size_t ShardedReducer::pending() const { return state_->pending.size(); }

void ShardedReducer::reduce(size_t g, ConstGradient gradient, Gradient shard, float scale) {
  State& s = *state_;
  State::Group& group = s.group(g);
  const ShardedGroup& of = group.of;
  check(of.compressed, "reduce: '", of.name, "' is not compressed, expected reduced()");
  check(gradient.numel == s.ranks * of.numel && gradient.dtype == of.dtype, "gradients of '",
        of.name, "': are ", gradient.numel, " of ", to_string(gradient.dtype), ", must be ",
        s.ranks * of.numel, " of ", to_string(of.dtype));
  check(shard.numel == of.numel && shard.dtype == of.dtype, "shard of '", of.name, "': is ",
        shard.numel, " of ", to_string(shard.dtype), ", must be ", of.numel, " of ",
        to_string(of.dtype));
  s.begin(g);
  s.begin_stage(group);
  group.uses_gradient = true;
  s.worker.stream->enqueue([&s, g, gradient, shard, scale] {
    try {
      s.run(g, gradient, shard, scale);
    } catch (const std::exception& error) {
      // Of this rank alone, such as a payload that does not decode: others wait for its messages.
      s.transport.abort(concat("rank ", s.own, ": ", error.what()));
      throw;
    }
  });
}

void ShardedReducer::reduced(size_t g, bool finite, bool overflows) {
  State::Group& group = state_->group(g);
  check(!group.of.compressed, "reduced: '", group.of.name, "' is compressed, expected reduce()");
  state_->begin(g);
  group.finite = finite;
  group.overflows = overflows;
}

bool ShardedReducer::uses_gradient(size_t g) const { return state_->group(g).uses_gradient; }

void ShardedReducer::wait() { state_->worker.stream->wait(); }

StepOutcome ShardedReducer::commit() {
  State& s = *state_;
  wait();
  const std::vector<size_t> of_step = std::exchange(s.pending, {});
  const auto told =
      s.transport.gather_words(s.words(of_step), kWords, {fnv1a(kEnd), kEnd}, s.worker.context);
  const std::string wrong = s.what_is_wrong(told);
  if (!wrong.empty() && s.options.on_nonfinite == OnNonFinite::kSkip) {
    return StepOutcome::kSkipped;
  }
  if (!wrong.empty()) {
    throw NonFiniteGradient(
        concat("backward: ", wrong, ", expected finite values; nothing was committed on any rank"));
  }
  for (const size_t g : of_step) {
    s.commit(s.groups[g]);
  }
  return StepOutcome::kCommitted;
}

void ShardedReducer::abandon() {
  if (pending() > 0) {
    state_->pending.clear();
    wait();
  }
}

uint32_t ShardedReducer::step(size_t g) const { return state_->step(state_->group(g)); }

std::vector<std::vector<float>> ShardedReducer::residuals(size_t g) {
  const State::Group& group = state_->group(g);
  wait();  // for a step that broke off
  std::vector<std::vector<float>> residuals;
  for (size_t d = 0; group.slices != nullptr && d < state_->ranks; ++d) {
    residuals.push_back(group.slices->to_rank[d].memory.residual({0, group.of.numel}));
  }
  return residuals;
}

std::vector<SliceState> ShardedReducer::state(size_t g) {
  State::Group& group = state_->group(g);
  wait();
  std::vector<SliceState> states;
  if (group.slices != nullptr) {
    state_->begin_stage(group);
    std::ranges::transform(group.slices->to_rank, std::back_inserter(states), State::read);
  }
  return states;
}

void ShardedReducer::set_state(size_t g, uint32_t step, std::span<const SliceState> state) {
  State::Group& group = state_->group(g);
  check(pending() == 0, "state of '", group.of.name, "': is set while ", pending(),
        " groups of a step are pending, must be between steps");
  const size_t slices = group.slices != nullptr ? state_->ranks : 0;
  check(state.size() == slices, "state of '", group.of.name, "': has ", state.size(),
        " slices, must have ", slices);
  if (slices == 0) {
    return;
  }
  auto fresh = state_->make(group, step);
  for (size_t d = 0; d < slices; ++d) {
    State::Slice& slice = fresh->to_rank[d];
    if (slice.compressor->spec().feedback.on) {
      check_floats("residual", state[d].residual, group.of.numel);
    }
    if (keeps_velocity(slice.compressor->spec())) {
      check_floats("velocity", state[d].velocity, group.of.numel);
    }
    slice.compressor->set_state(state[d].learned);
    State::write(slice, state[d]);
  }
  group.slices = std::move(fresh);
}

}  // namespace gradwire
