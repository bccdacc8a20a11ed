#pragma once
// The planner's functions; in a build without it only why they are not there.

#include "gradwire/bindings/python_text.h"

namespace gradwire::bindings {

void bind_planner(pybind11::module_& module);
void bind_planner_plans(
    pybind11::module_& module);  // this and those below are called by bind_planner()
void bind_planner_jobs(pybind11::module_& module);
void bind_planner_pilot(pybind11::module_& module);

}  // namespace gradwire::bindings
