#pragma once
// Which exchange a group should take: the cost of each by the alpha-beta model. Pure functions; rank 0
// decides once per plan epoch and tells the others, since the inputs are measured and differ by rank.

#include <span>
#include <string_view>
#include <vector>

#include "gradwire/comm/exchange.h"

namespace gradwire {

/// What a group has to exchange, and over what.
struct ExchangeLoad {
  double alpha_s = 0;           ///< start-up of a message, seconds
  double bytes_per_s = 0;       ///< of a rank's link, each way (1 / beta)
  int world_size = 1;           ///< P
  size_t numel = 0;             ///< n
  size_t payload_bytes = 0;     ///< B: one rank's payload at its true length; all rounds' together
  int rounds = 1;               ///< of equal bytes, one exchange each
  double density = 1;           ///< d: entries / numel of a selection; 1 where nothing is selected
  double union_density = 0;     ///< u: of all ranks' entries together, as last seen; 0: not known
  /// Read for `hierarchical` alone: L ranks with neighbouring numbers share a node (divides P), the
  /// links within it, and the exchange that runs between nodes (exchange_between_nodes()).
  int ranks_per_node = 1;
  double node_alpha_s = 0;
  double node_bytes_per_s = 0;
  std::string_view between_nodes = {};
};

/// Messages one after another on the busiest rank's line, and their bytes together.
struct MessagePath {
  double messages = 0;
  double bytes = 0;

  double seconds(double alpha_s, double bytes_per_s) const {
    return messages * alpha_s + bytes / bytes_per_s;
  }
};

/// What an exchange puts on the line, all rounds together, by the formulas of exchange_costs().
struct ExchangePath {
  MessagePath between;  ///< ranks, or nodes
  MessagePath within;   ///< a node; empty but for `hierarchical`
};

struct ExchangeCost {
  std::string_view exchange;  ///< a row of the exchange registry
  double seconds = 0;
};

/// Entries of P selections together when each rank's are its own: 1 - (1 - d)^P.
double independent_union(double density, int world_size);

/// Predicted seconds of every candidate, cheapest first; of equal ones the first named. Time on the
/// line and start-ups only: what encoding and adding take is not in it. D = 4n for a selection (it
/// would be sent whole), else B; Q = 2^floor(log2 P), q = log2 Q; u as above, or independent_union.
///   gather            (P-1) alpha + (P-1) (B + 64) beta
///   dense, sum, ring  2 (P-1) alpha + (P-1) (2 D / P + 128) beta
///   rabenseifner      2 q alpha + (2 D (Q-1) / Q + 128 q) beta, and where P > Q, twice more alpha +
///                     (D + 64) beta
///   two_shot          2 (P-1) alpha + (P-1) ((1 + f) B / P + 128) beta; f = 1, of a selection
///                     min(u / d, 1.25): owners keep at most that many entries
///   gtopk             q steps of alpha + (B + 64) beta, two more where P > Q
///   hierarchical      2 (L-1) alpha' + (L-1) (8 n / L + 132) beta' within nodes, and between them
///                     what its exchange takes for P / L ranks, n / L elements and payloads of B / L
/// Sources: Thakur, Rabenseifner and Gropp, 2005; Renggli et al. (SparCML), arXiv:1802.08021; Li and
/// Hoefler (Ok-Topk), arXiv:2201.07598.
/// @throws InvalidArgument for a load out of range, no candidate, or one without a formula.
std::vector<ExchangeCost> exchange_costs(const ExchangeLoad& load,
                                         std::span<const std::string_view> candidates);

/// The same before it is priced: neither start-ups nor rates are read, so that a caller whose line
/// is no straight line in the bytes can price messages itself.
/// @throws InvalidArgument as exchange_costs().
ExchangePath exchange_path(std::string_view exchange, const ExchangeLoad& load);

/// What a mean that is not of the rank-order sum must save to be chosen, of the other's seconds.
inline constexpr double kClearGain = 0.1;

/// The cheapest exchange whose mean has the bits of the rank-order sum; with kSameOnAllRanks another
/// one that is cheaper than it by more than kClearGain. Of equal ones the first.
/// @throws InvalidArgument when no cost is of an exchange whose mean is allowed.
std::string_view choose_exchange(std::span<const ExchangeCost> costs, MeanBits allowed);

/// Rows that can carry this compressor between memories of such devices, in the registry's order;
/// without those by node, whose cost depends on two kinds of link and is the sum of their parts'.
std::vector<std::string_view> exchanges_that_carry(const Compressor& compressor,
                                                   DeviceType device = DeviceType::kCpu);

}  // namespace gradwire
