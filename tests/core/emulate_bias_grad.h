#pragma once

#include <cstdint>

#include "core/problem.h"

namespace convx {

struct EmulatedBiasGrad {
  const char* fault;   // null, or what a GPU would not have forgiven
  const char* layout;  // the kernel that read y: "runs", "columns" or "strided"
  int64_t slices;
  int launches;
};

// Runs the bias gradient on the host. descending: the last thread of a block goes first.
EmulatedBiasGrad emulate_bias_grad(const ConvProblem& problem, const void* y, void* grad_bias,
                                   bool descending);

}  // namespace convx
