// The weight gradient of NCHW tensors, read in place (wgrad_geometry.h explains rows and runs).
//
//                          columns: taps s of a kernel row r, times channels
//                         +---------+---------+---------+
//   64 filters            | r = 0   | r = 1   | r = 2   |  a warpgroup: up to kGroups tap groups,
//                         +---------+---------+---------+  m64nNk16
//   reduced over the pixels of rows, 64 a step
//
// Warps: up to 2 consumer warpgroups; 4 loader warps, which copy raw rows of X and dY with
// cp.async; 4 builder warps, which round a raw input row and write it into the ring once per kernel
// column, shifted. A tap of another kernel row is another slot of the ring.
//
// Shared memory: barriers 1 KiB
//                | ring: components * ring_rows * S * channels * 128 bytes
//                | raw dY: stages * filters * gradient_pitch()
//                | raw X: input_stages * channels * input_pitch.
#pragma once

#include "device/dependent_launch.cuh"
#include "device/warp_roles.cuh"
#include "engines/cuda/weight_grad/rows_builder.cuh"
#include "engines/cuda/weight_grad/rows_consumer.cuh"
#include "engines/cuda/weight_grad/rows_loader.cuh"
#include "kernels/half_scales.cuh"

namespace convx {

inline constexpr int kRowThreads = 128 * kRowWarpgroups + kRowProducerThreads;
inline constexpr int kRowConsumerRegisters = 192, kRowProducerRegisters = 64;

template <typename T, typename Value, OperandForm kForm, int kColumns, int kGroups>
__global__ void __launch_bounds__(kRowThreads, 1)
    rows_kernel(const __grid_constant__ WgradGeometry g, const __grid_constant__ WgradCall call) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char unaligned[];
  const RowsMemory memory(g, count_components(kForm), sizeof(T), unaligned);
  const int warpgroups = static_cast<int>(blockDim.x - kRowProducerThreads) / 128;
  if (threadIdx.x == 0) memory.init_barriers(g, warpgroups);
  wait_for_kernels_before();
  let_next_kernel_start();
  // Other blocks of a scaled form may be about to set the flag: the threads of a block agree on it.
  if (__syncthreads_or(must_return(call))) return;
  const WgradWork work(g, call, find_first_set(g, static_cast<int>(blockIdx.x)));
  if (work.tile.is_empty) return;
  const int warp = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 32, 0);
  const int producer = warp - 4 * warpgroups;
  if (producer < 0) {
    take_registers<kRowConsumerRegisters>();
    RowConsumer<T, Value, kForm, kColumns, kGroups>(g, call, memory, work, warp / 4).run();
  } else {
    give_registers<kRowProducerRegisters>();
    if (producer < kRowLoaderWarps) {
      RowLoader<T>(g, call, memory, work, producer).run();
    } else {
      RowBuilder<T, kForm>(g, call, memory, work, producer - kRowLoaderWarps).run();
    }
  }
#endif
}

}  // namespace convx
