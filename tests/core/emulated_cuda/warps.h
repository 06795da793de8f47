// More of CUDA for the host: lanes of a warp that show each other values.
#pragma once

#include <bit>

#include "emulator.h"

namespace emulator {

struct Shown {
  uint32_t words[32][8];  // of every lane
};
inline Shown shown[kMaxWarps][2];
inline int turns[kMaxWarps][32];

// What all lanes of the warp show, once they have; until the call after the next. Two places are
// taken in turn, so that one barrier does.
template <size_t kCount>
const Shown& show_in_warp(const uint32_t (&own)[kCount]) {
  static_assert(kCount <= 8);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Shown& all = shown[warp][turns[warp][lane]++ % 2];
  std::copy(own, own + kCount, all.words[lane]);
  warp_barrier().wait(32);
  return all;
}

}  // namespace emulator

template <typename T>
T __shfl_sync(unsigned, T value, int lane) {
  struct Words {
    uint32_t all[sizeof(T) / 4];
  };
  Words words = std::bit_cast<Words>(value);
  const auto& from = emulator::show_in_warp(words.all).words[lane];
  std::copy(from, from + sizeof(T) / 4, words.all);
  return std::bit_cast<T>(words);
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int distance) {
  return __shfl_sync(mask, value, threadIdx.x % 32 ^ distance);
}
inline unsigned __ballot_sync(unsigned, bool holds) {
  const auto& all = emulator::show_in_warp({uint32_t{holds}});
  unsigned ballot = 0;
  for (int lane = 0; lane < 32; ++lane) ballot |= all.words[lane][0] << lane;
  return ballot;
}
