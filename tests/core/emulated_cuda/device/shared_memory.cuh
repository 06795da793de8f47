// In place of csrc/device, on the host.
#pragma once

#include "emulated_cuda/warps.h"

namespace convx {

inline uint32_t shared_address(const void* pointer) {
  return emulator::kSharedStart + static_cast<uint32_t>(static_cast<const unsigned char*>(pointer) -
                                                        emulator::shared_memory);
}

inline void store_16_bytes(uint32_t address, const uint32_t (&words)[4]) {
  emulator::at_address<uint4>(address) = {words[0], words[1], words[2], words[3]};
}
inline void store_8_bytes(uint32_t address, uint32_t first, uint32_t second) {
  emulator::at_address<uint2>(address) = {first, second};
}
inline uint4 load_16_bytes(uint32_t address) { return emulator::at_address<uint4>(address); }

inline void store_matrices(uint32_t address, const uint32_t (&words)[4]) {
  emulator::Warp& warp = emulator::own_warp();
  warp.exchange(words, [&] {
    const int lane = threadIdx.x % 32, row = lane % 8, matrix = lane / 8;
    for (int i = 0; i < 4; ++i) {
      emulator::at_address<uint32_t>(address + 4 * i) = warp.words[4 * row + i][matrix];
    }
  });
}

template <typename T>
T load_element(uint32_t address) {
  return emulator::at_address<T>(address);
}
template <typename T>
void store_element(uint32_t address, T value) {
  emulator::at_address<T>(address) = value;
}

}  // namespace convx
