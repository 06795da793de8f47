// More of CUDA for the host: warps that work together, and shared memory by address.
#pragma once

#include <cmath>

#include "emulator.h"

#define __CUDA_ARCH_FEAT_SM90_ALL
#define __host__
#define __noinline__

inline EmulatedIndex gridDim;

namespace emulator {

// What a block's shared memory is; it starts 16 bytes from where addresses do.
constexpr uint32_t kSharedStart = 16;
inline unsigned char* shared_memory = nullptr;

template <typename T>
T& at_address(uint32_t address) {
  return *reinterpret_cast<T*>(shared_memory + (address - kSharedStart));
}

// Threads that wait for each other.
struct Meeting {
  int arrived = 0;
  unsigned rounds = 0;

  void join(int threads) {
    const unsigned round = rounds;
    if (++arrived == threads) {
      arrived = 0;
      ++rounds;
    } else {
      while (rounds == round) yield();
    }
  }
};

struct Warp {
  Meeting meeting;
  uint32_t words[32][4];  // that lanes show each other

  // Shows words, and calls read once all lanes have.
  template <typename Read>
  void exchange(const uint32_t (&own)[4], const Read& read) {
    std::copy(own, own + 4, words[threadIdx.x % 32]);
    meeting.join(32);
    read();
    meeting.join(32);
  }
};
inline Warp warps[32];
inline Warp& own_warp() { return warps[threadIdx.x / 32]; }

}  // namespace emulator

inline void __syncwarp() { emulator::own_warp().meeting.join(32); }

inline bool __any_sync(unsigned, bool holds) {
  emulator::Warp& warp = emulator::own_warp();
  bool any = false;
  warp.exchange({holds, 0, 0, 0}, [&] {
    for (const auto& lane : warp.words) any |= lane[0] != 0;
  });
  return any;
}

inline int __shfl_sync(unsigned, int value, int lane) {
  emulator::Warp& warp = emulator::own_warp();
  int result = 0;
  warp.exchange({static_cast<uint32_t>(value), 0, 0, 0},
                [&] { result = static_cast<int>(warp.words[lane][0]); });
  return result;
}

inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline uint32_t __float_as_uint(float value) { return convx::float_to_bits(value); }
template <typename T>
T __ldg(const T* pointer) {
  return *pointer;
}
