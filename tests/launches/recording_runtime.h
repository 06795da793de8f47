#pragma once

#include <string>
#include <vector>

// The mangled names of the kernels launched so far, and "cublas" for each product of cuBLAS.
extern std::vector<std::string> launched;

// The mangled names of all compiled kernels.
std::vector<std::string> list_kernels();
