#pragma once
// Low-rank factors on a GPU: lowrank.h's sums with its bits. Which side a step of one round sends,
// and which basis it has, is known on the device alone, so that a captured graph follows the
// commits: every launch is made in every step, and what is of the other side returns at once. Of
// two rounds the host knows the side. All memory is the GPU's; nothing is allocated, nothing waits.

#include <optional>
#include <span>

#include "gradwire/kernels/core/stream.h"
#include "gradwire/kernels/ops/lowrank.h"
#include "gradwire/kernels/ops/parity_span.h"
#include "gradwire/kernels/ops/parts_cuda.h"
#include "gradwire/kernels/ops/seal.h"

namespace gradwire::cuda {

/// Rows that a thread block takes, a warp each.
inline constexpr uint32_t kRowsOfBlock = 8;
/// Columns that a thread block takes of a tile of rows.
inline constexpr uint32_t kColsOfBlock = 256;

/// A block's rows of a matrix.
struct RowTask {
  uint32_t matrix = 0, first_row = 0;
};

/// A block's columns of a tile of rows of a matrix.
struct TileTask {
  uint32_t matrix = 0, first_row = 0, first_col = 0;
  uint64_t sums = 0;  ///< where the tile's vectors begin among the sums of all tiles
};

/// What a group is made of, and who takes what.
struct FactorTables {
  std::span<const LowRankMatrix> matrices;
  std::span<const PlainRun> runs;
  std::span<const RowTask> rows;
  std::span<const TileTask> tiles;
  std::span<const uint64_t> tile_sums;  ///< of each matrix, where its first tile's begin
  uint32_t rank = 0;
  uint64_t numel = 0;  ///< of the group
  uint64_t plain = 0, left = 0, right = 0;  ///< floats of a body
  /// Which side is written and decoded; none: that of the step.
  std::optional<FactorSide> side{};
  bool plain_beside_left = true;  ///< left factors travel with the plain elements: of one round
};

/// Of what step factors are: valid where StepWords has the same.
struct FactorTag {
  uint32_t step = 0xFFFFFFFF, epoch = 0;
};

/// The basis of a step: what the one before it left where the parity says, else as drawn.
struct FactorBasis {
  const float* drawn_left = nullptr;
  const float* drawn_right = nullptr;
  float* even = nullptr;  ///< where the parity is 0; room for either side
  float* odd = nullptr;
  /// Of two rounds: the left basis, from the first one of the step. Null: of one round.
  float* first = nullptr;
  FactorTag* tags = nullptr;  ///< two
  const StepWords* step = nullptr;
};

struct FactorInput {
  ConstTensorView x;
  ParitySpan e{};  ///< added to x
  /// Flagged above kMostKept where something of it is kept; none: nothing is.
  ConstTensorView given{};
};

struct FactorOutput {
  ParitySpan e_next{};         ///< takes what is left; may be x itself, which stays if flagged
  std::byte* body = nullptr;   ///< with room for either side; zeros if flagged
  Seal seal{};                 ///< its header gets variant and bytes of the step's side
  std::span<float> factors{};  ///< scratch: either side
  std::span<float> sums{};     ///< scratch: of all tiles
};

/// The floats of a payload: of x + e those of a step, or of one round of it.
void encode_factors(const FactorInput& input, const FactorTables& tables, const FactorBasis& basis,
                    const FactorOutput& output, Stream& stream);

/// A part whose length and side were found right. Without a body: there is nothing to add.
struct FactorPart {
  const std::byte* body = nullptr;
  uint64_t plain_first = 0, plain_count = 0;  ///< floats of a body of the whole group
  uint64_t first = 0, count = 0;              ///< of the factors
  FactorSide side = FactorSide::kLeft;        ///< of all parts of a call
};

/// Of which side parts must be: what the tables say, or all of that which the first of them has.
enum class PartSide : uint8_t { kOfTables, kOfFirstPart };

/// Checks what open_parts() left; parts that fail are left out of `table` and reported. *covered
/// becomes 1 where the parts cover the group, else 0.
void open_factors(std::span<DevicePart> table, PartSide side, const FactorTables& tables,
                  StepWords* step, std::span<FactorPart> parts, uint32_t* covered, Stream& stream);

/// sums = scale * (the parts added in order): plain floats, then factors.
void sum_factors(std::span<const FactorPart> parts, float scale, const FactorTables& tables,
                 const StepWords* step, std::span<float> sums, Stream& stream);

/// out, the whole group = what sums say; `onto`: added, float32 alone.
struct FactorDecoding {
  std::span<const float> sums;
  TensorView out;
  bool onto = false;
  SumFaults overflow{};
};
void decode_factors(const FactorDecoding& decoding, const FactorTables& tables,
                    const FactorBasis& basis, Stream& stream);

/// The factors of `sums` become the next step's basis, orthonormal, where *covered.
void learn_factors(std::span<const float> sums, const uint32_t* covered, const FactorTables& tables,
                   const FactorBasis& basis, Stream& stream);

/// The left factors of `sums` become the basis of the second round, orthonormal. Where *covered is
/// 0 there is none: reported as FaultReason::kRegion.
void take_first_factors(std::span<const float> sums, const uint32_t* covered,
                        const FactorTables& tables, const FactorBasis& basis, StepWords* step,
                        Stream& stream);

/// A region's elements [begin, end) of a payload.
struct FactorRegion {
  uint64_t begin = 0, end = 0;
};

/// A payload of the region: scale * (the parts, which all are of it, added in order).
void merge_factors(std::span<const FactorPart> parts, float scale, const FactorRegion& region,
                   const FactorTables& tables, const Seal& seal, const StepWords* step,
                   Stream& stream);

/// A payload of the region from the one part in `table`; 32 zero bytes where there is none.
struct FactorSlice {
  std::span<const DevicePart> table;
  std::span<const FactorPart> parts;
  FactorRegion region;
  PayloadHeader header{};
  std::byte* out = nullptr;
};
void slice_factors(const FactorSlice& slice, const FactorTables& tables, Stream& stream);

}  // namespace gradwire::cuda
