// In place of csrc's.
#pragma once

#include "emulator.h"

namespace convx {

inline void store_global_8_bytes(void* to, uint32_t first, uint32_t second) {
  if (reinterpret_cast<uintptr_t>(to) % 8 != 0) emulator::fault = "misaligned store";
  const uint32_t words[] = {first, second};
  std::memcpy(to, words, 8);
}
inline void store_global_16_bytes(void* to, const uint32_t (&words)[4]) {
  if (reinterpret_cast<uintptr_t>(to) % 16 != 0) emulator::fault = "misaligned store";
  std::memcpy(to, words, 16);
}
inline void stream_16_bytes(void* to, const uint32_t (&words)[4]) {
  store_global_16_bytes(to, words);
}

}  // namespace convx
