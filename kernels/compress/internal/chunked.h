#pragma once
// What all formats share on the CPU: checks of received bytes, what takes the gradient's place, and the
// sum of parts. A format then says how one chunk is read, and how a group and a region are written.

#include <atomic>
#include <ostream>
#include <string>

#include "gradwire/kernels/compress/internal/format.h"

namespace gradwire {

/// Names a part in messages: "payload part 2".
struct PartName {
  size_t index;
  friend std::ostream& operator<<(std::ostream& out, PartName name) {
    return out << "payload part " << name.index;
  }
};

/// Where a chunk's indices and values begin in a sparse body.
struct ChunkPlace {
  uint64_t indices;
  uint64_t values;
  uint32_t count;
  uint32_t blocks = 0;  ///< indices, where they say blocks
};

/// A received payload that passed every check of its header; open_body() checks the rest.
struct Part {
  Region region;
  uint8_t flags = 0;
  uint32_t variant = 0;                ///< as the header has it
  ConstPayload body;                   ///< what follows the header
  std::span<const ChunkPlace> places;  ///< sparse formats: one per chunk of the region
};

/// What a task may use while it runs.
struct Work {
  ThreadPool& pool;
  Workspace& workspace;
  uint32_t step;        ///< the committed step when the call was made
  bool second = false;  ///< of compress_second()
  const ConstGradient* given = nullptr;  ///< to compress(), before velocity and residual
  /// The velocity of the step in progress, to be cleared where elements are sent; empty where no
  /// momentum is to be masked.
  std::span<float> masked = {};
};

class ChunkedFormat : public Format {
 public:
  void compress(const Pass& pass, Payload out, Context& context) final;
  void take_first(std::span<const ConstPayload> parts, float scale, Context& context) final;
  void decompress(std::span<const ConstPayload> parts, const Sum& what, Context& context) final;
  void restore(ConstPayload payload, Residual x, Context& context) final;
  void slice(const SliceInput& input, Residual e_next, Payload out, Context& context) final;
  void merge(const MergeInput& input, Residual e_next, Payload out, Context& context) final;

  // Of the verbs of Compressor that are the CPU's alone.
  void check_first(ConstPayload part, Context& context);
  void check_sum(std::span<const ConstPayload> parts, float scale, bool& finite, Context& context);
  void look_for_large_rest(ConstPayload payload, bool& large, Context& context);
  void count_entries(ConstPayload payload, std::span<float> counts, Context& context);

  /// The header of a payload of `region` that has `bytes` in all.
  PayloadHeader header_of(Region region, uint8_t flags, size_t bytes, uint32_t variant = 0) const;
  /// The last `variant` of a header that a reader takes; the default is 0.
  virtual uint32_t last_variant() const { return 0; }

  // For PayloadSum.
  std::span<const Part> open_all(std::span<const ConstPayload> payloads, Workspace::Frame& frame,
                                 ThreadPool& pool) const;
  Region region_of(size_t chunk) const;
  /// out = scale * (the parts' values of `chunk`, added in order): floats that are read soon.
  virtual void read_sum(std::span<const Part> parts, size_t chunk, float scale,
                        std::span<float> out) const;

 protected:
  struct Coding {
    PayloadFormat format;
    ValueCodec values;
  };
  ChunkedFormat(const CompressorSpec& spec, CompressorShape shape, Coding coding);

  /// Checks part.body completely and fills the rest of `part`; what it takes from `frame` lives as
  /// long as the part.
  virtual void open_body(Part& part, PartName name, Workspace::Frame& frame,
                         ThreadPool& pool) const = 0;
  /// sum += what the part says about `chunk` (of the group), which its region holds.
  virtual void add_chunk(const Part& part, size_t chunk, std::span<float> sum) const = 0;
  /// The bits of read_sum(), rounded to out's dtype. The default goes through sum_chunk().
  /// @returns whether all of it is finite.
  virtual bool write_sum(std::span<const Part> parts, size_t chunk, float scale,
                         Gradient out) const;
  /// No value that the part has in `chunk` is larger in magnitude. Cheaper than decoding; infinity
  /// where that is not known.
  virtual float most_in(const Part& part, size_t chunk) const;
  /// Whether the parts' values are so small that no sum of them overflows in `chunk`.
  bool cannot_overflow(std::span<const Part> parts, size_t chunk, float scale) const;
  /// The body of take_first(), of those that have two rounds.
  virtual void write_first(std::span<const Part> parts, float scale, const Work& work);
  /// What it throws for one of them, whatever the others cover.
  virtual void check_first_part(const Part& /*part*/, uint32_t /*step*/) const {}
  /// Whether the part shows how large at most the rest is: where something is sent of every place
  /// from which something is left, and what is sent is as large, but for its rounding.
  virtual bool bounds_its_rest(const Part& /*part*/) const { return true; }
  /// The bodies of the public verbs; parts are opened. These two go chunk by chunk, through
  /// write_sum() and add_chunk().
  /// @returns whether all that was written is finite.
  virtual bool write_group(std::span<const Part> parts, const Sum& what, const Work& work);
  /// x[region] += what the part says.
  virtual void add_part(const Part& part, Residual x, const Work& work);
  virtual void write(ConstGradient g, ConstResidual e, Residual e_next, Payload out,
                     const Work& work) = 0;
  /// Leaves x as it was where it flags the payload.
  virtual void write_accumulated(Residual x, Payload out, const Work& work) = 0;
  virtual void write_slice(const Part& part, Region region, Payload out) const = 0;
  /// Of formats that have entries, and rows that choose among all elements.
  virtual void write_slice_at_most(const Part& part, const SliceInput& input, Residual e_next,
                                   Payload out, const Work& work) const;
  virtual void write_merged(std::span<const Part> parts, const MergeInput& input, Residual e_next,
                            Payload out, const Work& work) const = 0;

  void write_header(Payload out, Region region, uint8_t flags, size_t bytes,
                    uint32_t variant = 0) const;
  /// Flags a payload whose header is there already, unless `finite`: what overflows in a residual
  /// would never be sent.
  static void flag_overflow(bool finite, Payload out);
  /// sum = the parts' values of `chunk`, added in order.
  void sum_chunk(std::span<const Part> parts, size_t chunk, std::span<float> sum) const;

 private:
  /// write() where feedback is more than g + e.
  void write_apart(ConstGradient g, ConstResidual e, Residual e_next, Payload out,
                   const Work& work);
  Part open(ConstPayload payload, PartName name, Workspace::Frame& frame, ThreadPool& pool) const;
  /// Enqueues use(work).
  template <class Use>
  void enqueue(Context& context, Use use) {
    context.stream.enqueue([use, &stream = context.stream, &workspace = context.workspace,
                            step = step()] { use(Work{stream.pool(), workspace, step}); });
  }
  /// Enqueues use(part, work) with the checked part of `payload`.
  template <class Use>
  void with_part(ConstPayload payload, Context& context, Use use) {
    enqueue(context, [this, payload, use](const Work& work) {
      Workspace::Frame frame(work.workspace);
      use(open(payload, PartName{0}, frame, work.pool), work);
    });
  }

  std::atomic<bool> large_estimate_ = false;  // of ef21: some |e_next| of the last compress()
  const Coding coding_;
  const std::string text_;  // the spec, for messages
  const uint32_t fingerprint_;
};

/// Whether sums, and scale * sums, of values whose magnitudes add up to `most` stay finite in
/// float32 whatever is rounded.
constexpr bool stays_finite(double most, float scale) {
  return most * (scale > 1.0f ? double{scale} : 1.0) < 1.7e38;  // half of the largest
}

/// ceil(numel / kChunk)
constexpr size_t chunks_of(size_t numel) { return (numel + kChunk - 1) / kChunk; }

}  // namespace gradwire
