// Chooses among the algorithms that cuBLASLt proposes for a product. Plain host code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace convx {

inline constexpr int kMostLtProposals = 8;

// LtProduct::rank is an index into the list of proposals (the last one, if the list is shorter),
// or:
inline constexpr int kFewTiles = -1;  // the choice of choose_few_tiles

// waves[i]: waves of tiles that proposal i needs for one product of the batch.
//
// With a short reduction, storing the results takes most of the time, and wide tiles store best.
// cuBLASLt's first proposal often has narrow tiles; a later one with far fewer tiles is faster.
size_t choose_few_tiles(const std::vector<float>& waves, int64_t batch);

}  // namespace convx
