#pragma once
// One function per layer adds that layer's types to the module.

#include "gradwire/bindings/python_text.h"

namespace gradwire::bindings {

void bind_addresses(pybind11::module_& module);
void bind_carrier(pybind11::module_& module);
void bind_comm(pybind11::module_& module);
void bind_device_array(pybind11::module_& module);
void bind_kernels(pybind11::module_& module);
void bind_optimizer_specs(pybind11::module_& module);
void bind_optimizers(pybind11::module_& module);
void bind_plan(pybind11::module_& module);
void bind_reducer(pybind11::module_& module);
void bind_registries(pybind11::module_& module);
void bind_schedules(pybind11::module_& module);
void bind_sharded_reducer(pybind11::module_& module);
void bind_spec(pybind11::module_& module);

}  // namespace gradwire::bindings
