#pragma once
// Compressors whose chunks all take a fixed number of bytes, one record after another: casts and
// block quantizers. They only say how one chunk is encoded and decoded.

#include "gradwire/kernels/compress/internal/chunked.h"
#include "gradwire/kernels/compress/internal/rounding_numbers.h"

namespace gradwire {

class FixedFormat : public ChunkedFormat {
 public:
  FormatTraits traits() const final { return {.combine = combine(), .fixed_length = true}; }

 protected:
  using ChunkedFormat::ChunkedFormat;

  virtual Combine combine() const { return Combine::kGather; }
  /// Bytes of a chunk of `numel` elements.
  virtual size_t record_bytes(size_t numel) const = 0;
  /// Encodes `x`, the elements of `region`; `decoded`, unless empty, becomes what the record says.
  /// @returns false when x holds NaN or infinity.
  virtual bool encode(std::span<const float> x, Region region, Draw draw, std::byte* record,
                      std::span<float> decoded) const = 0;
  /// One chunk of compress().
  struct Chunk {
    ConstGradient g;  ///< the chunk's elements, as are those of e and e_next
    ConstResidual e;  ///< empty: no feedback
    Residual e_next;  ///< becomes (g + e) - what the record says; empty: not wanted. May be g,
                      ///< which then stays as it was where D would not be finite
    Region region;
    Draw draw;
    bool streaming;  ///< e_next is not read soon
  };
  /// Encodes g + e; the default takes single steps around encode(), with the same bits.
  /// @returns false when g + e holds NaN or infinity.
  virtual bool encode_chunk(const Chunk& chunk, std::byte* record) const;
  /// sum += what the record says.
  virtual void decode(const std::byte* record, std::span<float> sum) const = 0;
  static constexpr size_t kMostParts = 64;  ///< summed together; more go one by one
  /// out = scale * (what at most kMostParts records of one chunk say, added in order); the default
  /// takes single steps around decode(), with the same bits. `streaming`: out is not read soon.
  /// @returns whether all of out is finite.
  virtual bool sum_records(std::span<const std::byte* const> records, float scale, bool streaming,
                           std::span<float> out) const;
  /// No value of a record of `numel` elements is larger in magnitude.
  virtual float most_in_record(const std::byte* record, size_t numel) const = 0;
  /// The largest of `count` float32 scales, which records begin with.
  static float largest_scale(const std::byte* scales, size_t count);
  /// Checks the record of `chunk`; the default accepts any bytes.
  virtual void check_record(const std::byte* record, size_t chunk, PartName name) const;
  virtual bool checks_records() const { return false; }
  /// For records that begin with `count` float32 scales: finite and not negative.
  static void check_scales(const std::byte* scales, size_t count, size_t chunk, PartName name);

  size_t capacity_for(Region region) const final;
  void open_body(Part& part, PartName name, Workspace::Frame& frame, ThreadPool& pool) const final;
  void add_chunk(const Part& part, size_t chunk, std::span<float> sum) const final;
  bool write_sum(std::span<const Part> parts, size_t chunk, float scale, Gradient out) const final;
  float most_in(const Part& part, size_t chunk) const final {
    return most_in_record(record_of(part, chunk), region_of(chunk).numel());
  }
  /// As cannot_overflow(), of records.
  bool records_stay_finite(std::span<const std::byte* const> records, float scale,
                           size_t numel) const;
  void read_sum(std::span<const Part> parts, size_t chunk, float scale,
                std::span<float> out) const final;
  void write(ConstGradient g, ConstResidual e, Residual e_next, Payload out,
             const Work& work) final;
  void write_accumulated(Residual x, Payload out, const Work& work) final;
  void write_slice(const Part& part, Region region, Payload out) const final;
  void write_merged(std::span<const Part> parts, const MergeInput& input, Residual e_next,
                    Payload out, const Work& work) const final;

 private:
  /// Writes where the parts' records of `chunk` begin, of those that have one; how many they are.
  size_t records_of(std::span<const Part> parts, size_t chunk,
                    std::span<const std::byte*, kMostParts> records) const;
  /// Where the part's record of `chunk` (of the group) begins.
  const std::byte* record_of(const Part& part, size_t chunk) const;
  size_t body_bytes(size_t numel) const;
  /// Adds to x again what the body's records took.
  void add_back(const std::byte* body, Residual x, ThreadPool& pool) const;
};

}  // namespace gradwire
