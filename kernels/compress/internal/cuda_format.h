#pragma once
// What all formats share on a GPU: the opening of received payloads, and the commit's parity. Sizes and
// headers come from the CPU's format of the same spec and shape, so that the two cannot disagree. A
// format then says how elements are encoded and added up.

#include <memory>
#include <optional>
#include <span>

#include "gradwire/kernels/compress/compressor_registry.h"
#include "gradwire/kernels/compress/device_state.h"
#include "gradwire/kernels/compress/internal/chunked.h"
#include "gradwire/kernels/ops/parity_span.h"
#include "gradwire/kernels/ops/parts_cuda.h"
#include "gradwire/kernels/ops/payload_read_cuda.h"
#include "gradwire/kernels/ops/quantize_cuda.h"
#include "gradwire/kernels/ops/seal.h"

namespace gradwire {

class CudaFormat : public Format {
 public:
  FormatTraits traits() const final { return on_cpu_->traits(); }
  size_t capacity_for(Region region) const final { return on_cpu_->capacity_for(region); }

  void compress(const Pass& pass, Payload out, Context& context) final;
  void take_first(std::span<const ConstPayload> parts, float scale, Context& context) override;
  void decompress(std::span<const ConstPayload> parts, const Sum& what, Context& context) final;
  void restore(ConstPayload payload, Residual x, Context& context) final;
  void slice(const SliceInput& input, Residual e_next, Payload out, Context& context) final;
  void merge(const MergeInput& input, Residual e_next, Payload out, Context& context) override;

  /// How bodies are read in pieces; nothing where they decode all at once.
  virtual std::optional<cuda::ReadFormat> read_format() const { return std::nullopt; }
  /// The memory of payloads that are held to be read.
  struct Holding {
    std::span<cuda::DevicePart> table;  ///< one for each
    std::span<std::byte> workspace;     ///< cuda::read_workspace_bytes()
    cuda::StepWords* words;             ///< zero, and again behind the call
    cuda::PayloadSource* source;
  };
  /// Enqueues checks of the payloads, and what is read of them then. Faults are those of
  /// decompress(), and nothing can be read.
  void hold(std::span<const ConstPayload> payloads, float scale, const Holding& to,
            Context& context) const;

 protected:
  CudaFormat(std::unique_ptr<ChunkedFormat> on_cpu, CompressorShape shape);

  /// What is encoded. Of compress(): x and e, or what e_next holds already (in_place, where x is
  /// null); of merge(): scale * x, and put_back takes what is left out.
  struct Encoding {
    ConstTensorView x;
    ConstTensorView given{};  ///< to compress(), before velocity and residual
    cuda::ParitySpan e;
    cuda::ParitySpan e_next;
    cuda::ParitySpan put_back;
    float scale;
    Region region;
    bool in_place = false;
    bool merging = false;
    bool second = false;  ///< of compress_second()
    /// The velocity of the step, to be cleared where elements are sent; empty where there is none.
    cuda::ParitySpan masked{};
    /// Of merge(): what x is the sum of, in device memory.
    std::span<const cuda::DevicePart> parts;
    uint32_t rank_stage;  ///< of stochastic rounding
    cuda::Seal seal;
    Payload body;
  };
  virtual void encode(const Encoding& what, Context& context) = 0;
  /// Whether encode() takes the sum of a velocity and e in_place; else it is an x without e.
  virtual bool encodes_in_place() const { return false; }

  /// sum = scale * (the parts added in order), of the region's elements. `onto`: what the one part
  /// says is added to what the sum holds.
  struct Addition {
    std::span<const cuda::DevicePart> parts;
    float scale;
    Region region;
    TensorView sum;
    bool onto = false;
    cuda::SumFaults overflow{};
  };
  virtual void add_up(const Addition& what, Context& context) = 0;

  /// Copies a region of the one part in `table`; the default is for records of fixed length.
  struct Slicing {
    std::span<const cuda::DevicePart> table;
    Region region;
    Payload out;
  };
  virtual void copy_slice(const Slicing& what, Context& context);

  /// Whether bodies are records of chunks, all of one length but the last.
  bool has_records() const { return traits().fixed_length && traits().by_chunks; }
  /// Checks, on the GPU, payloads that cover nothing in particular.
  std::span<cuda::DevicePart> open_any(std::span<const ConstPayload> payloads,
                                       Workspace::Frame& frame, Context& context) const;
  cuda::ExpectedParts expected_parts(Region region, bool exactly) const;
  cuda::Seal seal_for(Region region, Payload out) const;

  cuda::StepWords* step_words() const { return shape().state->words(); }
  cuda::CallWords* call_words() const;
  cuda::PartFaults faults_of_parts() const { return {step_words(), &step_words()->status}; }
  /// Of a sum whose flag goes to this device word.
  cuda::SumFaults faults_of_sum(uint32_t* flags) const {
    return {step_words(), flags, shape().bucket};
  }
  const ChunkedFormat& on_cpu() const { return *on_cpu_; }
  /// Bytes of the records of a full chunk, where all have the same.
  size_t record_bytes() const;
  /// Device memory with the bytes of `source`, for tables that never change.
  Buffer upload(std::span<const std::byte> source) const;
  /// For state() and its kin, between steps, when no work of the compressor is under way: the words,
  /// and memory of the device, read and overwritten. They wait.
  cuda::StepWords read_words() const;
  void read_memory(std::span<const std::byte> from, std::span<std::byte> to) const;
  void write_memory(std::span<const std::byte> from, std::span<std::byte> to) const;
  /// The shape's segments in device memory; nothing unless the spec rounds stochastically.
  Buffer upload_segments() const;
  cuda::RoundingSource rounding_source(const Buffer& segments, uint32_t rank_stage) const;

 private:
  void write_accumulated(Residual x, Payload out, Context& context);
  void add_back(ConstPayload payload, cuda::PartsWanted wanted, Residual x, Context& context);

  const std::unique_ptr<const ChunkedFormat> on_cpu_;
  const Buffer call_;
};

/// The row's format on the GPU of the shape, which gets a state of its own if it has none.
/// @throws DeviceError where the row has none, or the machine no such GPU.
std::unique_ptr<Format> make_cuda_format(const CompressorRow& row, const CompressorSpec& spec,
                                         CompressorShape shape);

}  // namespace gradwire
