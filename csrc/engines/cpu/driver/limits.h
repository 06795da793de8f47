// Bounds of the CPU engines' scratch memory and task sizes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/arithmetic.h"
#include "core/problem.h"

namespace convx {

// Slices of the workspace start on cache lines, for float and double alike.
constexpr int64_t kAlignElements = 16;

// A workspace has at most kMaxSharedBytes + kMaxSlotsBytes. Slices are sized for the L2 cache, or
// smaller if many threads share the limit.
constexpr int64_t kMaxSharedBytes = int64_t{15} << 20;
constexpr int64_t kMaxSlotsBytes = int64_t{48} << 20;
constexpr int64_t kMaxSlotBudget = int64_t{1} << 20;
constexpr int64_t kMinSlotBudget = int64_t{384} << 10;

inline int64_t slot_budget(int threads) {
  return std::clamp(kMaxSlotsBytes / std::max(threads, 1), kMinSlotBudget, kMaxSlotBudget);
}

// Slots beyond the limit are not used. Every slice fits at least once.
inline int64_t count_slots(int threads, int64_t slot_bytes) {
  return std::clamp<int64_t>(kMaxSlotsBytes / std::max<int64_t>(slot_bytes, 1), 1,
                             std::max(threads, 1));
}

constexpr int64_t kMaxTileChannels = 256;
constexpr int64_t kMinTileChannels = 32;
constexpr int64_t kMaxTilePixels = 1024;

// Narrower panels, as with 16 vector registers, reload too much (AVX2: 10% slower than the other
// way around, measured on a Cascade Lake core).
constexpr int64_t kMinPanelOverChannels = 4;
// Fewer terms do not make up for transposing the result.
constexpr int64_t kMinDepthOverChannels = 96;

// A few tasks per thread even out their lengths. Tasks below about 10 us cost more than they gain.
constexpr int64_t kTasksPerThread = 3;
constexpr int64_t kMinTaskProducts = 400000;
constexpr int64_t kMinBatchProducts = 20000;

constexpr int64_t kCacheLineBytes = 64;
constexpr int64_t kFewChannels = 16;
constexpr int64_t kMaxSharedLinePixels = 256;

}  // namespace convx
