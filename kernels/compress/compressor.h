#pragma once
// One compressor per group of a bucket. It never talks to the network.

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "gradwire/kernels/compress/payload.h"
#include "gradwire/kernels/compress/spec.h"
#include "gradwire/kernels/core/memory.h"

namespace gradwire {

class ChunkedCompressor;
class DeviceState;

/// A run of a group's elements that belongs to one parameter. Segments follow one another.
struct Segment {
  uint32_t parameter = 0;  ///< id, the same on all ranks
  uint64_t offset_in_parameter = 0;
  size_t numel = 0;
  /// Where the run is a whole matrix: its rows, which divide numel, row by row. 0 or 1: it is none.
  size_t rows = 0;
};

/// Elements of a group at most, and so of a parameter.
inline constexpr size_t kMostNumel = size_t{1} << 31;

/// What a compressor must know about its group, the same on all ranks except `rank`.
struct CompressorShape {
  size_t numel = 0;
  DType dtype = DType::kFloat32;  ///< of the gradient
  Device device{};
  std::vector<Segment> segments = {};  ///< tile the group; empty: one parameter with id 0
  uint64_t seed = 0;                   ///< of stochastic rounding and of randomk's choice
  int rank = 0;
  int world_size = 1;  ///< senders whose payloads become one mean: dgc clips by it
  uint32_t bucket = 0;  ///< on a GPU: named when a sum of the group's payloads overflows
  /// On a GPU: what commits together shares one (device_state.h). None: a state of its own.
  std::shared_ptr<DeviceState> state = nullptr;
};

/// How payloads of several ranks become one gradient: their values add up in flight, or they are
/// gathered and merged at the receiver.
enum class Combine : uint8_t { kSum, kGather };

/// What merge() sums: payloads that all cover `region`, in rank order.
struct MergeInput {
  std::span<const ConstPayload> slices;
  Region region;
  float scale = 1.0f;  ///< the output encodes scale * sum: 1 / world_size for a mean
  /// On a GPU: the e that compress() was passed beside e_next, so that the parity chooses between
  /// them. Empty: e_next itself is written.
  ConstResidual e = {};
  /// Of rows with CompressorRow::among_all: at most so many entries, the largest sums, instead of
  /// the region's share. 0: that share. CPU only.
  size_t most_entries = 0;
  /// Where several ranks merge the same payloads and are to write the same bytes: a number above 0
  /// that they share, and no other merge of the step has. It takes the place of the rank in
  /// stochastic rounding. 0: this rank merges alone.
  uint32_t meeting = 0;
};

/// What decompress_region() writes: the sum of the parts over a region.
struct RegionSum {
  std::span<const ConstPayload> parts;
  Region region;
  float scale = 1.0f;
  Gradient sum;
  /// On the CPU, unless null: becomes false when what is written holds NaN or infinity, and else
  /// stays. On a GPU the state's words say it.
  bool* finite = nullptr;
};

/// What slice_at_most() copies.
struct SliceInput {
  ConstPayload payload;
  Region region;
  size_t most_entries = 0;  ///< of the slice
};

/// Compresses the gradients of one group. Every method enqueues on the context's stream and
/// returns; spans, views and what they point at stay valid until the stream has passed them.
///
/// On a GPU all memory is the GPU's, and a CUDA graph can capture every call once the workspace has
/// grown (after two steps). e and e_next are then always passed in the same order: which of the two
/// is committed, and the step, are device words of shape().state, which DeviceState::commit()
/// moves. What the bytes of received payloads hold is checked on the GPU; a fault makes commits do
/// nothing until DeviceState::check() has reported it and clear() was called.
///
/// Error-feedback law, per element: g + e == D + e_next, D being what the payload decodes to (exact
/// for selection and for nearest rounding, else, and where a 16-bit value saturates, to one
/// rounding of float32). A spec with a decay: decay e, rounded to float32, in the place of e. With
/// a momentum: u = momentum u + g in the place of g, and where a compressor that selects sends, u
/// becomes 0 (Lin et al., arXiv:1712.01887). A spec with ef21: e is -s, where s is the sum of all
/// D, and e - D == e_next, to one rounding of float32 (Richtarik et al., arXiv:2106.05203): the
/// mean of all ranks' s is the gradient's estimate, and whoever owns e keeps it. Put-backs are
/// added to e_next as ever, and so taken from s. With an eta: v = (1 - eta) v + eta g in the place
/// of g (Fatkhullin et al., arXiv:2305.15155). Without feedback both residual spans are empty and
/// what the payload leaves out is lost.
class Compressor {
 public:
  virtual ~Compressor() = default;

  const CompressorSpec& spec() const { return spec_; }
  const CompressorShape& shape() const { return shape_; }

  /// Upper bound of a payload in bytes, from spec and shape alone: every rank knows it unasked.
  virtual size_t capacity_bytes() const = 0;
  /// Whether every payload has exactly capacity_bytes().
  virtual bool fixed_length() const = 0;
  /// Exchanges per step. Where 2 (powersgd with rounds=2, of a group with a matrix), the payload of
  /// compress() is the first; take_first() is given the sum of all ranks', and compress_second()
  /// writes the payload that decodes to D. Sliced, merged and added up are both alike.
  virtual int rounds() const { return 1; }
  /// Bytes of every first payload; 0 where there is one round.
  virtual size_t first_bytes() const { return 0; }
  virtual Combine combine() const = 0;
  /// Memory that it keeps between steps beside its owner's residuals: both buffers of a velocity.
  virtual size_t kept_bytes() const { return 0; }

  /// Reads g and the committed residual e, writes e_next and the payload. `out` holds at least
  /// capacity_bytes(); the header's `bytes` says how much of it counts. e and e_next are distinct
  /// buffers of numel floats, or both empty. When g + e holds a NaN or an infinity, with ef21 also
  /// when e - D does (the sum of what was sent overflows), the payload carries kFlagNonFinite, is
  /// otherwise valid, and e_next must not be committed.
  /// The call reads step() and does not advance it: the same call writes the same bytes.
  virtual void compress(ConstGradient g, ConstResidual e, Residual e_next, Payload out,
                        Context& context) = 0;

  /// Between the two rounds: takes over scale * (the first payloads, added in order), which must
  /// cover the group and have the same sum on all ranks. The next compress() forgets it. Errors as
  /// of decompress().
  /// @throws InvalidArgument where there is one round.
  virtual void take_first(std::span<const ConstPayload> parts, float scale, Context& context);
  /// Whether take_first() would accept this part of what covers the group: errors as its own.
  /// @throws InvalidArgument where there is one round, and on a GPU.
  virtual void check_first(ConstPayload part, Context& context);
  /// The second payload, and e_next: arguments and errors as of compress(), with the same g and e.
  /// @throws InvalidArgument where there is one round, and (from wait()) before take_first().
  virtual void compress_second(ConstGradient g, ConstResidual e, Residual e_next, Payload out,
                               Context& context);

  /// compress() for gradients that were accumulated straight into the residual: `x` (numel floats)
  /// holds g + e and becomes e_next; the payload is the one compress() would write. NOT
  /// transactional: the committed residual is gone, and restore() of the payload gives g + e back.
  /// When x holds NaN or an infinity the payload is flagged and x stays as it was, as far as
  /// restore() is exact. @throws InvalidArgument for a spec without error feedback, for one that
  /// keeps a velocity, lets its residual decay or has ef21: gradient and residual must be known
  /// apart then, and for one of two rounds.
  virtual void compress_accumulated(Residual x, Payload out, Context& context) = 0;

  /// x += D, after an exchange that failed or a step that was skipped: undoes what
  /// compress_accumulated() took for `payload`, or for the region of a slice of it. Exact where the
  /// law of error feedback is, else to one rounding. A flagged payload took nothing and gives
  /// nothing. Errors as of the two others.
  virtual void restore(ConstPayload payload, Residual x, Context& context) = 0;

  /// sum = scale * (parts added in the order given, in float32), rounded to sum's dtype. Parts may
  /// be slices that together tile the group, or whole payloads of several ranks; elements no part
  /// covers become 0. Each part is checked before any of its bytes is used.
  /// Errors (from wait()): InvalidArgument naming the part and the field that is wrong. A first
  /// payload of two rounds is no part of a sum: it is refused, as are second ones before
  /// take_first().
  /// A sum of finite gradients can overflow float32. On the CPU `finite`, unless null, becomes
  /// false then. On a GPU it is a fault of shape().state: nothing is committed. Either costs no
  /// pass over the sum.
  void decompress(std::span<const ConstPayload> parts, float scale, Gradient sum, Context& context,
                  bool* finite = nullptr) {
    decompress_region({parts, {0, shape_.numel}, scale, sum, finite}, context);
  }

  /// `finite` becomes false when decompress() of the parts to float32 would write NaN or infinity,
  /// and else stays; nothing is written. For payloads that are handed on. Errors as of
  /// decompress().
  /// @throws InvalidArgument from powersgd, and on a GPU.
  virtual void check_sum(std::span<const ConstPayload> parts, float scale, bool& finite,
                         Context& context);

  /// The same for the elements of a region alone, of which sum.sum has region.numel().
  virtual void decompress_region(const RegionSum& sum, Context& context) = 0;

  /// Upper bound of slice() or merge() for `region`, in bytes.
  virtual size_t slice_capacity_bytes(Region region) const = 0;

  /// Upper bound of slice_at_most() for `region`, or of merge() with that many most_entries.
  /// Compressors that send every element: slice_capacity_bytes().
  virtual size_t capacity_for_entries(Region region, size_t most_entries) const;

  /// `large` becomes true unless this payload of the last compress() shows that no element of
  /// e_next exceeds 2^126: then what exchanges put back of payloads that show the same cannot
  /// overflow there. It reads what was sent, not e_next. @throws InvalidArgument on a GPU.
  virtual void look_for_large_rest(ConstPayload payload, bool& large, Context& context);

  /// counts[i] += entries of chunk i of the group, for a whole payload of a compressor that
  /// selects; one count per chunk of 4096 elements. Where entries lie decides how regions are cut.
  /// @throws InvalidArgument from compressors that do not select, and on a GPU.
  virtual void count_entries(ConstPayload payload, std::span<float> counts, Context& context);

  /// As slice(), with at most input.most_entries entries. The others are given back:
  /// e_next[i] += their values (e_next: the whole group's, not empty). Which chunks find room first
  /// changes with step(), so that none waits for ever.
  /// @throws InvalidArgument as count_entries().
  virtual void slice_at_most(const SliceInput& input, Residual e_next, Payload out,
                             Context& context);

  /// Copies what `payload` says about `region` into `out`, as a payload of its own and without
  /// re-encoding (the values' bits stay).
  virtual void slice(ConstPayload payload, Region region, Payload out, Context& context) = 0;

  /// out = encoding of scale * sum of the slices over the region. What the re-encoding drops is
  /// kept by the rank that drops it: e_next[region] += sum - D(out) / scale, unless e_next is
  /// empty. `e_next` is the whole group's residual. The flag of any slice is carried over.
  virtual void merge(const MergeInput& input, Residual e_next, Payload out, Context& context) = 0;

  /// The committed step: counts commits and seeds stochastic rounding. On a GPU
  /// DeviceState::read() knows it; commit() and set_step() throw DeviceError there.
  uint32_t step() const { return step_; }
  /// Makes what the last compress() drew, or learned for the next step, final. Called by the owner
  /// of the residual when it commits: the stream has passed that compress() by then.
  virtual void commit() { ++step_; }
  /// For checkpoints: sets the committed step. What was learned in steps before is forgotten.
  virtual void set_step(uint32_t step) { step_ = step; }

  /// What earlier committed steps taught this one beyond step(); empty for most. Part of a
  /// checkpoint: after set_step() and set_state() of what state() said, the same calls write the
  /// same bytes. @throws InvalidArgument for a state of another shape.
  virtual std::vector<uint64_t> state() const { return {}; }
  virtual void set_state(std::span<const uint64_t> state) {
    check(state.empty(), spec_.name, ": its state has ", state.size(), " words, expected none");
  }
  /// Takes over what the state of a compressor of other groups says of this one's parameters, in
  /// the same committed step: for plans that change. What it does not know is left as it is.
  virtual void learn_from(std::span<const uint64_t>) {}

  /// The committed velocity, a float per element, zeros after set_step(); empty unless the spec
  /// keeps_velocity(), and on a GPU. No part of state(): whoever owns the residual carries both
  /// along, and may write it between steps.
  virtual std::span<float> velocity() { return {}; }
  /// The same on any device, for checkpoints: enqueues to = the committed velocity, numel floats in
  /// the shape's memory. @throws InvalidArgument unless the spec keeps_velocity(), and for sizes.
  virtual void read_velocity(Residual to, Context& context) = 0;
  /// Enqueues: the committed velocity = from, in the step that is committed by then. On a GPU
  /// DeviceState::set_step() forgets it, so that is called before. Errors as of read_velocity().
  virtual void write_velocity(ConstResidual from, Context& context) = 0;

 protected:
  Compressor(CompressorSpec spec, CompressorShape shape)
      : spec_(std::move(spec)), shape_(std::move(shape)) {}

 private:
  CompressorSpec spec_;
  CompressorShape shape_;
  uint32_t step_ = 0;
};

/// @throws InvalidArgument for a bad spec or shape (segments that do not tile numel, numel above
/// 2^31, a negative rank); DeviceError for a CUDA shape where the row has no form for it (on_gpu),
/// there is no such GPU, or the build has no CUDA.
std::unique_ptr<Compressor> make_compressor(const CompressorSpec& spec, CompressorShape shape);

/// Which elements a compressor sends.
enum class Selection : uint8_t {
  kAll,
  kLargest,              ///< of the group
  kLargestOfChunks,      ///< of each chunk
  kLargestOfParameters,  ///< of each parameter
  kLargestBlocks,        ///< runs of elements, whole
  kAboveThreshold,       ///< about the largest of the group
  kLargestVelocities,    ///< of the group, after momentum; the density may fall with the steps
  kDrawn,                ///< at random of each chunk, the same on all ranks
  kFactors,              ///< none: products of two factors of each matrix, which decode together alone
};

/// One row per compressor; tests, benchmarks, bindings and the README's table iterate over them.
struct CompressorRow {
  std::string_view name;
  std::string_view summary;  ///< one line for tables
  std::string_view example;  ///< a spec string that uses it
  Selection select = Selection::kAll;
  ValueCodec default_values;
  bool default_error_feedback = false;
  bool takes_rounding = false;             ///< "nearest" or "stochastic"
  Rounding rounding = Rounding::kNearest;  ///< the default, and the only one unless takes_rounding
  bool takes_levels = false;               ///< ":S"
  /// At most, of |x|^2, without feedback, where the payload's encoding is not that of
  /// default_values. 0: it is, and the codec's rounding says what is lost.
  double most_lost = 0;
  std::string_view source;  ///< paper or definition
  std::unique_ptr<Compressor> (*make)(const CompressorSpec&, CompressorShape);
  /// What `make` gave, on the shape's GPU: the same bytes. Null: the row is refused there.
  std::unique_ptr<Compressor> (*on_gpu)(std::unique_ptr<ChunkedCompressor>, CompressorShape) = nullptr;

  /// Takes a density and a value codec.
  constexpr bool selector() const {
    return select != Selection::kAll && select != Selection::kFactors;
  }
  /// Its density is K/4096.
  constexpr bool per_chunk() const {
    return select == Selection::kLargestOfChunks || select == Selection::kDrawn;
  }
  /// Chooses single elements from anywhere in the group: a slice may have room for some entries
  /// only, and a merge may be told how many to send (MergeInput::most_entries).
  constexpr bool among_all() const {
    return select == Selection::kLargest || select == Selection::kAboveThreshold ||
           select == Selection::kLargestVelocities;
  }
  /// All ranks choose the same elements: values alone travel.
  constexpr bool shared_choice() const { return select == Selection::kDrawn; }
  /// Whatever the spec says; takes "clip=", and its compressor counts the steps of its warm-up. The
  /// other rows keep one where the spec has a momentum or an eta.
  constexpr bool keeps_velocity() const { return select == Selection::kLargestVelocities; }
  /// "width=W"
  constexpr bool takes_width() const { return select == Selection::kLargestBlocks; }
  /// Takes ":R". Learns from the sum of all ranks that it decodes last before a commit: all ranks must
  /// decode it.
  constexpr bool low_rank() const { return select == Selection::kFactors; }
  /// "block=N"
  constexpr bool takes_block() const {
    return select == Selection::kAll && has_scales(default_values);
  }
};

std::span<const CompressorRow> compressor_registry();

/// @throws InvalidArgument listing the known names.
const CompressorRow& find_compressor(std::string_view name);

}  // namespace gradwire
