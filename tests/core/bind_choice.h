#pragma once

#include <pybind11/pybind11.h>

// Adds choose, refuse and time_choice.
void bind_choice(pybind11::module_& m);
