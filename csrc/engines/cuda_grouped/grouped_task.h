// What the grouped kernels are told, from the problem. Plain host code.
#pragma once

#include <cstdint>

#include "core/buffers.h"
#include "core/problem.h"
#include "engines/cuda_grouped/grouped_params.h"

namespace convx {

// All but buffers and tile.
GroupedTask make_grouped_task(const ConvProblem& problem);

// Of any kernel's params.
template <typename Params>
void set_grouped_buffers(Params& params, const ConvProblem& problem, const Buffers& buffers) {
  const bool forward = problem.pass == Pass::kForward;
  params.source = forward ? buffers.x : buffers.y;
  params.weight = buffers.w;
  params.bias = forward && problem.has_bias ? buffers.bias : nullptr;
  params.target = forward ? buffers.y : buffers.x;
}

// Of one image.
int64_t count_grouped_tiles(const GroupedTask& task);

// Takes long, so for the best tile only.
void set_tile_divisors(GroupedTask& task);

}  // namespace convx
