#pragma once

#include <pybind11/pybind11.h>

// Adds run_col2im.
void bind_col2im(pybind11::module_& m);
