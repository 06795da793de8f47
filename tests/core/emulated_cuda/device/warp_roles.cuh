// In place of csrc's.
#pragma once

#include "emulator.h"

namespace convx {

template <int kRegisters>
void take_registers() {}
template <int kRegisters>
void give_registers() {}

inline void wait_at_barrier(int id, int threads) { emulator::block_barriers[id].wait(threads); }
template <int kId, int kThreads>
void wait_at_barrier() {
  wait_at_barrier(kId, kThreads);
}
template <int kId, int kThreads>
void pass_barrier() {
  emulator::block_barriers[kId].pass(kThreads);
}
inline bool any_in_warpgroup(int id, bool holds) {
  return emulator::block_barriers[id].wait(128, holds);
}

}  // namespace convx
