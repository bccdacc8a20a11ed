#pragma once
// What a message costs on a line: by size, by exchange and by the number of streams.

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace gradwire::planner {

/// A cost that grows with the bytes: straight lines between measured points. Below the first point
/// the cost is that of the first point; beyond the last the last line goes on.
class SizeTable {
 public:
  struct Point {
    double bytes = 0;
    double seconds = 0;

    bool operator==(const Point&) const = default;
  };

  /// At least two points, bytes growing, seconds positive and never falling.
  /// @throws InvalidArgument naming the point.
  explicit SizeTable(std::vector<Point> points);

  /// @throws InvalidArgument for bytes that are negative or not finite.
  double seconds(double bytes) const;
  /// The line that holds around `bytes`: seconds(bytes) == alpha_s + bytes * beta_s_per_byte, alpha
  /// below 0 where the curve bends upwards.
  struct Line {
    double alpha_s = 0;
    double beta_s_per_byte = 0;
  };
  Line line_at(double bytes) const;
  std::span<const Point> points() const { return points_; }

  bool operator==(const SizeTable&) const = default;

 private:
  std::vector<Point> points_;
};

/// One kind of line between ranks.
///
/// s streams together carry B_eff(s) = min(efficiency * bytes_per_s, s * stream_bytes_per_s): one
/// TCP stream does not fill a fast network card. Where messages were measured, `tables` says what
/// they take instead of the line alpha_s + bytes / B_eff(s).
struct LinkCost {
  /// Of messages of an exchange ("" for any) over so many streams together.
  struct Key {
    std::string exchange;
    int streams = 1;

    auto operator<=>(const Key&) const = default;
  };

  std::string name;
  double alpha_s = 0;             ///< start-up of a message
  double bytes_per_s = 0;         ///< B: the line's nominal rate, one way
  double efficiency = 1;          ///< eta: what of it can be had at all, in (0, 1]
  double stream_bytes_per_s = 0;  ///< b1: what one stream can have; 0: as much as there is
  std::map<Key, SizeTable> tables = {};
  std::string source = {};  ///< where the figures are from
  // What a rank's processor does meanwhile: copies, the TCP stack, sums. 0: others do (a card,
  // RDMA).
  double message_cpu_s = 0;    ///< of a message that it sends and the one that it receives with it
  double cpu_bytes_per_s = 0;  ///< and so many of its bytes a second; 0: bytes cost nothing more

  /// B_eff. @throws InvalidArgument for fewer than one stream.
  double effective_bytes_per_s(int streams) const;
  /// One message of an exchange, its bytes spread over the streams. Looked up as (exchange,
  /// streams), then ("", streams), then the line. 0 bytes take a start-up.
  double message_seconds(double bytes, std::string_view exchange, int streams) const;
  /// Processor seconds of so many messages of so many bytes each, on every rank.
  double cpu_seconds(double messages, double bytes) const;

  bool operator==(const LinkCost&) const = default;
};

/// @throws InvalidArgument for a bandwidth of zero, a negative start-up, an efficiency outside
/// (0, 1], a table for fewer than one stream, processor time that is negative or not finite.
void validate(const LinkCost& link);

/// pcie3, pcie4, nvlink, 10gbe, 25gbe, 100gbe, infiniband: nominal figures, each with its source.
/// They price a line nobody has measured; a probe of the machine at hand is better.
std::span<const LinkCost> link_presets();

/// A preset by name, or a rate ("10gbit", "1.2GB/s") with the start-up of 10gbe.
/// @throws InvalidArgument listing the presets.
LinkCost find_link(std::string_view text);

}  // namespace gradwire::planner
