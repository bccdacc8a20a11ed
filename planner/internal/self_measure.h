#pragma once
// What an autopilot measures of itself, and how ranks come to hold the same numbers.

#include <map>
#include <span>
#include <string>
#include <vector>

#include "gradwire/comm/reducer.h"
#include "gradwire/planner/pilot.h"

namespace gradwire::planner {

/// Collective and blocking: rank r's values in row r, on every rank. The same number on all ranks.
std::vector<std::vector<double>> gather_doubles(std::span<const double> mine, Transport& transport,
                                                Context& context);

/// Seconds that each compressor takes for elements of `gradient`, at two sizes: a floor and a rate.
/// A spec with a rank is given the largest square matrix of them.
/// @throws InvalidArgument for a gradient without elements.
std::map<std::string, CodecCost> time_codecs(std::span<const std::string> specs,
                                             std::span<const float> gradient, Context& context);

/// What the ranks must hand set_costs(): ready times and floors of the slowest, rates of the
/// slowest. Collective.
PilotCosts agreed_costs(const PilotCosts& mine, Transport& transport, Context& context);

/// The norms of one parameter's step, before and behind the exchange.
class NormMeter {
 public:
  explicit NormMeter(size_t parameters) : kept_(parameters), norms_(parameters) {}

  /// Before grad_ready(p). `residual` is the committed one, empty without feedback.
  void before(ParamId p, std::span<const float> gradient, ConstResidual residual,
              const CompressorSpec& spec);
  /// Behind a wait() that committed: adds the step to the norms.
  void behind(ParamId p, std::span<const float> mean, ConstResidual residual,
              const CompressorSpec& spec, Context& context);

  std::span<const GuardNorms> norms() const { return norms_; }  ///< sums of steps, this rank's
  void clear();

 private:
  std::vector<std::vector<float>> kept_;  // g + e; empty: before() was not called in this step
  std::vector<double> gradient2_ = std::vector<double>(kept_.size());
  std::vector<GuardNorms> norms_;
};

}  // namespace gradwire::planner
