// In place of csrc's: copies are done at once.
#pragma once

#include "device/mbarrier.cuh"

namespace convx {

template <int kBytes>
void copy_async(uint32_t destination, const void* source, bool valid) {
  char* const to = shared_pointer<char>(destination, kBytes);
  if (!valid) {
    std::memset(to, 0, kBytes);
    return;
  }
  if (reinterpret_cast<uintptr_t>(source) % kBytes != 0) emulator::fault = "misaligned copy";
  std::memcpy(to, source, kBytes);
}

inline void arrive_after_copies(uint32_t barrier) { arrive(barrier); }

}  // namespace convx
