// Adding a row: a line in kCompress or kSum for a spec, or a Case in cases() for anything else.
#include "bench/cuda_rows.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <random>

#include "bench/cuda_peers.h"
#include "bench/parameter_shapes.h"
#include "gradwire/kernels/compress/payload_sum.h"
#include "gradwire/kernels/ops/norms_cuda.h"
#include "gradwire/optimizers/optimizer.h"

namespace gradwire::bench {
namespace {

constexpr size_t kLarge = 100'000'000;  // elements; from here on launches do not count

struct Goal {
  const char* spec;
  double at_25m, at_110m;  // floor / time; 0: none
};

/// compress(): error feedback where the spec has it, from one residual into the other.
constexpr Goal kCompress[] = {
    {"fp16", 0, 0},
    {"bf16", 0, 0},
    {"int8", 0.80, 0.90},
    {"int8,stochastic", 0.80, 0.90},
    {"int4", 0.80, 0.90},
    {"int4,stochastic", 0.80, 0.90},
    {"2bit", 0.80, 0.90},
    {"2bit,stochastic", 0.80, 0.90},
    {"1bit", 0.80, 0.90},
    {"topk:0.1%", 0.70, 0.85},
    {"topk:1%", 0.70, 0.85},
    {"topk:10%", 0.70, 0.85},
    {"topk:1%,int4", 0.70, 0.85},
    {"chunktopk:41/4096", 0.75, 0.80},
    {"threshold:1%", 0.80, 0.92},
    {"e4m3", 0, 0},
    {"e4m3,stochastic", 0, 0},
    {"e5m2", 0, 0},
    {"ternary", 0, 0},
    {"natural", 0, 0},
    {"qsgd:7", 0, 0},
    {"randomk:1%", 0, 0},
    {"dgc:0.1%", 0, 0},
    {"dgc:0.1%,clip=1", 0, 0},
    {"tensortopk:1%", 0, 0},
    {"blocktopk:1%", 0, 0},
    {"powersgd:4", 0, 0},
};

/// decompress(): the mean of several ranks' payloads.
struct SumGoal {
  Goal goal;
  size_t ranks;
};
constexpr SumGoal kSum[] = {
    {{"int8", 0.75, 0.88}, 8},
    {{"int4", 0.75, 0.88}, 8},
    {{"2bit", 0.75, 0.88}, 8},
    {{"1bit", 0.75, 0.88}, 8},
    {{"fp16", 0, 0}, 8},
    {{"topk:1%", 0.65, 0.75}, 16},
    {{"topk:1%,int4", 0.65, 0.75}, 16},
    {{"e4m3", 0, 0}, 8},
    {{"natural", 0, 0}, 8},
    {{"qsgd:7", 0, 0}, 8},
    {{"randomk:1%", 0, 0}, 16},
    {{"dgc:0.1%", 0, 0}, 16},
    {{"tensortopk:1%", 0, 0}, 16},
    {{"blocktopk:1%", 0, 0}, 16},
    {{"powersgd:4", 0, 0}, 8},
};

/// A step of a float32 parameter, and the bytes of an element that its update must move; LAMB and
/// LARS read what they take norms of once more. kPrepared: with prepare(), which writes gradients.
enum class StepInput { kWhole, kSlices, kPrepared };
struct StepGoal {
  const char* spec;
  double bytes;
  StepInput input = StepInput::kWhole;
};
constexpr StepGoal kStep[] = {{"sgd", 20},
                              {"adamw", 28},
                              {"lars", 28},
                              {"lamb", 40},
                              {"lamb", 40, StepInput::kSlices},
                              {"diloco", 36, StepInput::kPrepared},
                              {"onebit-adam:freeze_step=1", 36, StepInput::kPrepared},
                              {"onebit-lamb:freeze_step=1", 64, StepInput::kPrepared}};

double goal_at(const Goal& goal, size_t numel) {
  return numel >= kLarge ? goal.at_110m : goal.at_25m;
}

cudaStream_t handle(Stream& stream) { return static_cast<cudaStream_t>(stream.native_handle()); }

PeerMemory peer_memory(const Arena& arena, int set) {
  return {arena.g(set), arena.e(set), arena.e_next(set)};
}

/// The true length of a payload in device memory.
double length_of(const Buffer& payload, Stream& stream) {
  PayloadHeader header;  // alone, where read_header() wants all that it states
  copy_bytes(std::as_writable_bytes(std::span(&header, 1)), {}, payload.bytes().first(sizeof header),
             kGpu, stream);
  stream.wait();
  return static_cast<double>(header.bytes);
}

/// A compressor on the GPU and what it needs.
struct OnGpu {
  OnGpu(const char* spec, size_t numel, Stream& on)
      : compressor(make_compressor(
            parse_spec(spec),
            {.numel = numel, .device = kGpu, .segments = layers_of(numel), .seed = 1})),
        stream(on) {}
  void compress(const Arena& arena, int set, const Buffer& payload) {
    const bool feedback = compressor->spec().feedback.on;
    compressor->compress({arena.g(set).data(), arena.numel(), DType::kFloat32, kGpu},
                         feedback ? arena.e(set) : Residual(),
                         feedback ? arena.e_next(set) : Residual(), payload.bytes(), context);
  }
  std::unique_ptr<Compressor> compressor;
  Stream& stream;
  Workspace workspace{kGpu};
  Context context{stream, workspace};
  std::vector<Buffer> payloads;
  std::vector<ConstPayload> parts;
};

/// Bytes of an element that nobody can avoid: g is read, twice where it is clipped by its norm;
/// with error feedback e is read and e_next written; with a velocity u is read and its next value
/// written. The payload comes on top.
double element_bytes(const CompressorSpec& spec) {
  return (spec.feedback.clip > 0 ? 8.0 : 4.0) + (spec.feedback.on ? 8.0 : 0.0) +
         (find_compressor(spec.name).keeps_velocity() ? 8.0 : 0.0);
}

Case compress_case(const Goal& goal, const Arena& arena, Stream& stream) {
  const auto prepare = [&arena, &stream, spec = goal.spec](Row& row) -> Work {
    auto state = std::make_shared<OnGpu>(spec, arena.numel(), stream);
    for (int set = 0; set < kSets; ++set) {
      state->payloads.emplace_back(state->compressor->capacity_bytes(), kGpu);
    }
    state->compress(arena, 0, state->payloads[0]);
    row.bytes = element_bytes(state->compressor->spec()) * static_cast<double>(arena.numel()) +
                length_of(state->payloads[0], stream);
    return [state, &arena](int set) {
      state->compress(arena, set, state->payloads[static_cast<size_t>(set)]);
    };
  };
  return {{.op = concat("compress ", goal.spec),
           .by = "gradwire",
           .goal = goal_at(goal, arena.numel())},
          prepare};
}

/// So many ranks' payloads. @returns their bytes.
double receive(OnGpu& state, const Arena& arena, size_t ranks) {
  double bytes = 0;
  for (size_t rank = 0; rank < ranks; ++rank) {
    state.payloads.emplace_back(state.compressor->capacity_bytes(), kGpu);
    state.compress(arena, static_cast<int>(rank) % kSets, state.payloads.back());
    bytes += length_of(state.payloads.back(), state.stream);
    state.parts.push_back(state.payloads.back().bytes());
  }
  return bytes;
}

Case sum_case(const SumGoal& sum, const Arena& arena, Stream& stream) {
  const auto prepare = [&arena, &stream, sum](Row& row) -> Work {
    auto state = std::make_shared<OnGpu>(sum.goal.spec, arena.numel(), stream);
    row.bytes = 4.0 * static_cast<double>(arena.numel()) + receive(*state, arena, sum.ranks);
    return [state, &arena](int set) {
      state->compressor->decompress(
          state->parts, 1.0f / static_cast<float>(state->parts.size()),
          {arena.e_next(set).data(), arena.numel(), DType::kFloat32, kGpu}, state->context);
    };
  };
  return {{.op = concat("mean of ", sum.ranks, " x ", sum.goal.spec),
           .by = "gradwire",
           .goal = goal_at(sum.goal, arena.numel())},
          prepare};
}

Case norms_case(const Arena& arena, Stream& stream) {
  constexpr size_t kBlock = 65536;
  const auto prepare = [&arena, &stream](Row&) -> Work {
    auto sums = std::make_shared<Buffer>(((arena.numel() + kBlock - 1) / kBlock + 1) * 8, kGpu);
    return [sums, &arena, &stream](int set) {
      const std::span<double> blocks = sums->as<double>().subspan(1);
      cuda::sums_of_squares(arena.g(set), kBlock, blocks, stream);
      cuda::add_in_order(blocks, sums->as<double>().data(), stream);
    };
  };
  return {
      {.op = "sum of squares", .by = "gradwire", .bytes = 4.0 * static_cast<double>(arena.numel())},
      prepare};
}

constexpr size_t kLayer = 1'000'003;  // elements of a parameter
constexpr size_t kLayerRoom = 1'000'016;  // from one to the next, on 64 bytes

/// A carrier without a link.
const std::function<void(std::span<double>, Stream&)> kOneRank =
    [](std::span<double> values, Stream& on) { cuda::add_parts(values, values, on); };

/// Cut as layers are. Gradients are memory set `set`, and in e_next where they are written.
Case step_case(const StepGoal& goal, const Arena& arena, Stream& stream) {
  struct Stepped {
    explicit Stepped(Stream& on) : context{on, workspace} {}
    Workspace workspace{kGpu};
    Context context;
    std::vector<std::unique_ptr<Optimizer>> of_set;
  };
  const bool slices = goal.input == StepInput::kSlices;
  const auto prepare = [&arena, &stream, goal, slices](Row&) -> Work {
    auto state = std::make_shared<Stepped>(stream);
    for (int set = 0; set < kSets; ++set) {
      const auto gradients = goal.input == StepInput::kPrepared ? arena.e_next(set) : arena.g(set);
      std::vector<Parameter> layers;
      for (size_t at = 0; at < arena.numel(); at += kLayerRoom) {
        const size_t numel = std::min(kLayer, arena.numel() - at);
        layers.push_back({concat("layer", layers.size()),
                          {arena.e(set).data() + at, numel, DType::kFloat32, kGpu},
                          {gradients.data() + at, numel, DType::kFloat32, kGpu}});
      }
      state->of_set.push_back(make_optimizer(parse_optimizer(goal.spec), std::move(layers)));
    }
    return [state, slices](int set) {
      const StepOptions whole{.learning_rate = 1e-6};
      const StepOptions sliced{.learning_rate = 1e-6, .on_device = {.add_up = &kOneRank}};
      const StepOptions& options = slices ? sliced : whole;
      state->of_set[static_cast<size_t>(set)]->prepare(options, state->context);  // nothing of most
      state->of_set[static_cast<size_t>(set)]->apply(options, state->context);
    };
  };
  return {{.op = concat("step ", goal.spec, slices ? " of slices" : ""),
           .by = "gradwire",
           .bytes = goal.bytes * static_cast<double>(arena.numel())},
          prepare};
}

/// AdamW's step from payloads, their checks included; it need not look for what is not finite.
Case read_case(const char* spec, const Arena& arena, Stream& stream) {
  struct Reading {
    OnGpu received;
    PayloadSum sum{*received.compressor};
    std::unique_ptr<Optimizer> optimizer{};
  };
  const auto prepare = [&arena, &stream, spec](Row& row) -> Work {
    const std::shared_ptr<Reading> state(new Reading{{spec, arena.numel(), stream}});
    row.bytes = receive(state->received, arena, 8) + 24.0 * static_cast<double>(arena.numel());
    const TensorView value{arena.e(0).data(), arena.numel(), DType::kFloat32, kGpu};
    const Binding place{value, {}, &state->sum};
    const TensorView unread{arena.g(0).data(), arena.numel(), DType::kFloat32, kGpu};
    state->optimizer = make_optimizer(parse_optimizer("adamw"), {{"all", value, unread}});
    state->optimizer->bind({&place, 1});
    return [state](int) {
      state->sum.open(state->received.parts, 1.0f / 8, state->received.context);
      const StepOptions finite{.learning_rate = 1e-6, .known_finite = true};
      state->optimizer->apply(finite, state->received.context);
    };
  };
  return {{.op = concat("step adamw from 8 x ", spec), .by = "gradwire"}, prepare};
}

/// A chain of a peer; `bytes_per_element` is what the operation itself must move.
Case peer_case(const char* op, const char* by, const Arena& arena, double bytes_per_element,
               Launch launch, std::function<void(int, PeerScratch&)> run) {
  const auto prepare = [&arena, run = std::move(run)](Row&) -> Work {
    auto scratch = std::make_shared<PeerScratch>(arena.numel());
    return [scratch, run](int set) { run(set, *scratch); };
  };
  return {{.op = op, .by = by, .bytes = bytes_per_element * static_cast<double>(arena.numel())},
          prepare,
          launch};
}

Case atomics_case(const Arena& arena, Stream& stream) {
  constexpr size_t kRanks = 16;
  const auto prepare = [&arena, &stream](Row& row) -> Work {
    const size_t k = arena.numel() / 100;
    std::vector<uint32_t> host(k * kRanks);
    std::mt19937 random(7);
    for (size_t i = 0; i < host.size(); ++i) {  // ascending in each rank's list
      host[i] = static_cast<uint32_t>(i % k * 100 + random() % 100);
    }
    auto indices = std::make_shared<Buffer>(host.size() * 4, kGpu);
    auto values = std::make_shared<Buffer>(host.size() * 4, kGpu);
    copy_bytes(indices->bytes(), kGpu, std::as_bytes(std::span(host)), {}, stream);
    stream.wait();
    row.bytes = 4.0 * static_cast<double>(arena.numel()) + 8.0 * static_cast<double>(host.size());
    return [indices, values, &arena, &stream](int set) {
      atomic_add(indices->as<uint32_t>(), values->as<float>(), kRanks, arena.e_next(set),
                 handle(stream));
    };
  };
  return {{.op = "mean of 16 x topk:1%", .by = "memset + atomicAdd"}, prepare};
}

void add_peers(std::vector<Case>& all, const Arena& arena, Stream& stream) {
  const auto chain = [&](auto f) {
    return [&arena, &stream, f](int set, PeerScratch& scratch) {
      f(peer_memory(arena, set), scratch, handle(stream));
    };
  };
  for (const auto& [op, one_in, bytes] :
       {std::tuple("compress topk:0.1%", 1000, 12.006), std::tuple("compress topk:1%", 100, 12.06),
        std::tuple("compress topk:10%", 10, 12.6)}) {
    const size_t k = arena.numel() / static_cast<size_t>(one_in);
    all.push_back(peer_case(op, "CUB sort + select", arena, bytes, Launch::kGraph,
                            chain([k](const PeerMemory& m, PeerScratch& s, cudaStream_t on) {
                              cub_top_k(m, k, s, on);
                            })));
    all.push_back(peer_case(op, "Thrust sort + copy_if", arena, bytes, Launch::kEager,
                            chain([k](const PeerMemory& m, PeerScratch& s, cudaStream_t on) {
                              thrust_top_k(m, k, s, on);
                            })));
  }
  all.push_back(peer_case(
      "compress int8", "CUB segmented reduce", arena, 13.016, Launch::kGraph,
      chain([](const PeerMemory& m, PeerScratch& s, cudaStream_t on) { cub_int8(m, s, on); })));
  all.push_back(peer_case(
      "compress fp16", "Thrust transform", arena, 6.0, Launch::kEager,
      chain([](const PeerMemory& m, PeerScratch& s, cudaStream_t on) { thrust_half(m, s, on); })));
  all.push_back(atomics_case(arena, stream));
}

}  // namespace

std::vector<Case> cases(const Arena& arena, Stream& stream) {
  std::vector<Case> all;
  for (const Goal& goal : kCompress) {
    all.push_back(compress_case(goal, arena, stream));
  }
  for (const SumGoal& sum : kSum) {
    all.push_back(sum_case(sum, arena, stream));
  }
  all.push_back(norms_case(arena, stream));
  for (const StepGoal& goal : kStep) {
    all.push_back(step_case(goal, arena, stream));
  }
  for (const char* spec : {"int8", "topk:1%"}) {
    all.push_back(read_case(spec, arena, stream));
  }
  add_peers(all, arena, stream);
  return all;
}

bool is_of_every_alignment(const Row& row) {
  constexpr std::array kOps{"compress fp16", "compress int8", "compress topk:1%",
                            "mean of 8 x int8", "step adamw"};
  return row.by == "gradwire" && std::ranges::find(kOps, row.op) != kOps.end();
}

}  // namespace gradwire::bench
