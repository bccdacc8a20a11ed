// Compiled once for all files of the Python module (gradwire_precompile()).
#pragma once

#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include "standard.h"
