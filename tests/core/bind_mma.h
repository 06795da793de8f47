#pragma once

#include <pybind11/pybind11.h>

// Adds run_mma.
void bind_mma(pybind11::module_& m);
