#include "gradwire/planner/fit.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "gradwire/kernels/core/error.h"

namespace gradwire::planner {
namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) {
    return *middle;
  }
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

void check_points(std::span<const ProbePoint> measured, size_t least) {
  check(measured.size() >= least, "fit: ", measured.size(), " measurements, expected at least ",
        least);
  bool differ = false;
  for (size_t i = 0; i < measured.size(); ++i) {
    const ProbePoint& point = measured[i];
    check(std::isfinite(point.bytes) && point.bytes >= 0, "fit: measurement ", i, " is of ",
          point.bytes, " bytes, must be finite and at least 0");
    check(std::isfinite(point.seconds) && point.seconds > 0, "fit: measurement ", i, " (",
          point.bytes, " bytes) took ", point.seconds, " s, must be finite and positive");
    differ = differ || point.bytes != measured[0].bytes;
  }
  check(differ, "fit: every measurement is of ", measured[0].bytes,
        " bytes, expected at least two sizes");
}

FitQuality quality_of(std::vector<double> residuals, const FitLimits& limits) {
  FitQuality quality;
  std::vector<double> sizes;
  for (const double residual : residuals) {
    sizes.push_back(std::fabs(residual));
  }
  quality.median_error = median(sizes);
  quality.largest_error = *std::ranges::max_element(sizes);
  quality.residuals = std::move(residuals);
  check(quality.median_error <= limits.most_median_error,
        "fit: half of the measurements are off by ", quality.median_error,
        " of the fit or more, expected at most ", limits.most_median_error,
        ": these numbers follow no such law");
  return quality;
}

struct Line {
  double alpha = 0, beta = 0;

  double at(double bytes) const { return alpha + beta * bytes; }
};

// Of all pairs of different sizes the median slope, and the median of what is left.
Line theil_sen(std::span<const ProbePoint> measured) {
  std::vector<double> slopes, starts;
  for (size_t i = 0; i < measured.size(); ++i) {
    for (size_t j = i + 1; j < measured.size(); ++j) {
      if (measured[i].bytes != measured[j].bytes) {
        slopes.push_back((measured[j].seconds - measured[i].seconds) /
                         (measured[j].bytes - measured[i].bytes));
      }
    }
  }
  Line line{0, median(slopes)};
  for (const ProbePoint& point : measured) {
    starts.push_back(point.seconds - line.beta * point.bytes);
  }
  line.alpha = std::max(0.0, median(starts));
  return line;
}

Line weighted(std::span<const ProbePoint> measured, std::span<const double> weights) {
  double w = 0, wx = 0, wy = 0;
  for (size_t i = 0; i < measured.size(); ++i) {
    w += weights[i];
    wx += weights[i] * measured[i].bytes;
    wy += weights[i] * measured[i].seconds;
  }
  const double mean_x = wx / w, mean_y = wy / w;
  double xx = 0, xy = 0, zero_xx = 0, zero_xy = 0;
  for (size_t i = 0; i < measured.size(); ++i) {
    const double x = measured[i].bytes, y = measured[i].seconds;
    xx += weights[i] * (x - mean_x) * (x - mean_x);
    xy += weights[i] * (x - mean_x) * (y - mean_y);
    zero_xx += weights[i] * x * x;
    zero_xy += weights[i] * x * y;
  }
  const double beta = xx > 0 ? xy / xx : 0;
  if (const double alpha = mean_y - beta * mean_x; alpha >= 0) {
    return {alpha, beta};
  }
  return {0, zero_xy / zero_xx};
}

constexpr double kHuber = 1.345;        // in deviations: 95% efficient where errors are normal
constexpr double kOutlierWeight = 0.5;  // below it a measurement hardly counts

// Huber's weights of relative errors, over the square of the time that errors are relative to.
std::vector<double> weights_of(std::span<const ProbePoint> measured, const Line& line,
                               size_t& outliers) {
  std::vector<double> errors, sizes, weights;
  for (const ProbePoint& point : measured) {
    errors.push_back(point.seconds / std::max(line.at(point.bytes), 1e-15) - 1);
    sizes.push_back(std::fabs(errors.back()));
  }
  const double deviation = std::max(1.4826 * median(sizes), 1e-9);
  outliers = 0;
  for (size_t i = 0; i < measured.size(); ++i) {
    const double far = sizes[i] / (kHuber * deviation);
    const double huber = far <= 1 ? 1 : 1 / far;
    outliers += huber < kOutlierWeight ? 1 : 0;
    const double scale = std::max(line.at(measured[i].bytes), 1e-15);
    weights.push_back(huber / (scale * scale));
  }
  return weights;
}

}  // namespace

LineFit fit_line(std::span<const ProbePoint> measured, const FitLimits& limits) {
  check_points(measured, 3);
  Line line = theil_sen(measured);
  check(line.beta > 0, "fit: time does not grow with bytes (", line.beta,
        " s per byte), expected it to: were these sizes measured for long enough?");
  size_t outliers = 0;
  for (int round = 0; round < 50; ++round) {
    const Line next = weighted(measured, weights_of(measured, line, outliers));
    check(next.beta > 0, "fit: time does not grow with bytes (", next.beta,
          " s per byte), expected it to: were these sizes measured for long enough?");
    const bool settled = std::fabs(next.beta - line.beta) <= 1e-12 * line.beta &&
                         std::fabs(next.alpha - line.alpha) <= 1e-12 * (line.alpha + 1e-12);
    line = next;
    if (settled) {
      break;
    }
  }
  std::vector<double> residuals;
  for (const ProbePoint& point : measured) {
    residuals.push_back(point.seconds / line.at(point.bytes) - 1);
  }
  LineFit fit{line.alpha, 1 / line.beta, quality_of(std::move(residuals), limits)};
  fit.quality.outliers = outliers;
  return fit;
}

TableFit fit_table(std::span<const ProbePoint> measured, const FitLimits& limits) {
  check_points(measured, 2);
  std::map<double, std::vector<double>> by_size;
  for (const ProbePoint& point : measured) {
    by_size[point.bytes].push_back(point.seconds);
  }
  struct Pool {
    double seconds;
    double weight;
    size_t sizes;
  };
  std::vector<Pool> pools;
  for (const auto& [bytes, seconds] : by_size) {
    pools.push_back({median(seconds), static_cast<double>(seconds.size()), 1});
    while (pools.size() > 1 && pools[pools.size() - 2].seconds > pools.back().seconds) {
      const Pool last = pools.back();
      pools.pop_back();
      Pool& into = pools.back();
      into.seconds =
          (into.seconds * into.weight + last.seconds * last.weight) / (into.weight + last.weight);
      into.weight += last.weight;
      into.sizes += last.sizes;
    }
  }
  check(pools.size() > 1, "fit: time does not grow with bytes over ", by_size.size(),
        " sizes, expected it to: were these sizes measured for long enough?");
  std::vector<SizeTable::Point> points;
  auto size = by_size.begin();
  for (const Pool& pool : pools) {
    for (size_t i = 0; i < pool.sizes; ++i, ++size) {
      points.push_back({size->first, pool.seconds});
    }
  }
  TableFit fit{SizeTable(std::move(points))};
  std::vector<double> residuals;
  for (const ProbePoint& point : measured) {
    residuals.push_back(point.seconds / fit.table.seconds(point.bytes) - 1);
  }
  fit.quality = quality_of(std::move(residuals), limits);
  return fit;
}

namespace {

// Of what the rise alone would have reached: a smaller step down is noise, no plateau.
constexpr double kPlateau = 0.9;

}  // namespace

StreamFit fit_streams(std::span<const StreamPoint> measured, const FitLimits& limits) {
  check(!measured.empty(), "fit of streams: 0 measurements, expected at least 1");
  std::vector<StreamPoint> sorted(measured.begin(), measured.end());
  for (const StreamPoint& point : sorted) {
    check(point.streams >= 1, "fit of streams: ", point.streams, " streams, expected at least 1");
    check(std::isfinite(point.bytes_per_s) && point.bytes_per_s > 0,
          "fit of streams: ", point.streams, " streams carried ", point.bytes_per_s,
          " bytes/s, must be positive and finite");
  }
  std::ranges::stable_sort(sorted, {}, &StreamPoint::streams);

  const auto predicted = [](const StreamFit& fit, int streams) {
    return fit.levels_off ? std::min(fit.most_bytes_per_s, streams * fit.stream_bytes_per_s)
                          : streams * fit.stream_bytes_per_s;
  };
  // Geometric means are the least squares of logarithms.
  const auto mean_of = [](auto begin, auto end, auto value) {
    double sum = 0;
    for (auto it = begin; it != end; ++it) {
      sum += std::log(value(*it));
    }
    return std::exp(sum / static_cast<double>(end - begin));
  };
  StreamFit best;
  double least = std::numeric_limits<double>::infinity();
  for (size_t rising = sorted.size(); rising >= 1; --rising) {
    const auto split = sorted.begin() + static_cast<std::ptrdiff_t>(rising);
    StreamFit fit;
    fit.stream_bytes_per_s = mean_of(
        sorted.begin(), split, [](const StreamPoint& p) { return p.bytes_per_s / p.streams; });
    fit.levels_off = split != sorted.end();
    fit.most_bytes_per_s =
        fit.levels_off
            ? mean_of(split, sorted.end(), [](const StreamPoint& p) { return p.bytes_per_s; })
            : sorted.back().streams * fit.stream_bytes_per_s;
    if (fit.levels_off &&
        fit.most_bytes_per_s > kPlateau * sorted.back().streams * fit.stream_bytes_per_s) {
      continue;
    }
    double squares = 0;
    for (const StreamPoint& point : sorted) {
      const double error = std::log(point.bytes_per_s / predicted(fit, point.streams));
      squares += error * error;
    }
    if (squares < least) {
      least = squares;
      best = fit;
    }
  }
  std::vector<double> residuals;
  for (const StreamPoint& point : measured) {
    residuals.push_back(point.bytes_per_s / predicted(best, point.streams) - 1);
  }
  best.quality = quality_of(std::move(residuals), limits);
  return best;
}

}  // namespace gradwire::planner
