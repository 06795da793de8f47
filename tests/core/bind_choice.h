#pragma once

#include <pybind11/pybind11.h>

// Adds choose, choose_for_call, refuse, describe_plans, describe_as_gemm, bounds and time_choice.
void bind_choice(pybind11::module_& m);
