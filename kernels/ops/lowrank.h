#pragma once
// Products of matrices with a few vectors, and orthonormal bases: what low-rank compression is made
// of. The same bits on CPU and CUDA, for any number of threads: the order of every sum is given
// here, and no multiply-add is contracted.
//
// A matrix M (rows x cols, row by row) lies in a group of elements, x = g + e. A factor is `rank`
// vectors, one after another: the left ones have `rows` elements, the right ones `cols`. The factors
// of all matrices of one side follow one another.

#include <bit>
#include <cstdint>
#include <span>

#include "gradwire/kernels/core/memory.h"
#include "gradwire/kernels/core/philox.h"
#include "gradwire/kernels/core/tensor.h"
#include "gradwire/kernels/core/thread_pool.h"

namespace gradwire {

/// Vectors beside the columns or beside the rows of a matrix.
enum class FactorSide : uint32_t { kLeft = 0, kRight = 1 };

struct LowRankMatrix {
  uint64_t offset = 0;  ///< of its first element in the group
  uint32_t rows = 0, cols = 0;
  uint64_t left = 0, right = 0;  ///< where its factors begin among those of all matrices

  GRADWIRE_HOST_DEVICE uint64_t at(FactorSide side) const {
    return side == FactorSide::kLeft ? left : right;
  }
  GRADWIRE_HOST_DEVICE uint32_t length(FactorSide side) const {
    return side == FactorSide::kLeft ? rows : cols;
  }
};

/// Elements that are sent as they are.
struct PlainRun {
  uint64_t offset = 0;  ///< in the group
  uint64_t numel = 0;
  uint64_t before = 0;  ///< such elements before this run
};

/// The factors of every other step: 0, 2, .. send the left ones.
GRADWIRE_HOST_DEVICE constexpr FactorSide side_of_step(uint32_t step) {
  return step % 2 == 0 ? FactorSide::kLeft : FactorSide::kRight;
}

GRADWIRE_HOST_DEVICE constexpr FactorSide other_side(FactorSide side) {
  return side == FactorSide::kLeft ? FactorSide::kRight : FactorSide::kLeft;
}

/// A right factor adds the rows of one tile in order, then the tiles in order: so many rows, that
/// tiles of all columns take a sixteenth of the matrix at most.
GRADWIRE_HOST_DEVICE constexpr uint32_t rows_of_tile(uint32_t rank) {
  return rank <= 4 ? 64 : 16 * rank;
}

/// What orthonormalise() puts in the place of a vector that depends on those before it: element i of
/// candidate `candidate` (from 1 on) for vector `index`, in (-1, 1). Always the same numbers.
GRADWIRE_HOST_DEVICE inline float candidate_element(uint32_t i, uint32_t index,
                                                    uint32_t candidate) {
  const uint32_t word = philox({{i, index, candidate, 0}}, 0x6C6F7772616E6BULL).word[0];
  return static_cast<float>(static_cast<int32_t>(word) >> 8) * 0x1p-23f + 0x1p-24f;
}

/// A power of two that brings a positive finite x to [1, 2), as far as one factor can.
GRADWIRE_HOST_DEVICE inline float scale_to_one(float x) {
  const int exponent = static_cast<int>(std::bit_cast<uint32_t>(x) >> 23) - 127;
  const int wanted = exponent > 126 ? -126 : exponent < -127 ? 127 : -exponent;
  return std::bit_cast<float>(static_cast<uint32_t>(wanted + 127) << 23);
}

/// A vector of which less than this share of its square is new beside those before it depends on
/// them, but for rounding.
inline constexpr float kDependentShare = 0x1p-34f;
/// Of a candidate.
inline constexpr float kCandidateShare = 0x1p-10f;
inline constexpr uint32_t kCandidates = 64;

/// Of a gradient of which something is kept, at most. What is kept comes back in every later step
/// until it is sent, and where a product with it overflowed, so would that of each later step: no
/// step would ever be committed again. A factor of 2^24 is left for velocities and lengths.
inline constexpr float kMostKept = 0x1p104f;

namespace cpu {

/// What the products of a group are taken of.
struct LowRankInput {
  ConstTensorView g;
  std::span<const float> e;  ///< empty: x = g
  std::span<const LowRankMatrix> matrices;
  uint32_t rank = 0;
};

/// Both factors of the matrices: of one side an orthonormal basis, of the other a product with it.
struct FactorPair {
  const float* left = nullptr;
  const float* right = nullptr;
};

/// left = M right: element i of vector r is the sum over j of x[i][j] * right[r][j], in 32 lanes,
/// element j in lane j % 32, each in order from 0 on, then lanes l and l + 16, l + 8, .., l + 1.
/// Where `left_over` has elements (the whole group's), those of the matrices become
/// x - left right^T in the same pass.
/// @returns false where an x, a factor or what is left is not finite.
bool multiply_right(const LowRankInput& input, const float* right, float* left,
                    std::span<float> left_over, ThreadPool& pool);

/// right = M^T left: element j of vector r is the sum over i of x[i][j] * left[r][i]: those of a
/// tile of rows_of_tile() rows in order from 0 on, then the tiles.
/// @returns false where an x or a factor is not finite.
bool multiply_left(const LowRankInput& input, const float* left, float* right,
                   Workspace& workspace, ThreadPool& pool);

/// Whether no element of the matrices is above kMostKept in g, that of the whole group.
bool may_be_kept(std::span<const LowRankMatrix> matrices, ConstTensorView g, ThreadPool& pool);

/// The matrices' elements of left_over = x - left right^T, the product's terms added in order of
/// the vectors. `left_over` may be g. @returns false where one is not finite.
bool subtract_product(const LowRankInput& input, const FactorPair& factors,
                      std::span<float> left_over, ThreadPool& pool);

struct ProductOutput {
  Gradient out;       ///< all elements of a group
  bool onto = false;  ///< float32 alone: the product is added to what is there
};

/// The matrices' elements of `to` = left right^T, added as above, rounded to its dtype.
/// @returns whether the product is finite.
bool write_product(std::span<const LowRankMatrix> matrices, uint32_t rank,
                   const FactorPair& factors, const ProductOutput& to, ThreadPool& pool);

/// Makes the vectors of one side of each matrix orthonormal, in order: each loses its components
/// along those before it (all of them at once, twice: Giraud et al., "Rounding error analysis of the
/// classical Gram-Schmidt orthogonalization process", 2005), then its length. Vectors that are
/// zero, not finite or depend on those before them are replaced, so that there are always `rank`.
/// Each needs more elements than there are vectors.
void orthonormalise(std::span<const LowRankMatrix> matrices, uint32_t rank, FactorSide side,
                    float* factors, ThreadPool& pool);

}  // namespace cpu

}  // namespace gradwire
