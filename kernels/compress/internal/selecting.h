#pragma once
// Compressors that choose elements and send them as (index, value) entries. They only say which
// elements are chosen; what is chosen is exact whatever the value codec.
//   D = values of the chosen elements, 0 elsewhere;   e_next = (g + e) - D

#include "gradwire/kernels/compress/internal/chunked.h"
#include "gradwire/kernels/compress/internal/rounding_numbers.h"
#include "gradwire/kernels/compress/internal/sparse_body.h"
#include "gradwire/kernels/ops/select.h"

namespace gradwire {

class SelectingFormat : public ChunkedFormat {
 public:
  FormatTraits traits() const final { return {}; }
  uint32_t last_variant() const final { return static_cast<uint32_t>(bodies_.size() - 1); }
  IndexCodec index_codec(uint32_t variant) const { return bodies_[variant].indices(); }
  /// The blocks that indices say, if they say blocks.
  std::span<const BlockSegment> block_segments() const { return segments_; }
  BlockGrid blocks() const { return {segments_.data(), segments_.size(), spec().choice.width}; }

  size_t capacity_for(Region region) const final;
  size_t capacity_for_entries(Region region, size_t most_entries) const final;

 protected:
  /// `entries`: the most that a payload of the whole group holds, of each variant of its header:
  /// the index codec follows from it.
  SelectingFormat(const CompressorSpec& spec, CompressorShape shape,
                  std::span<const size_t> entries);
  SelectingFormat(const CompressorSpec& spec, CompressorShape shape, size_t entries)
      : SelectingFormat(spec, std::move(shape), std::span(&entries, 1)) {}
  /// Sends the blocks of spec.choice.width elements that it chooses, whole.
  SelectingFormat(const CompressorSpec& spec, CompressorShape shape,
                  std::vector<BlockSegment> segments);

  /// Some elements of the group, and the variant of the payload that will hold the chosen ones.
  struct Scope {
    Region region;
    uint32_t variant = 0;
  };
  /// The most entries of a payload of `scope`.
  virtual size_t most_entries(Scope scope) const = 0;
  /// The most indices of one; fewer where they say blocks.
  virtual size_t most_indices(Scope scope) const { return most_entries(scope); }
  /// What is chosen of the scope's region, whose elements `input` holds (its k is not set); for
  /// compress(), which covers the whole group, and for merge(). What it returns lies in `frame`.
  virtual cpu::Selection choose(cpu::SelectInput input, Scope scope, Workspace::Frame& frame,
                                ThreadPool& pool) const = 0;
  /// The variant of what compress() writes in `step`.
  virtual uint32_t variant_in(uint32_t /*step*/) const { return 0; }
  /// For compress() where its choice differs; the default is choose().
  virtual cpu::Selection choose_in_step(cpu::SelectInput input, Workspace::Frame& frame,
                                        const Work& work);

  void open_body(Part& part, PartName name, Workspace::Frame& frame, ThreadPool& pool) const final;
  void add_chunk(const Part& part, size_t chunk, std::span<float> sum) const final;
  bool write_sum(std::span<const Part> parts, size_t chunk, float scale, Gradient out) const final;
  float most_in(const Part& part, size_t chunk) const final;
  void write(ConstGradient g, ConstResidual e, Residual e_next, Payload out,
             const Work& work) final;
  void write_accumulated(Residual x, Payload out, const Work& work) final;
  void write_slice(const Part& part, Region region, Payload out) const final;
  void write_slice_at_most(const Part& part, const SliceInput& input, Residual e_next, Payload out,
                           const Work& work) const final;
  void write_merged(std::span<const Part> parts, const MergeInput& input, Residual e_next,
                    Payload out, const Work& work) const final;

 private:
  /// choose_in_step(), and what is chosen leaves the velocity.
  cpu::Selection choose_and_mask(cpu::SelectInput input, Workspace::Frame& frame,
                                 const Work& work);
  struct Chosen;
  struct Union;
  /// What emit() encodes: scale * x at the chosen elements.
  struct Emission {
    Region region;
    float scale = 1.0f;
    uint8_t flags = 0;
    uint32_t variant = 0;
    Draw draw{};  ///< for values that are rounded by chance
    const float* touched = nullptr;  ///< written at the chosen elements by keep()
  };
  /// What the parts hold together: their sums, in order of the elements.
  Union unite(std::span<const Part> parts, Region region, Workspace::Frame& frame,
              ThreadPool& pool) const;
  void write_merged_at_most(std::span<const Part> parts, const MergeInput& input, Residual e_next,
                            Payload out, const Work& work) const;
  template <class Keep>
  void emit(const Emission& what, const cpu::Selection& selection, Payload out,
            Workspace::Frame& frame, ThreadPool& pool, const Keep& keep) const;

  const SparseBody& body_of(const Part& part) const { return bodies_[part.variant]; }
  /// That of most entries, where payloads of several variants meet.
  uint32_t merged_variant(std::span<const Part> parts, const Work& work) const;

  Draw draw_of_merge(const MergeInput& input, const Work& work) const {
    return {work.step, merge_stage(shape().rank, input.meeting)};
  }

  const std::vector<BlockSegment> segments_;  // of blocks
  std::vector<SparseBody> bodies_;            // of each variant
  const RoundingNumbers numbers_;
};

}  // namespace gradwire
