#pragma once
// The model of reducer_case.h in device memory, and the CPU's reducers that say what comes out.

#include "gradwire/kernels/core/memory.h"
#include "tests/comm/reducer_case.h"

namespace gradwire::test {

/// What a rank has after each step.
using Outcomes = std::vector<Outcome>;

/// A rank's gradients in a step; reducer_case.h has some.
using GradientsOf = std::function<Values(int rank, int step)>;

/// A plan and what is done with it.
struct DeviceCase {
  std::string spec, exchange;
  int steps = 2;  // both residual buffers are read
  ReducerOptions options{};
  GradientsOf gradients_of = gradients;
  ResidualMemory residual_memory = ResidualMemory::kDevice;
  std::vector<SpecRule> rules = {};

  /// Several buckets, of several chunks where each rank owns some.
  Plan plan() const {
    const size_t bucket_bytes = exchange == "gather" && rules.empty() ? 16384 : 65536;
    Plan made = plan_of(spec, bucket_bytes, exchange, rules);
    made.residual_memory = residual_memory;
    return made;
  }
};

/// Every rank's outcomes on the CPU. A step that holds NaN has the means that are there then.
inline std::vector<Outcomes> outcomes_on_cpu(int world_size, const DeviceCase& what) {
  std::vector<Outcomes> outcomes(static_cast<size_t>(world_size));
  const auto ends = run_ranks(world_size, [&](Transport& transport) {
    ReducerOptions options = what.options;
    options.stream = nullptr;
    Reducer reducer(what.plan(), transport, options);
    for (int step = 0; step < what.steps; ++step) {
      hand_over(reducer, what.gradients_of(transport.rank(), step));
      try {
        reducer.wait();
      } catch (const NonFiniteGradient&) {  // the next step goes on
      }
      outcomes[static_cast<size_t>(transport.rank())].push_back(
          {means(reducer), residuals(reducer)});
    }
  });
  check(first_message(ends).empty(), first_message(ends));
  return outcomes;
}

/// Enqueues writing a gradient where it belongs.
inline void write_on_device(Reducer& reducer, ParamId p, std::span<const float> values,
                            Stream& stream) {
  const Gradient place = reducer.gradient(p);
  copy_bytes({static_cast<std::byte*>(place.data), place.size_bytes()}, place.device,
             std::as_bytes(values), {}, stream);
}

inline void hand_over_on_device(Reducer& reducer, const Values& values, Stream& stream,
                                const std::vector<ParamId>& order = backward_order()) {
  for (const ParamId p : order) {
    write_on_device(reducer, p, values[p], stream);
    reducer.grad_ready(p);
  }
}

/// Copies to the host, once the stream has come there.
inline std::vector<float> on_host(std::span<const float> values, Device device, Stream& stream) {
  std::vector<float> copy(values.size());
  copy_bytes(std::as_writable_bytes(std::span(copy)), {}, std::as_bytes(values), device, stream);
  stream.wait();
  return copy;
}

inline Values means_on_host(Reducer& reducer, Stream& stream) {
  Values values;
  for (const ParamId p : forward_order()) {
    values.push_back(on_host(reducer.gradient(p).as<float>(), stream.device(), stream));
  }
  return values;
}

inline Outcome outcome_on_host(Reducer& reducer, Stream& stream) {
  Outcome outcome{.means = means_on_host(reducer, stream), .residuals = {}};
  const bool kept_on_host = reducer.plan().residual_memory == ResidualMemory::kHost;
  for (const ParamId p : forward_order()) {
    const ConstResidual kept = reducer.residual(p);
    outcome.residuals.push_back(kept_on_host ? std::vector<float>(kept.begin(), kept.end())
                                             : on_host(kept, stream.device(), stream));
  }
  return outcome;
}

/// One rank's outcomes over a transport of GPU memory.
inline Outcomes outcomes_on_device(Transport& transport, Stream& stream, const DeviceCase& what) {
  ReducerOptions options = what.options;
  options.stream = &stream;
  Reducer reducer(what.plan(), transport, options);
  Outcomes outcomes;
  for (int step = 0; step < what.steps; ++step) {
    hand_over_on_device(reducer, what.gradients_of(transport.rank(), step), stream,
                        step % 2 == 0 ? backward_order() : random_order(7));
    check(reducer.wait() == StepOutcome::kEnqueued, "the step was not enqueued");
    outcomes.push_back(outcome_on_host(reducer, stream));
  }
  reducer.synchronize();
  return outcomes;
}

/// What a GPU is to do as the CPU does: every kind of payload, over every exchange that is there.
inline std::vector<DeviceCase> device_cases() {
  std::vector<DeviceCase> cases = {{"none", "dense"},
                                   {"none", "gather"},
                                   {"fp16,ef", "dense"},
                                   {"bf16", "gather"},
                                   {"int8", "gather"},
                                   {"topk:1%", "gather"},
                                   {"1bit", "gather"},
                                   {"int8", "two_shot"},
                                   {"threshold:5%", "gather"},
                                   {"int4,stochastic", "two_shot"},
                                   {"chunktopk:64/4096", "two_shot"},
                                   {"randomk:10%", "dense"},
                                   {"randomk:10%,int8", "two_shot"},
                                   {"dgc:5%,clip=1,warmup=1", "gather"},
                                   {"topk:5%,momentum=0.8", "gather"},
                                   {"int8,momentum=0.8", "two_shot"},
                                   {"randomk:10%,momentum=0.8", "dense"},
                                   {"powersgd:2", "dense"},
                                   {"powersgd:2,rounds=2", "dense"},
                                   {"powersgd:2,rounds=2,momentum=0.8", "gather"},
                                   {"powersgd:3,rounds=2", "two_shot"},
                                   {"topk:1%,residual=bf16", "gather", 3},
                                   {"int4,residual=bf16", "two_shot", 3},
                                   {"fp16,ef,decay=0.5,residual=bf16", "dense", 3},
                                   {"topk:5%,ef21", "gather", 4},
                                   {"int8,ef21", "two_shot", 4},
                                   {"topk:5%,ef21,eta=0.5", "gather", 4},
                                   {"topk:5%,int4,start=1,warmup=1", "gather", 4},
                                   {"int8,momentum=0.8,start=1:bf16", "two_shot", 3},
                                   {"powersgd:2,start=2", "dense", 4},
                                   {"topk:5%,ef21,start=1", "gather", 3}};
  for (const DeviceCase& what : {DeviceCase{"topk:1%", "gather", 3},
                                 {"topk:1%,residual=bf16", "gather", 3},
                                 {"int4,momentum=0.8", "two_shot", 3},
                                 {"int4,residual=bf16", "two_shot", 3},
                                 {"fp16,ef,decay=0.5", "dense", 3},
                                 {"powersgd:2,rounds=2", "dense", 3},
                                 {"powersgd:2,rounds=2,residual=bf16", "gather", 3},
                                 {"topk:5%,ef21,eta=0.5", "gather", 4},
                                 {"int8,ef21", "two_shot", 4}}) {
    cases.push_back(what);
    cases.back().residual_memory = ResidualMemory::kHost;
  }
  return cases;
}

/// Where outcomes differ first; empty when they do not.
inline std::string first_difference(const Outcomes& has, const Outcomes& should) {
  for (size_t step = 0; step < should.size(); ++step) {
    if (step >= has.size()) {
      return concat("step ", step, " is missing");
    }
    if (!same_bits(has[step].means, should[step].means)) {
      return concat("the mean of step ", step);
    }
    if (!same_bits(has[step].residuals, should[step].residuals)) {
      return concat("the residual behind step ", step);
    }
  }
  return {};
}

}  // namespace gradwire::test
