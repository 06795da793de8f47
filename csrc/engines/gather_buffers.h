// Which of a call's buffers a kernel reads and writes, as core/gather_view.h has it. Plain host
// code.
#pragma once

#include "core/buffers.h"
#include "core/problem.h"

namespace convx {

// Of any kernel's params.
template <typename Params>
void set_gather_buffers(Params& params, const ConvProblem& problem, const Buffers& buffers) {
  const bool forward = problem.pass == Pass::kForward;
  params.source = forward ? buffers.x : buffers.y;
  params.weight = buffers.w;
  params.bias = forward && problem.has_bias ? buffers.bias : nullptr;
  params.target = forward ? buffers.y : buffers.x;
}

}  // namespace convx
