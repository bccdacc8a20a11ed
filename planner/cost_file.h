#pragma once
// Costs as text: what a probe of a machine found, kept for the next job.
//
//   file   := "gradwire-costs 1" NEWLINE { line NEWLINE }
//   line   := "machine" TEXT                            what was measured, any words
//           | ("link" | "node_link") ALPHA_S BYTES_PER_S EFFICIENCY STREAM_BYTES_PER_S NAME
//           | ("table" | "node_table") EXCHANGE STREAMS { BYTES SECONDS }    EXCHANGE "*": any
//           | ("cpu" | "node_cpu") MESSAGE_CPU_S CPU_BYTES_PER_S
//           | "codec" SPEC ENCODE_FLOOR_S ENCODE_BYTES_PER_S DECODE_FLOOR_S DECODE_BYTES_PER_S
//           | "#" TEXT                                  no meaning
//
// Words are separated by one or more spaces, numbers have all their digits. A file has one "link",
// and tables and processor times behind the link they belong to. Unknown words, missing or additional numbers, values
// that the library would refuse and another version are errors with the number of the line.

#include <string>
#include <string_view>

#include "gradwire/planner/cost.h"

namespace gradwire::planner {

struct CostFile {
  std::string machine = {};  ///< empty: not said
  Costs costs;

  bool has_node_link() const { return costs.node_link.bytes_per_s > 0; }
};

/// write_costs(read_costs(text)) == text for text without comments that write_costs() wrote.
/// @throws InvalidArgument naming the line.
CostFile read_costs(std::string_view text);

/// @throws InvalidArgument for costs that validate() refuses, a name with a line break, or a spec
/// with a space.
std::string write_costs(const CostFile& file);

}  // namespace gradwire::planner
