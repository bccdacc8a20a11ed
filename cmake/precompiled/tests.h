// Compiled once for all test programs (gradwire_precompile()).
#pragma once

#include <gtest/gtest.h>

#include "standard.h"
