// Which of the algorithms that cuBLASLt proposes for a product is taken. Plain host code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace convx {

inline constexpr int kMostLtProposals = 8;

// By its place in the list; the last, if there are not so many. Or:
inline constexpr int kFewTiles = -1;  // by choose_few_tiles

// waves: how often the tiles of one product of the batch would fill the device, by each proposal.
//
// Of a short reduction, storing results is what takes long, and wide tiles store best. cuBLASLt's
// first proposal often has narrow ones: a later one of far fewer tiles is better.
size_t choose_few_tiles(const std::vector<float>& waves, int64_t batch);

}  // namespace convx
