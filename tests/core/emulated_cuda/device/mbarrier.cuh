// In place of csrc's. Copies spoil their destination when they start, and deliver when somebody waits
// for them: both as badly timed as the hardware may.
#pragma once

#include <algorithm>
#include <map>
#include <vector>

#include "device/ring_cursor.cuh"
#include "device/memory.cuh"
#include "device/mma.cuh"

namespace emulator {

// What copies may read.
struct CopiedMemory {
  const char* begin;
  const char* end;
};
inline std::vector<CopiedMemory> copied;

}  // namespace emulator

namespace convx {

struct EmulatedCopy {
  char* to;
  const char* from;
  uint32_t bytes;
  uint32_t zeros = 0;   // behind them
  bool rounds = false;  // float32, to TF32
};

struct EmulatedBarrier {
  int threads = 0, arrived = 0;
  uint32_t phase = 0;
  int64_t expected = 0;  // bytes that are still to be delivered
  std::vector<EmulatedCopy> copies = {};

  void try_to_end() {
    if (arrived != threads || expected != 0) return;
    arrived = 0;
    ++phase;
  }

  void deliver() {
    for (const EmulatedCopy& copy : copies) {
      std::memcpy(copy.to, copy.from, copy.bytes);
      for (uint32_t i = 0; copy.rounds && i < copy.bytes; i += 4) {
        float value;
        std::memcpy(&value, copy.to + i, 4);
        const uint32_t rounded = round_to_tf32(value);
        std::memcpy(copy.to + i, &rounded, 4);
      }
      std::memset(copy.to + copy.bytes, 0, copy.zeros);
      expected -= copy.bytes + copy.zeros;
    }
    copies.clear();
    try_to_end();
  }
};
inline std::map<uint32_t, EmulatedBarrier> emulated_barriers;

// What lies in shared memory where a barrier is.
inline constexpr uint64_t kEmulatedBarrier = 0x7265697272616221;

inline EmulatedBarrier& find_barrier(uint32_t barrier) {
  if (load_element<uint64_t>(barrier) != kEmulatedBarrier) {
    emulator::fault = "a barrier that is none, or was written over";
  }
  return emulated_barriers.at(barrier);
}

inline void init_barrier(uint32_t barrier, int arrivals) {
  store_element(barrier, kEmulatedBarrier);
  emulated_barriers[barrier] = {arrivals};
}
inline void fence_barrier_init() {}
inline void fence_async_proxy() {}

inline void arrive_expecting(uint32_t barrier, uint32_t bytes) {
  EmulatedBarrier& b = find_barrier(barrier);
  ++b.arrived;
  b.expected += bytes;
  b.try_to_end();
}
inline void arrive(uint32_t barrier) { arrive_expecting(barrier, 0); }

inline void wait_barrier(uint32_t barrier, uint32_t parity) {
  EmulatedBarrier& b = find_barrier(barrier);
  b.deliver();
  if ((b.phase & 1) == parity) emulator::wait_for(b.phase, [&] { b.deliver(); });
}

inline void bulk_copy(uint32_t destination, const void* source, uint32_t bytes, uint32_t barrier) {
  char* const to = shared_pointer<char>(destination, 16);
  const char* const from = static_cast<const char*>(source);
  if (reinterpret_cast<uintptr_t>(source) % 16 != 0 || bytes % 16 != 0) {
    emulator::fault = "misaligned copy";
  }
  const auto has_all = [&](const emulator::CopiedMemory& memory) {
    return from >= memory.begin && from + bytes <= memory.end;
  };
  if (std::none_of(emulator::copied.begin(), emulator::copied.end(), has_all)) {
    emulator::fault = "a copy reads outside of its memory";
    return;
  }
  std::memset(to, emulator::kPoison, bytes);
  find_barrier(barrier).copies.push_back({to, from, bytes});
}

}  // namespace convx
