#pragma once

#include <pybind11/pybind11.h>

// Adds choose, choose_for_call, refuse, bounds and time_choice.
void bind_choice(pybind11::module_& m);
