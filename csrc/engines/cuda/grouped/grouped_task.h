// Derives the kernel parameters of a grouped problem. Plain host code.
#pragma once

#include <cstdint>

#include "core/buffers.h"
#include "core/problem.h"
#include "engines/cuda/grouped/grouped_params.h"

namespace convx {

// Sets everything except the buffers and the tile.
GroupedTask make_grouped_task(const ConvProblem& problem);

// The number of tiles of one image.
int64_t count_grouped_tiles(const GroupedTask& task);

// FastDivmod constructors are slow: call this only for the chosen tile.
void set_tile_divisors(GroupedTask& task);

}  // namespace convx
