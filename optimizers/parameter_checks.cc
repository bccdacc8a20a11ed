#include "gradwire/optimizers/parameter_checks.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "gradwire/kernels/core/device_name.h"
#include "gradwire/kernels/core/number_text.h"

namespace gradwire {
namespace {

void check_view(std::string_view parameter, std::string_view what, const ConstTensorView& view,
                Device device) {
  check(view.dtype <= DType::kBFloat16, "parameter '", parameter, "': ", what,
        " has the dtype code ", static_cast<int>(view.dtype),
        ", expected float32, float16 or bfloat16");
  check(view.numel == 0 || view.device == device, "parameter '", parameter, "': ", what,
        " is in memory of ", name_of(view.device), ", expected ", name_of(device),
        "'s, where the first value is");
  check(view.data != nullptr || view.numel == 0, "parameter '", parameter, "': ", what,
        " has no memory, expected a pointer to ", view.numel, " elements");
}

}  // namespace

Device device_of(const std::vector<Parameter>& parameters) {
  const auto first = std::find_if(parameters.begin(), parameters.end(),
                                  [](const Parameter& p) { return p.value.numel != 0; });
  if (first == parameters.end()) {  // a rank's slices may all be empty
    return parameters.empty() ? Device{} : parameters.front().value.device;
  }
  return first->value.device;
}

void check_place(std::string_view parameter, const Binding& place, Device device) {
  const bool left_out = place.gradient.data == nullptr && place.gradient.numel == 0;
  if (place.reader != nullptr) {
    const size_t numel = place.value.numel, held = place.reader->numel();
    check(left_out, "parameter '", parameter,
          "': there are both a gradient and a reader, expected ", "one of them");
    check(place.reader->device() == device, "parameter '", parameter,
          "': its gradient comes from a reader of ", name_of(place.reader->device()),
          ", expected one of ", name_of(device), ", where the first value is");
    check(device.type == DeviceType::kCpu || place.reader->on_device() != nullptr, "parameter '",
          parameter,
          "': its gradient comes from a reader that kernels cannot read, expected one "
          "with on_device(), as a PayloadSum is");
    check(place.reader_begin <= held && numel <= held - place.reader_begin, "parameter '",
          parameter, "': elements [", place.reader_begin, ", ", place.reader_begin + numel,
          ") of its reader, which has ", held, ", expected among them");
  }
  check(left_out || place.value.numel == place.gradient.numel, "parameter '", parameter,
        "': the gradient has ", place.gradient.numel, " elements, expected ", place.value.numel,
        " as the value has");
  check_view(parameter, "value", place.value, device);
  check_view(parameter, "gradient", place.gradient, device);
}

void check_floats(std::string_view parameter, const Binding& place) {
  for (const ConstTensorView& view : {ConstTensorView(place.value), place.gradient}) {
    check(view.dtype == DType::kFloat32, "parameter '", parameter, "': is ", to_string(view.dtype),
          ", expected float32 of value and gradient for local steps");
  }
}

void check_group(const ParamGroup& group, size_t index) {
  const double decay = group.weight_decay.value_or(0.0);
  check(std::isfinite(decay) && decay >= 0.0, "group ", index, ": weight_decay is ", decay,
        ", must be >= 0");
  const auto check_unit = [&](std::string_view name, const std::optional<double>& value) {
    check(!value || (*value >= 0.0 && static_cast<float>(*value) < 1.0f), "group ", index, ": ",
          name, " is ", text_with_float(value.value_or(0.0)), ", must be in [0, 1)");
  };
  check_unit("momentum", group.momentum);
  check_unit("beta1", group.beta1);
  check_unit("beta2", group.beta2);
  const double epsilon = group.epsilon.value_or(1.0);
  check(epsilon <= std::numeric_limits<float>::max() && static_cast<float>(epsilon) > 0.0f,
        "group ", index, ": epsilon is ", text_with_float(epsilon), ", must be > 0");
  check(std::isfinite(group.learning_rate_scale) && group.learning_rate_scale >= 0.0, "group ",
        index, ": learning_rate_scale is ", group.learning_rate_scale, ", must be >= 0");
}

void DisjointMemory::add(std::string_view parameter, const ConstTensorView& view, bool written) {
  if (view.numel != 0) {
    const auto* begin = static_cast<const std::byte*>(view.data);
    runs_.push_back({begin, begin + view.size_bytes(), parameter, written});
  }
}

void DisjointMemory::add(std::string_view parameter, const Binding& place) {
  add(parameter, place.value, true);
  add(parameter, place.gradient, false);
}

void DisjointMemory::check() {
  std::sort(runs_.begin(), runs_.end(),
            [](const Run& a, const Run& b) { return std::less<>()(a.begin, b.begin); });
  const Run* furthest = nullptr;          // of all runs so far
  const Run* furthest_written = nullptr;  // of the values among them
  for (const Run& run : runs_) {
    const Run* other = run.written ? furthest : furthest_written;
    gradwire::check(other == nullptr || !std::less<>()(run.begin, other->end), "parameter '",
                    run.parameter, "': its ", run.written ? "value" : "gradient",
                    " shares memory with the ",
                    other != nullptr && other->written ? "value" : "gradient", " of '",
                    other != nullptr ? other->parameter : "", "', expected memory of its own");
    if (furthest == nullptr || std::less<>()(furthest->end, run.end)) {
      furthest = &run;
    }
    if (run.written &&
        (furthest_written == nullptr || std::less<>()(furthest_written->end, run.end))) {
      furthest_written = &run;
    }
  }
}

}  // namespace gradwire
