#include "gradwire/kernels/compress/internal/factor_state.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace gradwire {
namespace {

// words := magic, rank << 32 | side, matrices; then of each: parameter, rows << 32 | cols, and its
// factors, two floats a word, the last one filled up.
constexpr uint64_t kMagic = 0x314B4E5241574F4C;  // "LOWRANK1" in little-endian bytes
constexpr size_t kHead = 3, kMatrixHead = 2;

uint64_t shape_word(const LowRankMatrix& matrix) {
  return uint64_t{matrix.rows} << 32 | matrix.cols;
}

void check_finite(uint64_t parameter, const uint64_t* words, size_t floats) {
  for (size_t i = 0; i < floats; ++i) {
    const auto factor = std::bit_cast<float>(static_cast<uint32_t>(words[i / 2] >> i % 2 * 32));
    check(std::isfinite(factor), "factors: a factor of parameter ", parameter, " is ", factor,
          ", must be finite");
  }
}

}  // namespace

std::vector<uint64_t> pack_factors(const FactorLayout& layout, uint32_t rank, FactorSide side,
                                   std::span<const float> factors) {
  std::vector<uint64_t> words{kMagic, uint64_t{rank} << 32 | static_cast<uint32_t>(side),
                              layout.matrices().size()};
  for (size_t m = 0; m < layout.matrices().size(); ++m) {
    const LowRankMatrix& matrix = layout.matrices()[m];
    words.insert(words.end(), {layout.parameters()[m], shape_word(matrix)});
    const auto own = factors.subspan(matrix.at(side), size_t{rank} * matrix.length(side));
    const size_t begin = words.size();
    words.resize(begin + (own.size() + 1) / 2);
    std::memcpy(words.data() + begin, own.data(), own.size_bytes());
  }
  return words;
}

bool holds_factors(std::span<const uint64_t> state, uint32_t rank, FactorSide side) {
  return state.size() >= kHead && state[0] == kMagic &&
         state[1] == (uint64_t{rank} << 32 | static_cast<uint32_t>(side));
}

std::vector<const uint64_t*> find_factors(std::span<const uint64_t> state,
                                          const FactorLayout& layout, uint32_t rank) {
  const auto side = static_cast<FactorSide>(state[1] & 1);
  const uint64_t count = state[2];
  std::span<const uint64_t> rest = state.subspan(kHead);
  std::vector<const uint64_t*> found(layout.matrices().size());
  for (uint64_t i = 0; i < count; ++i) {
    check(rest.size() >= kMatrixHead, "factors: the state ends at matrix ", i, ", expected ", count);
    const auto length = static_cast<uint32_t>(side == FactorSide::kLeft ? rest[1] >> 32 : rest[1]);
    const size_t floats = size_t{rank} * length, words = (floats + 1) / 2;
    check(rest.size() - kMatrixHead >= words, "factors: the state ends within matrix ", i,
          ", expected ", count, " whole ones");
    check_finite(rest[0], rest.data() + kMatrixHead, floats);
    for (size_t m = 0; m < layout.matrices().size(); ++m) {
      if (layout.parameters()[m] == rest[0] && shape_word(layout.matrices()[m]) == rest[1]) {
        check(found[m] == nullptr, "factors: the state has parameter ", rest[0],
              " twice, expected once");
        found[m] = rest.data() + kMatrixHead;
      }
    }
    rest = rest.subspan(kMatrixHead + words);
  }
  check(rest.empty(), "factors: the state has ", rest.size(), " words behind its last matrix, "
        "expected none");
  return found;
}

}  // namespace gradwire
