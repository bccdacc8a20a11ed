#pragma once
// The table of compressors: one row for each.

#include <memory>
#include <span>
#include <string_view>

#include "gradwire/kernels/compress/compressor_shape.h"
#include "gradwire/kernels/compress/spec.h"

namespace gradwire {

class ChunkedFormat;
class Format;

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
  Codec codec = {};  ///< what a spec leaves out
  FeedbackRule feedback = {};
  bool takes_rounding = false;  ///< "nearest" or "stochastic"; without it the codec's alone
  bool takes_levels = false;               ///< ":S"
  /// At most, of |x|^2, without feedback, where the payload's encoding is not that of
  /// codec.values. 0: it is, and the codec's rounding says what is lost.
  double most_lost = 0;
  std::string_view source;  ///< paper or definition
  /// Its payloads on the CPU, for make_compressor().
  std::unique_ptr<ChunkedFormat> (*make)(const CompressorSpec&, CompressorShape);
  /// What `make` gave, on the shape's GPU: the same bytes. Null: the row is refused there.
  std::unique_ptr<Format> (*on_gpu)(std::unique_ptr<ChunkedFormat>, CompressorShape) = nullptr;

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
    return select == Selection::kAll && has_scales(codec.values);
  }
};

std::span<const CompressorRow> compressor_registry();

/// @throws InvalidArgument listing the known names.
const CompressorRow& find_compressor(std::string_view name);

}  // namespace gradwire
