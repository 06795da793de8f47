// Assigns a call's buffers to source and target, as core/gather_view.h defines them. Plain host
// code.
#pragma once

#include "core/buffers.h"
#include "core/problem.h"

namespace convx {

// Params: any kernel's parameters with source, weight, bias and target.
template <typename Params>
void set_gather_buffers(Params& params, const ConvProblem& problem, const Buffers& buffers) {
  const bool forward = problem.pass == Pass::kForward;
  params.source = forward ? buffers.x : buffers.y;
  params.weight = buffers.w;
  params.bias = forward && problem.has_bias ? buffers.bias : nullptr;
  params.target = forward ? buffers.y : buffers.x;
}

}  // namespace convx
