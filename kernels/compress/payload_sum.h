#pragma once
// What decompress() makes of payloads, read in pieces: an optimizer that steps from it (Binding's
// reader) needs no dense gradient. CPU memory alone.

#include <optional>

#include "gradwire/kernels/compress/compressor.h"
#include "gradwire/kernels/core/element_reader.h"

namespace gradwire {

class ChunkedCompressor;
struct Part;

class PayloadSum final : public ElementReader {
 public:
  /// The compressor stays where it is. @throws InvalidArgument unless it is in CPU memory and its
  /// payloads decode chunk by chunk: those of powersgd decode all at once.
  explicit PayloadSum(const Compressor& compressor);
  ~PayloadSum() override;
  PayloadSum(const PayloadSum&) = delete;
  PayloadSum& operator=(const PayloadSum&) = delete;

  /// Enqueues: checks the payloads and takes over scale * (their sum, added in the order given, in
  /// float32) as decompress() would write it to float32. `parts` is kept until the stream has
  /// passed the call, the payloads for as long as they are read. What was held before is let go.
  /// Memory grows with the number of entries the first times, and then is used again. Errors (from
  /// wait()): as of decompress(); then nothing is held.
  void open(std::span<const ConstPayload> parts, float scale, Context& context);

  /// Of the group.
  size_t numel() const override;
  /// @throws InvalidArgument where nothing is held or the elements are not the group's.
  void read(size_t begin, std::span<float> out) const override;
  /// Of selections: chunks to which no payload has an entry.
  bool known_zero(size_t begin, size_t count) const override;
  /// Of where the payloads' entries begin; the payloads are the caller's.
  size_t held_bytes() const { return workspace_.capacity_bytes(); }

 private:
  bool empty_chunk(size_t chunk) const;
  void check_held(size_t begin, size_t count) const;

  const ChunkedCompressor& compressor_;
  Workspace workspace_;
  std::optional<Workspace::Frame> frame_;
  std::span<const Part> parts_;
  float scale_ = 1.0f;
};

}  // namespace gradwire
