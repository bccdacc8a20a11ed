#include "gradwire/planner/stalls.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "gradwire/kernels/core/error.h"

namespace gradwire::planner {
namespace {

void check_run(const char* run, const std::optional<double>& seconds) {
  check(!seconds || (std::isfinite(*seconds) && *seconds > 0), "stalls: the run with ", run,
        " took ", seconds.value_or(0), " s, must be positive and finite");
}

std::optional<Stall> difference(const std::optional<double>& with,
                                const std::optional<double>& without,
                                const std::optional<double>& of) {
  if (!with || !without || !of) {
    return std::nullopt;
  }
  const double seconds = *with - *without;
  return Stall{seconds, std::max(0.0, seconds / *of)};
}

using Row = std::array<double, 4>;  // three unknowns and the right-hand side

// Gauss with the largest pivot; false where two unknowns cannot be told apart.
bool solve(std::array<Row, 3>& rows) {
  for (size_t column = 0; column < 3; ++column) {
    const auto largest = std::max_element(rows.begin() + static_cast<std::ptrdiff_t>(column),
                                          rows.end(), [column](const Row& a, const Row& b) {
                                            return std::fabs(a[column]) < std::fabs(b[column]);
                                          });
    std::swap(rows[column], *largest);
    if (std::fabs(rows[column][column]) < 1e-9) {  // the unknowns are scaled to about 1
      return false;
    }
    for (size_t r = 0; r < 3; ++r) {
      if (r != column) {
        const double factor = rows[r][column] / rows[column][column];
        for (size_t c = column; c < 4; ++c) {
          rows[r][c] -= factor * rows[column][c];
        }
      }
    }
  }
  return true;
}

}  // namespace

Stalls find_stalls(const StallRuns& runs) {
  check_run("one GPU", runs.one_gpu);
  check_run("all GPUs", runs.all_gpus);
  check_run("cold data", runs.cold_data);
  check_run("cached data", runs.cached_data);
  check_run("two hosts", runs.two_hosts);
  Stalls stalls;
  stalls.interconnect = difference(runs.all_gpus, runs.one_gpu, runs.all_gpus);
  stalls.network = difference(runs.two_hosts, runs.all_gpus, runs.all_gpus);
  stalls.preparation = difference(runs.cached_data, runs.all_gpus, runs.cached_data);
  stalls.fetch = difference(runs.cold_data, runs.cached_data, runs.cold_data);
  check(stalls.interconnect || stalls.network || stalls.preparation || stalls.fetch,
        "stalls: no two runs that were made differ in one thing, expected for example one GPU and "
        "all GPUs");
  return stalls;
}

double StallFit::predict_s(double layers, double gradient_bytes) const {
  check(std::isfinite(layers) && layers >= 0, "stall fit: ", layers,
        " layers, must be finite and at least 0");
  check(std::isfinite(gradient_bytes) && gradient_bytes >= 0, "stall fit: ", gradient_bytes,
        " bytes of gradient, must be finite and at least 0");
  return std::max(0.0, constant_s + per_layer_s * layers + per_byte_s * gradient_bytes);
}

StallFit fit_stalls(std::span<const StallSample> samples) {
  check(samples.size() >= 3, "stall fit: ", samples.size(), " samples, expected at least 3");
  double most_layers = 0, most_bytes = 0, mean = 0;
  for (const StallSample& sample : samples) {
    const auto require = [&sample](const char* what, double value) {
      check(std::isfinite(value) && value >= 0, "stall fit: ", what, " of '", sample.model, "' is ",
            value, ", must be finite and at least 0");
    };
    require("the number of layers", sample.layers);
    require("the gradient (bytes)", sample.gradient_bytes);
    check(std::isfinite(sample.stall_s), "stall fit: the stall of '", sample.model, "' is ",
          sample.stall_s, " s, must be finite");
    most_layers = std::max(most_layers, sample.layers);
    most_bytes = std::max(most_bytes, sample.gradient_bytes);
    mean += sample.stall_s / static_cast<double>(samples.size());
  }
  check(most_layers > 0 && most_bytes > 0, "stall fit: ", most_layers, " layers and ", most_bytes,
        " bytes at most, expected more than 0 of both");
  // The normal equations in unknowns of size about 1.
  std::array<Row, 3> rows{};
  for (const StallSample& sample : samples) {
    const Row row{1, sample.layers / most_layers, sample.gradient_bytes / most_bytes,
                  sample.stall_s};
    for (size_t r = 0; r < 3; ++r) {
      for (size_t c = 0; c < 4; ++c) {
        rows[r][c] += row[r] * row[c] / static_cast<double>(samples.size());
      }
    }
  }
  check(solve(rows), "stall fit: layers and bytes of the ", samples.size(),
        " samples grow together, expected models that tell them apart");
  StallFit fit;
  fit.constant_s = rows[0][3] / rows[0][0];
  fit.per_layer_s = rows[1][3] / rows[1][1] / most_layers;
  fit.per_byte_s = rows[2][3] / rows[2][2] / most_bytes;
  double left = 0, all = 0;
  for (const StallSample& sample : samples) {
    const double fitted =
        fit.constant_s + fit.per_layer_s * sample.layers + fit.per_byte_s * sample.gradient_bytes;
    fit.residuals_s.push_back(sample.stall_s - fitted);
    left += fit.residuals_s.back() * fit.residuals_s.back();
    all += (sample.stall_s - mean) * (sample.stall_s - mean);
  }
  fit.r_squared = all > 0 ? 1 - left / all : 1;
  return fit;
}

double extrapolate_ring_stall(double stall_s, int from, int to) {
  check(std::isfinite(stall_s) && stall_s >= 0, "extrapolation: the stall is ", stall_s,
        " s, must be finite and at least 0");
  check(from >= 2, "extrapolation: from ", from, " workers, expected at least 2");
  check(to >= 1, "extrapolation: to ", to, " workers, expected at least 1");
  const auto sent = [](double workers) { return (workers - 1) / workers; };
  return stall_s * sent(to) / sent(from);
}

}  // namespace gradwire::planner
