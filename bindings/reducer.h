#pragma once
// A Reducer as Python holds it.

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "gradwire/bindings/interruptible.h"
#include "gradwire/bindings/python_text.h"
#include "gradwire/bindings/tensor.h"
#include "gradwire/bindings/transport.h"
#include "gradwire/comm/reducer.h"
#include "gradwire/kernels/core/device_name.h"
#include "gradwire/kernels/core/external_stream.h"

namespace gradwire::bindings {

/// A reducer and what it stands on. Views of its memory keep it alive, it keeps the transport.
class BoundReducer {
 public:
  /// Counts the arrays of gradient() that are in use.
  using View = std::shared_ptr<const char>;

  /// `stream`: the native handle of the one that gradients are written on, on a GPU and only there;
  /// in options there is none.
  BoundReducer(const Plan& plan, BoundTransport& transport, ReducerOptions options,
               std::optional<uintptr_t> stream)
      : transport_(transport.get()),
        device_(transport_->traits().device),
        on_nonfinite_(options.on_nonfinite),
        left_out_(options.left_out) {
    check(on_gpu() == stream.has_value(), "stream: is ", stream ? "given" : "None", ", must be ",
          on_gpu() ? "the stream that gradients are written on" : "None",
          ", because the transport carries memory of ", name_of(device_));
    interruptible([&](Interruptible& guard) {
      const py::gil_scoped_release release;
      guard.over(transport_);
      if (stream) {
        stream_ = cuda::wrap_stream(reinterpret_cast<void*>(*stream), device_.index);
        options.stream = stream_.get();
      }
      reducer_ = std::make_unique<Reducer>(plan, *transport_, options);
    });
  }
  ~BoundReducer() {
    calls_.process().let_go(reducer_);
    calls_.process().let_go(stream_);
    calls_.process().let_go(transport_);
  }
  BoundReducer(const BoundReducer&) = delete;
  BoundReducer& operator=(const BoundReducer&) = delete;

  /// body(reducer), as ReducerCalls has it.
  template <class Body>
  auto run(const Body& body) {
    return calls_.over(transport_, [&] { return body(*reducer_); });
  }

  /// run() of what hands over and returns. On the CPU that waits for no rank.
  template <class Body>
  auto run_at_once(const Body& body) {
    return on_gpu() ? run(body) : calls_.at_once([&] { return body(*reducer_); });
  }

  /// To be taken before gradient() is asked where its memory is.
  View view() const { return view_; }
  /// Inside run(), before what moves that memory. @throws InvalidArgument while arrays are in use.
  void check_no_views(std::string_view call) const {
    const auto views = view_.use_count() - 1;
    check(views == 0, call, ": ", views,
          " arrays of gradient() are in use, whose memory ends with the plan; expected none (del "
          "them and what holds them, an optimizer perhaps, and ask gradient() anew)");
  }

  /// Inside run(): memory that a step uses until let_go().
  void hold(std::shared_ptr<Array> array) { held_.push_back(std::move(array)); }
  /// Inside run(), when the step has ended. What is returned is best let go of outside.
  std::vector<std::shared_ptr<Array>> let_go() { return std::exchange(held_, {}); }

  /// Where gradients and means lie.
  Device device() const { return device_; }
  bool on_gpu() const { return device_.type == DeviceType::kCuda; }
  /// On a GPU: the stream that gradients are written on.
  Stream& stream() const { return *stream_; }
  /// As it was made.
  OnNonFinite on_nonfinite() const { return on_nonfinite_; }
  MeansLeftOut left_out() const { return left_out_; }

  /// Inside run().
  int rank() const { return transport_->rank(); }
  void stand_on(std::shared_ptr<Transport> transport) { transport_ = std::move(transport); }

 private:
  ReducerCalls calls_;
  const View view_ = std::make_shared<char>();
  std::shared_ptr<Transport> transport_;
  const Device device_;
  const OnNonFinite on_nonfinite_;
  const MeansLeftOut left_out_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::shared_ptr<Array>> held_;
  std::unique_ptr<Reducer> reducer_;  // last: it uses the others to its end
};

/// @throws InvalidArgument for an id that is none.
inline const ParamInfo& parameter_of(const Plan& plan, ParamId p) {
  check(p < plan.parameters.size(), "parameter: is ", p, ", must be below ",
        plan.parameters.size());
  return plan.parameters[p];
}

using ReducerClass = py::class_<BoundReducer>;

/// What happens between steps: plans, checkpoints, rebuilding.
void bind_between_steps(py::module_& module, ReducerClass& type);

/// Gradients handed over otherwise than one by one, and results taken otherwise than as means.
void bind_handing_over(py::module_& module, ReducerClass& type);

/// Gradients and means in memory of a framework, by address.
void bind_memory(py::module_& module, ReducerClass& type);

}  // namespace gradwire::bindings
