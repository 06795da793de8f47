// What the grouped kernels are told, from the problem. Plain host code.
#pragma once

#include <cstdint>

#include "core/buffers.h"
#include "core/problem.h"
#include "engines/cuda_grouped/grouped_params.h"

namespace convx {

// All but buffers and tile.
GroupedTask make_grouped_task(const ConvProblem& problem);

// Of one image.
int64_t count_grouped_tiles(const GroupedTask& task);

// Takes long, so for the best tile only.
void set_tile_divisors(GroupedTask& task);

}  // namespace convx
