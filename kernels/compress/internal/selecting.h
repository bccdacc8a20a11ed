#pragma once
// Compressors that choose elements and send them as (index, value) entries. They only say which
// elements are chosen; what is chosen is exact whatever the value codec.
//   D = values of the chosen elements, 0 elsewhere;   e_next = (g + e) - D

#include "gradwire/kernels/compress/internal/chunked.h"
#include "gradwire/kernels/compress/internal/sparse_body.h"
#include "gradwire/kernels/ops/select.h"

namespace gradwire {

class SelectingCompressor : public ChunkedCompressor {
 public:
  bool fixed_length() const final { return false; }
  Combine combine() const final { return Combine::kGather; }
  IndexCodec index_codec() const { return body_.indices(); }

 protected:
  /// `entries`: the most that a payload of the whole group holds.
  SelectingCompressor(const CompressorSpec& spec, CompressorShape shape, size_t entries);

  /// The most entries of a payload of `region`.
  virtual size_t most_entries(Region region) const = 0;
  /// What is chosen of `region`, whose elements `input` holds (its k is not set); for compress(),
  /// which covers the whole group, and for merge(). What it returns lies in `frame`.
  virtual cpu::Selection choose(cpu::SelectInput input, Region region, Workspace::Frame& frame,
                                ThreadPool& pool) const = 0;
  /// For compress() where its choice differs; the default is choose().
  virtual cpu::Selection choose_in_step(cpu::SelectInput input, Workspace::Frame& frame,
                                        const Work& work);

  size_t capacity_for(Region region) const final;
  void open_body(Part& part, PartName name, Workspace::Frame& frame, ThreadPool& pool) const final;
  void add_chunk(const Part& part, size_t chunk, std::span<float> sum) const final;
  void write_sum(std::span<const Part> parts, size_t chunk, float scale, Gradient out) const final;
  void write(ConstGradient g, ConstResidual e, Residual e_next, Payload out,
             const Work& work) final;
  void write_accumulated(Residual x, Payload out, const Work& work) final;
  void write_slice(const Part& part, Region region, Payload out) const final;
  void write_merged(std::span<const Part> parts, const MergeInput& input, Residual e_next,
                    Payload out, const Work& work) const final;

 private:
  struct Chosen;
  /// What emit() encodes: scale * x at the chosen elements.
  struct Emission {
    Region region;
    float scale = 1.0f;
    uint8_t flags = 0;
    const float* touched = nullptr;  ///< written at the chosen elements by keep()
  };
  template <class Keep>
  void emit(const Emission& what, const cpu::Selection& selection, Payload out,
            Workspace::Frame& frame, ThreadPool& pool, const Keep& keep) const;

  const SparseBody body_;
};

}  // namespace gradwire
