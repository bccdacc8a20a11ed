#pragma once
// What decompress() makes of payloads, read in pieces: an optimizer that steps from it (Binding's
// reader) needs no dense gradient.

#include <optional>

#include "gradwire/kernels/compress/compressor.h"
#include "gradwire/kernels/core/element_reader.h"

namespace gradwire {

class ChunkedFormat;
class CudaFormat;
struct Part;

class PayloadSum final : public ElementReader {
 public:
  /// The compressor stays where it is. @throws InvalidArgument unless its payloads decode chunk by
  /// chunk: those of powersgd decode all at once, and on a GPU those of randomk are drawn.
  explicit PayloadSum(const Compressor& compressor);
  ~PayloadSum() override;
  PayloadSum(const PayloadSum&) = delete;
  PayloadSum& operator=(const PayloadSum&) = delete;

  /// Enqueues: checks the payloads and takes over scale * (their sum, added in the order given, in
  /// float32) as decompress() would write it to float32. `parts` is kept until the stream has
  /// passed the call, the payloads for as long as they are read. What was held before is let go.
  /// Memory grows with the number of entries the first times, and then is used again. Errors (from
  /// wait()): as of decompress(); then nothing is held. Of a payload whose gradient was not finite
  /// all that is read is NaN.
  /// On a GPU the number of parts decides what memory is needed, and growing it waits; a CUDA graph
  /// captures a call that needs no more. Faults are decompress()'s, kept by the compressor's state.
  void open(std::span<const ConstPayload> parts, float scale, Context& context);

  /// Of the group.
  size_t numel() const override;
  /// Where the payloads are.
  Device device() const override;
  /// @throws InvalidArgument where nothing is held or the elements are not the group's, and on a
  /// GPU, where kernels read.
  void read(size_t begin, std::span<float> out) const override;
  /// Of selections: chunks to which no payload has an entry. On a GPU never.
  bool known_zero(size_t begin, size_t count) const override;
  const cuda::PayloadSource* on_device() const override;
  /// Of where the payloads' entries begin; the payloads are the caller's.
  size_t held_bytes() const { return workspace_.capacity_bytes() + table_.size_bytes(); }

 private:
  bool empty_chunk(size_t chunk) const;
  void check_held(size_t begin, size_t count) const;
  void open_on_device(std::span<const ConstPayload> parts, float scale, Context& context);
  const ChunkedFormat& on_cpu() const;

  const Compressor& compressor_;
  const CudaFormat* const on_gpu_;  // null on the CPU
  Workspace workspace_;
  std::optional<Workspace::Frame> frame_;
  std::span<const Part> parts_;
  float scale_ = 1.0f;
  const Buffer source_;  // on a GPU: what kernels read, and the words of checks
  Buffer table_;         // of parts, and where their chunks are placed
  size_t most_parts_ = 0;
};

}  // namespace gradwire
