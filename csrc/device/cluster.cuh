// Thread block clusters: blocks that run at the same time, and read each other's shared memory
// (sm_90). launch_clusters in cuda/launch.h launches such kernels.
#pragma once

#include <cstdint>

namespace convx {

// Waits for all threads of the cluster; what they wrote before, to shared memory as well, is
// visible then.
__device__ __forceinline__ void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;\n" ::: "memory");
}

// Where the block of this rank has what lies at the address in this block's shared memory. Only
// load_from_cluster takes such an address.
__device__ __forceinline__ uint32_t find_in_block(uint32_t address, int rank) {
  uint32_t found;
  asm("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(found) : "r"(address), "r"(rank));
  return found;
}

__device__ __forceinline__ float load_from_cluster(uint32_t address) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];\n" : "=f"(value) : "r"(address) : "memory");
  return value;
}

}  // namespace convx
