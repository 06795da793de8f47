#pragma once

#include <pybind11/pybind11.h>

// Adds fit_pixels, describe_pixels, place_pixels and run_pixels.
void bind_pixels(pybind11::module_& m);
