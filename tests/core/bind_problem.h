#pragma once

#include <pybind11/pybind11.h>

// Adds the problem, the machine in numbers, and what is computed from them without an engine.
void bind_problem(pybind11::module_& m);
