// In place of csrc's.
#pragma once

#include "clusters.h"
#include "device/memory.cuh"

namespace convx {

inline void sync_cluster() {
  ++emulator::waiting_for_cluster;
  emulator::wait_for(emulator::cluster_phase, [] {});
}

inline uint32_t find_in_block(uint32_t address, int rank) {
  if (rank < 0 || rank >= emulator::cluster_blocks) emulator::fault = "no such block in a cluster";
  return address % (1u << emulator::kRankBit) + (static_cast<uint32_t>(rank) << emulator::kRankBit);
}

inline float load_from_cluster(uint32_t address) {
  const uint32_t rank = address >> emulator::kRankBit;
  if (rank == emulator::cluster_rank) return load_element<float>(address);
  float value;
  const size_t offset = address % (1u << emulator::kRankBit) - emulator::shared_start;
  std::memcpy(&value, emulator::absent_blocks.at(rank).memory.data() + offset, 4);
  return value;
}

}  // namespace convx
