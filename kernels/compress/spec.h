#pragma once
// What a user asks for: "topk:1%", "topk:1%,int4", "int8,stochastic", parsed and printed.
//
//   spec   := name [":" density | ":" S | ":" R] { "," option }
//   density:= NUMBER "%" | NUMBER | K "/4096"        in (0, 1]; only selectors take one. chunktopk
//                                                    and randomk round up to K/4096, K from 1
//                                                    to 4096
//   S      := 1 .. 127                               levels of qsgd
//   R      := 1 .. 128                               rank of powersgd
//   option := "fp32" | "fp16" | "bf16" | "int8" | "int4" | "2bit" | "1bit"
//           | "e4m3" | "e5m2" | "natural" | "ternary"
//           | "qsgd:" S                                    value codec of a selector; ternary is
//                                                          2bit, stochastic
//           | "nearest" | "stochastic"                     rounding of int8, int4, 2bit, e4m3, e5m2
//           | "block=" N                                   elements per scale: 8, 16 .. 4096
//           | "ef" | "noef" | "ef21"                       error feedback: on, off, or of the
//                                                          difference to what was sent (EF21)
//           | "decay=" NUMBER                              error feedback: what the residual is
//                                                          multiplied by in each step, in (0, 1]
//           | "residual=" ("fp32" | "bf16")                error feedback: what residuals are kept in
//                                                          between steps
//           | "rounds=2"                                    powersgd: both factors in every step,
//                                                          with an exchange after each
//           | "momentum=" NUMBER                           error feedback: what is accumulated is a
//                                                          velocity, its momentum in [0, 1)
//           | "eta=" NUMBER                                ef21: of a velocity that averages
//                                                          gradients (EF21-SGDM), in (0, 1]
//           | "clip=" NUMBER                               dgc: largest norm of a gradient, over
//                                                          the root of the world size
//           | "warmup=" STEPS                              selectors: of each stage (warmup.h)
//           | "start=" STEPS [":bf16"]                     the first steps send everything, as
//                                                          the gradient is or as bf16

#include <cstdint>
#include <string>
#include <string_view>

#include "gradwire/kernels/core/dtype.h"
#include "gradwire/kernels/ops/small_float.h"

namespace gradwire {

enum class ValueCodec : uint8_t {
  kFloat32 = 0,
  kFloat16 = 1,
  kBFloat16 = 2,
  kInt8 = 3,
  kInt4 = 4,
  kRaw = 5,  ///< the gradient's own dtype, unchanged ("none")
  kInt2 = 6,
  kSign = 7,
  kE4M3 = 8,
  kE5M2 = 9,
  kPowerOfTwo = 10,
};
/// Whether values are codes, which a scale per block multiplies.
constexpr bool has_scales(ValueCodec codec) {
  return codec != ValueCodec::kRaw && codec != ValueCodec::kFloat32 &&
         codec != ValueCodec::kFloat16 && codec != ValueCodec::kBFloat16;
}
enum class Rounding : uint8_t { kNearest = 0, kStochastic = 1 };

/// Nearest-even bits per value on the wire, scales not counted (kRaw: those of `dtype`).
int value_bits(ValueCodec codec, DType dtype);

/// What of a group is sent, and in which steps.
struct Choice {
  double density = 1.0;  ///< kept / all elements, in (0, 1]; 1 unless the row is a selector;
                         ///< chunktopk, randomk: a multiple of 1/4096
  uint32_t width = 0;    ///< elements of a block that blocktopk sends whole, from 1 to 4096; 0 of
                         ///< all others
  uint32_t rank = 0;     ///< R of powersgd, from 1 to 128; 0 of all others
  uint32_t rounds = 1;   ///< of powersgd: 2 sends both factors in every step; 1 of all others
  /// Of selectors: steps of each stage, behind those of start; 0: no warm-up. With it, but for dgc
  /// without a start, or with a start a spec is another one from step to step (spec_in_step() in
  /// warmup.h), which a Reducer sees to: one compressor is of one of them.
  uint32_t warmup = 0;
  uint32_t start = 0;  ///< steps that send every element; 0: none
  ValueCodec start_values = ValueCodec::kRaw;  ///< in those: kRaw or kBFloat16

  bool operator==(const Choice&) const = default;
};

/// How what is sent is written.
struct Codec {
  ValueCodec values = ValueCodec::kRaw;
  Rounding rounding = Rounding::kNearest;
  uint32_t block = 256;  ///< elements sharing one scale (where the row takes one)
  uint32_t levels = 0;   ///< S of qsgd, also as a value codec, from 1 to 127; else 0

  bool operator==(const Codec&) const = default;
};

/// What becomes of what is not sent, and of gradients before they are compressed.
struct FeedbackRule {
  bool on = false;  ///< error feedback: a residual per element is kept
  /// What whoever owns the residuals keeps them in between steps, float32 or bfloat16: compressors
  /// are handed float32 either way.
  DType residual = DType::kFloat32;
  double decay = 1;     ///< B of g + B e == D + e_next; 1 where there is no residual
  bool ef21 = false;    ///< the residual is -s, s the sum of all D: g + e is g - s
  double eta = 1;       ///< of v = (1 - eta) v + eta g; 1 without ef21: no such velocity
  double momentum = 0;  ///< M of u = M u + g; 0: no velocity, but in dgc
  double clip = 0;      ///< of dgc; all others have 0. 0: none

  bool operator==(const FeedbackRule&) const = default;
};

/// A validated request. Build it with parse_spec(), which takes what its text leaves out from the
/// row, or fill all of it, fields being as here whatever the row (no error feedback, no velocity),
/// and call validate().
struct CompressorSpec {
  std::string name = "none";  ///< a row of the registry
  Choice choice = {};
  Codec codec = {};
  FeedbackRule feedback = {};

  bool operator==(const CompressorSpec&) const = default;
};

/// The default of members of this type: "none". Not in place: where one is made so inside another
/// struct, GCC 12 takes its name for uninitialised (-Wmaybe-uninitialized, from -O3 on).
CompressorSpec no_compression();

/// Parses `text` and fills what it leaves out from the registry row (a selector sends fp32 values;
/// lossy rows keep error feedback, casts do not).
/// @throws InvalidArgument naming the part at fault and what was expected; an unknown name lists
/// the known ones.
CompressorSpec parse_spec(std::string_view text);

/// Whether a canonical text asks for nothing: gradients travel as they are.
bool asks_for_nothing(std::string_view text);

/// Whether compress() takes a velocity in the place of the gradient, one float per element more.
bool keeps_velocity(const CompressorSpec& spec);

/// Whether every element is sent in a dtype of gradients, and nothing is remembered of it: none, fp16, bf16.
bool only_casts(const CompressorSpec& spec);

/// @throws InvalidArgument when a field is out of range or does not fit the row.
void validate(const CompressorSpec& spec);

/// The canonical text; parse_spec(to_string(s)) == s. Options at their default are left out.
std::string to_string(const CompressorSpec& spec);

/// What a spec calls it: "int8"; the gradient's own type, which no spec names, is "raw".
std::string_view to_string(ValueCodec codec);

/// What the codes of `codec` are, where it has a scale per block.
CodeFormat code_format(ValueCodec codec);

/// The narrowest integers that hold -levels to levels, of 2, 4 or 8 bits.
ValueCodec codec_of_levels(uint32_t levels);

/// FNV-1a over the canonical text: travels in every payload header.
uint32_t fingerprint(const CompressorSpec& spec);

/// `density` rounded up to K/4096: what every chunk of chunktopk and randomk keeps.
double chunk_density(double density);

/// k = max(1, ceil(density * n)) for n > 0, else 0.
size_t kept_elements(double density, size_t n);

}  // namespace gradwire
