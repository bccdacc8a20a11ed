#pragma once
// One line of the table: a collective or an exchange at one size, timed on one rank.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "gradwire/comm/transport.h"
#include "gradwire/kernels/core/memory.h"

namespace exchange_bench {

/// What to run. Written "what=two_shot;spec=topk:1%;support=skewed;numel=10000000;mean=none": keys
/// that are left out keep their defaults.
struct Case {
  std::string text;  ///< as written
  /// An exchange of the registry, or a verb: all_reduce:ring, all_reduce:rank_order,
  /// all_reduce:rabenseifner, all_to_all, all_gather:direct, all_gather:ring, all_gather:bruck.
  std::string what = "all_reduce:ring";
  std::string spec = "none";
  /// Where a selection's entries lie: uniform (each rank its own, anywhere), skewed (in the first
  /// eighth of the elements), half (half of them shared by all ranks), overlap (all of them).
  std::string support = "uniform";
  std::string mean = "dense";  ///< none: the result stays as payloads
  size_t numel = 1'000'000;    ///< floats; of a verb, 4 bytes each: in all parts together
  int repetitions = 3;         ///< timed, after one that is not
};

/// @throws gradwire::InvalidArgument naming the key, the value and what was expected.
Case parse_case(std::string_view text);

/// What one rank saw; times in seconds, sums over the timed repetitions where not said otherwise.
struct Sample {
  std::vector<double> seconds;  ///< of each repetition, from a barrier on
  double cpu_seconds = 0;       ///< of this process
  double codec_seconds = 0;     ///< inside an exchange: slicing, merging, decoding
  double bytes_sent = 0;        ///< of the last repetition, counted
  double formula_bytes = 0;     ///< the same from the closed form
  double payload_bytes = 0;     ///< what the rank had to exchange
  double result_bytes = 0;      ///< of an exchange's result as payloads
};

/// Runs one case; all ranks call it with the same one.
Sample run_case(const Case& c, gradwire::Transport& transport, gradwire::Context& context);

}  // namespace exchange_bench
