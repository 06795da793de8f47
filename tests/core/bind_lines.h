#pragma once

#include <pybind11/pybind11.h>

// Adds run_lines.
void bind_lines(pybind11::module_ &m);
