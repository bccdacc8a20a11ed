#pragma once
// What an exchange and a compressor cost, from sizes alone.

#include <map>
#include <string>
#include <string_view>

#include "gradwire/comm/choose.h"
#include "gradwire/planner/link.h"

namespace gradwire::planner {

/// Seconds of coding: never less than the floor (kernels start, threads wake up), else
/// floor + bytes / rate, where bytes are of dense float32 gradient.
struct CodecCost {
  double encode_floor_s = 0;
  double encode_bytes_per_s = 0;  ///< 0: encoding costs its floor alone, as of "none"
  double decode_floor_s = 0;      ///< of one payload
  double decode_bytes_per_s = 0;

  double encode_s(double dense_bytes) const;
  /// Of so many payloads, one after another: a rank that gathers decodes everybody's.
  double decode_s(double dense_bytes, double payloads = 1) const;

  bool operator==(const CodecCost&) const = default;
};

/// @throws InvalidArgument for a number that is negative or not finite, naming the codec.
void validate(const CodecCost& cost, std::string_view codec);

/// Everything a planner must know of the machine's prices.
struct Costs {
  LinkCost link;            ///< between ranks, or between nodes
  LinkCost node_link = {};  ///< within a node; read where a node has several ranks
  std::map<std::string, CodecCost> codecs = {};  ///< by spec ("topk:1%")
};

/// Messages and bytes on the busiest rank's line of the rows of the exchange registry, by
/// exchange_path(), and of the patterns that other systems use:
///   tree              2 ceil(log2 P) messages of B: a reduction to one rank and a broadcast
///   parameter_server  2 P B on the line of one server: all ranks push, all pull; of K servers a
///                     K-th of that on each, in 2 P messages
/// `load.alpha_s` and `load.bytes_per_s` are not read. `servers` is of parameter_server alone.
/// @throws InvalidArgument for an unknown pattern, or fewer than one server.
ExchangePath pattern_path(std::string_view pattern, const ExchangeLoad& load, int servers = 1);

/// Seconds of a pattern over a link: messages * what one of bytes / messages takes there, so that a
/// measured table prices small and large messages apart. Over one straight line these are the
/// seconds of exchange_costs(). One rank sends nothing: 0.
/// @throws InvalidArgument as pattern_path().
double exchange_seconds(std::string_view pattern, const ExchangeLoad& load, const Costs& costs,
                        int streams = 1);

/// The closed forms for P ranks and B bytes without frames, for cross-checks and replays of papers:
///   ring       2 (P-1) t(B / P)
///   tree       2 ceil(log2 P) t(B)
///   allgather  (P-1) t(B)            B: one rank's payload
///   two_shot   2 (P-1) t(B / P)      slices to owners, sums to all
/// with t = link.message_seconds(). The names are of this list.
/// @throws InvalidArgument for another name, fewer than one rank, or bytes that cannot be.
double closed_form_seconds(std::string_view form, double bytes, int world_size,
                           const LinkCost& link, int streams = 1);

}  // namespace gradwire::planner
