#pragma once
// One compressor per group of a bucket. It never talks to the network.

#include "gradwire/kernels/compress/compressor_registry.h"
#include "gradwire/kernels/compress/compressor_shape.h"
#include "gradwire/kernels/core/memory.h"

namespace gradwire {

class Velocity;

/// Compresses the gradients of one group, by the law in LAW.md: g + e == D + e_next, D being what the
/// payload decodes to. A method with a context enqueues on its stream and returns; spans, views and what
/// they point at stay valid until the stream has passed them. Arguments that do not fit throw
/// InvalidArgument at the call, bytes of received payloads from wait(), on a GPU DeviceState::check().
class Compressor final {
 public:
  explicit Compressor(std::unique_ptr<Format> format);  ///< make_compressor() has one
  ~Compressor();

  const CompressorSpec& spec() const;
  const CompressorShape& shape() const;
  /// Upper bound of a payload in bytes, from spec and shape alone: every rank knows it unasked.
  size_t capacity_bytes() const;
  bool fixed_length() const;  ///< every payload has exactly capacity_bytes()
  /// Exchanges per step. Where 2 (powersgd with rounds=2, of a group with a matrix), compress() writes
  /// the first payload, take_first() is given all ranks', and compress_second() writes what decodes to D.
  int rounds() const;
  size_t first_bytes() const;  ///< of every first payload; 0 where there is one round
  Combine combine() const;
  size_t kept_bytes() const;  ///< of memory between steps, beside its owner's residuals

  /// Reads g and the committed residual e, writes e_next and the payload, whose header says how many
  /// of out's capacity_bytes() count. e and e_next are distinct buffers of numel floats, or both empty.
  /// When g + e, or with ef21 e - D, holds NaN or infinity, the payload carries kFlagNonFinite, is
  /// otherwise valid, and e_next must not be committed. Calls of one step() write the same bytes.
  void compress(ConstGradient g, ConstResidual e, Residual e_next, Payload out, Context& context);
  /// Between the two rounds: takes over scale * (the first payloads, added in order), which must
  /// cover the group and have the same sum on all ranks. The next compress() forgets it.
  void take_first(std::span<const ConstPayload> parts, float scale, Context& context);
  /// Whether take_first() would accept this part: errors as its own. CPU only.
  void check_first(ConstPayload part, Context& context);
  /// The second payload, and e_next: as compress(), with the same g and e, behind take_first().
  void compress_second(ConstGradient g, ConstResidual e, Residual e_next, Payload out,
                       Context& context);
  /// compress() for gradients that were accumulated straight into the residual: `x` holds g + e and
  /// becomes e_next. NOT transactional: the committed residual is gone, and restore() gives g + e
  /// back. Of a flagged payload x stays as it was, as far as restore() is exact. Refused without
  /// feedback, with residual=bf16, velocity, decay, ef21 and two rounds.
  void compress_accumulated(Residual x, Payload out, Context& context);
  /// x += D, of a payload or its slice: undoes compress_accumulated() after an exchange that failed, as
  /// exactly as the law holds. A flagged payload gives nothing.
  void restore(ConstPayload payload, Residual x, Context& context);

  /// sum = scale * (parts added in the order given, in float32), rounded to sum's dtype. Parts are
  /// slices that together tile the group, or whole payloads of several ranks; elements no part
  /// covers become 0. Each part is checked before any of its bytes is used; first payloads are
  /// refused, and second ones before take_first() (from wait(), on a GPU at the call). Where a sum
  /// of finite gradients overflows, `finite` becomes false, on a GPU it is a fault of shape().state.
  void decompress(std::span<const ConstPayload> parts, float scale, Gradient sum, Context& context,
                  bool* finite = nullptr);
  /// `finite` becomes false when decompress() to float32 would write NaN or infinity, and else stays;
  /// nothing is written. For payloads that are handed on; not of powersgd. CPU only.
  void check_sum(std::span<const ConstPayload> parts, float scale, bool& finite, Context& context);

  /// Upper bound of slice() or merge() for `region` in bytes; regions begin and end on chunks.
  size_t slice_capacity_bytes(Region region) const;
  /// The same of slice_at_most(), or of merge() with that many most_entries, for rows that have entries.
  size_t capacity_for_entries(Region region, size_t most_entries) const;
  /// Copies what `payload` says about `region` into `out`, as a payload of its own with the same bits.
  void slice(ConstPayload payload, Region region, Payload out, Context& context);
  /// The same with at most input.most_entries entries, of rows among_all(). The others are given back:
  /// e_next[i] += their values (e_next: the whole group's). Which chunks find room first changes with
  /// step(), so that none waits for ever. CPU only.
  void slice_at_most(const SliceInput& input, Residual e_next, Payload out, Context& context);
  /// out = encoding of scale * sum of the slices over the region. The rank that drops something keeps it:
  /// e_next[region] += sum - D(out) / scale, unless e_next, the whole group's, is empty. A slice's flag
  /// is carried over.
  void merge(const MergeInput& input, Residual e_next, Payload out, Context& context);
  /// `large` becomes true unless this payload of the last compress() shows that no element of e_next
  /// exceeds 2^126: then what exchanges put back of such payloads cannot overflow there. CPU only.
  void look_for_large_rest(ConstPayload payload, bool& large, Context& context);
  /// counts[i] += entries of chunk i of the group, of one count per chunk of 4096 elements, for a whole
  /// payload of a compressor that selects: where regions are to be cut. CPU only.
  void count_entries(ConstPayload payload, std::span<float> counts, Context& context);

  /// Counts commits. On a GPU DeviceState::read() knows it, and the two below throw DeviceError.
  uint32_t step() const;
  /// Makes what the last compress() learned final. The owner of the residual calls it when that commits:
  /// the stream has passed that compress() by then.
  void commit();
  void set_step(uint32_t step);  ///< for checkpoints: what was learned in steps before is forgotten
  /// What committed steps taught this one beyond step(); empty for most. Part of a checkpoint: after
  /// set_step() and set_state() of what state() said, the same calls write the same bytes.
  std::vector<uint64_t> state() const;
  void set_state(std::span<const uint64_t> state);
  /// Takes over what the state of a compressor of other groups says of this one's parameters, in
  /// the same committed step: for plans that change. What it does not know is left as it is.
  void learn_from(std::span<const uint64_t> state);

  /// The committed velocity, a float per element, zeros after set_step(); empty unless the spec
  /// keeps_velocity(), and on a GPU. No part of state(): whoever owns the residual carries both along.
  std::span<float> velocity();
  /// The same on any device: enqueue to = it, and it = from, behind DeviceState::set_step(), which
  /// forgets it. @throws InvalidArgument unless the spec keeps one.
  void read_velocity(Residual to, Context& context);
  void write_velocity(ConstResidual from, Context& context);

 private:
  friend class PayloadSum;
  std::unique_ptr<Format> format_;
  std::unique_ptr<Velocity> velocity_;  // null: none is kept
};

/// @throws InvalidArgument for a bad spec or shape (segments that do not tile numel, numel above
/// 2^31, a negative rank); DeviceError for a CUDA shape where the row has no form for it (on_gpu),
/// there is no such GPU, or the build has no CUDA.
std::unique_ptr<Compressor> make_compressor(const CompressorSpec& spec, CompressorShape shape);

}  // namespace gradwire
