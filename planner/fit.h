#pragma once
// Costs from measurements: lines, tables and stream caps, with how well they fit.

#include <span>
#include <string_view>
#include <vector>

#include "gradwire/planner/link.h"

namespace gradwire::planner {

/// One measurement: what so many bytes took.
struct ProbePoint {
  double bytes = 0;
  double seconds = 0;
};

/// How far the measurements are from the fit, relative to the fit: |measured / fitted - 1|.
struct FitQuality {
  double median_error = 0;
  double largest_error = 0;
  std::vector<double> residuals = {};  ///< measured / fitted - 1, in the order of the measurements
  size_t outliers = 0;                 ///< measurements that hardly counted
};

struct FitLimits {
  /// A fit whose median error is larger is refused: it would predict nothing.
  double most_median_error = 0.5;
};

struct LineFit {
  double alpha_s = 0;
  double bytes_per_s = 0;
  FitQuality quality = {};
};

/// seconds = alpha + bytes / rate through at least three measurements of at least two sizes. Errors
/// count relative to the time itself, so that small and large sizes weigh alike, and measurements
/// far off the others (a hiccup of the machine) count little: iterated weighted least squares with
/// Huber's weights (Huber, Robust Statistics, 1981), begun at the medians of pairwise slopes
/// (Theil; Sen). An alpha that comes out below zero is zero, and the rate fitted again.
/// @throws InvalidArgument for too few measurements, sizes that are all the same, values that are
/// negative or not finite, times of zero, times that fall as bytes grow, and a fit beyond the
/// limits.
LineFit fit_line(std::span<const ProbePoint> measured, const FitLimits& limits = {});

struct TableFit {
  SizeTable table;
  FitQuality quality = {};
};

/// The median time of each size, made to never fall (pooled adjacent violators: Ayer et al., 1955),
/// as a table. Needs at least two sizes. @throws InvalidArgument as fit_line().
TableFit fit_table(std::span<const ProbePoint> measured, const FitLimits& limits = {});

/// What so many streams together carried.
struct StreamPoint {
  int streams = 1;
  double bytes_per_s = 0;
};

struct StreamFit {
  double stream_bytes_per_s = 0;  ///< b1
  double most_bytes_per_s = 0;    ///< eta * B; what was reached at most if nothing levels off
  bool levels_off = false;        ///< false: more streams might carry more
  FitQuality quality = {};
};

/// B_eff(s) = min(most, s * b1), the split between rise and plateau with the least squares of
/// logarithms; a plateau lies at least a tenth below where the rise would have led. @throws
/// InvalidArgument for no measurement, fewer than one stream, a rate that is not positive and
/// finite, and a fit beyond the limits.
StreamFit fit_streams(std::span<const StreamPoint> measured, const FitLimits& limits = {});

}  // namespace gradwire::planner
