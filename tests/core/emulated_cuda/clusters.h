// Blocks of a cluster, run alternately: each goes on until its threads wait for the cluster, and
// its shared memory is put away then. mbarriers and named barriers must be at rest at that time.
#pragma once

#include <utility>

#include "emulator.h"

namespace emulator {

inline int cluster_blocks = 1;
inline unsigned cluster_phase = 0;

// A block that does not run at present.
struct AbsentBlock {
  std::vector<Fiber> fibers;
  std::vector<unsigned char> memory;  // its shared memory
  int alive = 0;
};
inline std::vector<AbsentBlock> absent_blocks;

// Lets the block of this rank take the place of another that has been put away, and puts it away
// once it waits.
inline void resume_in_cluster(AbsentBlock& block, size_t threads, unsigned char* memory,
                              const std::function<void()>& kernel) {
  std::copy(block.memory.begin(), block.memory.end(), memory);
  std::swap(fibers, block.fibers);
  alive = block.alive;
  waiting_for_cluster = 0;
  resume_block(threads, kernel);
  block.alive = alive;
  std::swap(fibers, block.fibers);
  std::copy(memory, memory + block.memory.size(), block.memory.begin());
}

// Runs the blocks of one cluster, the first of which is blockIdx.x. Returns whether none wrote
// behind its `bytes` of shared memory, where there is a margin.
inline bool run_cluster(size_t threads, unsigned char* memory, size_t bytes, size_t margin,
                        const std::function<void()>& kernel) {
  const int first = blockIdx.x;
  if (absent_blocks.size() < static_cast<size_t>(cluster_blocks)) {
    absent_blocks.resize(static_cast<size_t>(cluster_blocks));
  }
  for (int rank = 0; rank < cluster_blocks; ++rank) {
    AbsentBlock& block = absent_blocks[rank];
    block.memory.assign(bytes + margin, kPoison);
    std::swap(fibers, block.fibers);
    start_block(threads);
    block.alive = alive;
    std::swap(fibers, block.fibers);
  }
  for (bool runs = true; runs;) {
    runs = false;
    for (int rank = 0; rank < cluster_blocks; ++rank) {
      AbsentBlock& block = absent_blocks[rank];
      if (block.alive == 0) continue;
      blockIdx.x = first + rank;
      cluster_rank = static_cast<uint32_t>(rank);
      resume_in_cluster(block, threads, memory, kernel);
      runs |= block.alive > 0;
    }
    ++cluster_phase;
    ++steps;
  }
  blockIdx.x = first + cluster_blocks - 1;
  cluster_rank = 0;
  for (int rank = 0; rank < cluster_blocks; ++rank) {
    const unsigned char* const behind = absent_blocks[rank].memory.data() + bytes;
    if (std::any_of(behind, behind + margin, [](auto b) { return b != kPoison; })) return false;
  }
  return true;
}

}  // namespace emulator
