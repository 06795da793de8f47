// In place of csrc's: a rank is written above the bits of an address of shared memory.
#pragma once

#include "clusters.h"
#include "device/shared_memory.cuh"

namespace convx {

inline constexpr int kEmulatedRankBit = 20;

inline void sync_cluster() {
  ++emulator::waiting_for_cluster;
  emulator::wait_for(emulator::cluster_phase, [] {});
}

inline uint32_t find_in_block(uint32_t address, int rank) {
  if (rank < 0 || rank >= emulator::cluster_blocks) emulator::fault = "no such block in a cluster";
  return address + (static_cast<uint32_t>(rank + 1) << kEmulatedRankBit);
}

inline float load_from_cluster(uint32_t address) {
  const int rank = static_cast<int>(address >> kEmulatedRankBit) - 1;
  address &= (1u << kEmulatedRankBit) - 1;
  if (rank == blockIdx.x % emulator::cluster_blocks) return load_element<float>(address);
  float value;
  const size_t offset = address - emulator::shared_start;
  std::memcpy(&value, emulator::absent_blocks.at(rank).memory.data() + offset, 4);
  return value;
}

}  // namespace convx
