// The weight gradient on Hopper's tensor cores (wgrad_geometry.h has the formula).
//
//                     columns: atoms of taps or channels
//                    +-------+-------+-------+
//   64 filters       | tap 0 | tap 1 | tap 2 |   one consumer warpgroup: the accumulators of a tap
//                    +-------+-------+-------+   group, m64nNk16
//   reduced over positions, 64 a stage
//
// A block has up to three consumer warpgroups, tiles of filters times tap groups, and two producer
// warps, one for each operand. Blocks that convert float32 operands have a loading warp and seven
// converter warps instead (wgrad_convert.cuh).
//
// All consumers share one ring of X' in shared memory: every stage of it is brought once per block
// and read by all taps, because a tap is a shift of the operand's start by whole rows. The first
// stages of the ring are mirrored behind its end, so that no MMA's operand wraps.
//
// Both operands are MN-major: rows of positions, columns of channels. A stage of dY' is 64 rows of
// 128 bytes; atoms of B lie atom_shift rows apart (overlapping taps), or a ring apart (channels).
//
// Where one slice covers all positions, its block writes dW (wgrad_store.cuh). Where a few do, they
// are the blocks of a cluster, add their accumulators through shared memory, and write dW.
// Otherwise partial sums go to the workspace, for wgrad_reduce.cuh.
//
// Shared memory: barriers 1 KiB | dY' stages * filter tiles * components * 8 KiB
//                | X' (ring + mirrored stages) * channel tiles * components * 64 * row_bytes
//                | staging ring, if operands are converted: slots * 16 KiB.
// After the last MMA, accumulators may be staged over these: consumers * 64 * staged_row * 4 bytes.
// Behind both is the table of wgrad_store.cuh, 8 bytes per column of a block.
#pragma once

#include "device/dependent_launch.cuh"
#include "device/warp_roles.cuh"
#include "engines/cuda/weight_grad/wgrad_consumer.cuh"
#include "engines/cuda/weight_grad/wgrad_convert.cuh"
#include "engines/cuda/weight_grad/wgrad_fit.h"
#include "engines/cuda/weight_grad/wgrad_producer.cuh"
#include "kernels/half_scales.cuh"

namespace convx {

// What the MMAs multiply.
template <OperandForm kForm>
using component_t =
    std::conditional_t<kForm == OperandForm::kFloat16 || is_scaled(kForm), __half, __nv_bfloat16>;

// kConverts: as WgradGeometry::converts.
template <OperandForm kForm, int kColumns, bool kConverts>
__global__ void __launch_bounds__(128 * max_consumers(kColumns, kForm, kConverts) +
                                      (kConverts ? kConvertingThreads : kProducerThreads),
                                  1)
    wgrad_kernel(const __grid_constant__ WgradGeometry g, const __grid_constant__ WgradCall call,
                 const __grid_constant__ WgradMaps maps) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kComponents = count_components(kForm);
  extern __shared__ char unaligned[];
  const WgradMemory memory(g, kComponents, unaligned);
  const StagingMemory staging(g, memory, kComponents);
  if (threadIdx.x == 0) {
    memory.init_barriers(g);
    if (kConverts) staging.init_barriers(g);
  }
  // Everything that needs parameters only comes before the wait for earlier kernels.
  const WgradWork work(g, call, WgradIndex(g, static_cast<int>(blockIdx.x)));
  // The same for all lanes, which lets the compiler keep descriptors in uniform registers.
  const int warp = __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / 32, 0);
  const int first_producer = 4 * g.consumers();
  if (g.writes_result && !work.tile.is_empty && warp < first_producer) {
    ResultStore<kForm>(g, call, memory, work)
        .list_elements(static_cast<int>(threadIdx.x), 32 * first_producer);
  }
  wait_for_kernels_before();
  let_next_kernel_start();
  // Other blocks that convert may be about to set the flag: the threads of a block agree on it.
  if (__syncthreads_or(must_return(call))) return;
  if (work.tile.is_empty) return;
  if (warp < first_producer) {
    constexpr bool kHasPairs = kComponents == 1 && !kConverts;
    WgradConsumer<component_t<kForm>, kComponents, kColumns, promotes_sums(kForm), kHasPairs>(
        g, call, memory, work, warp / 4)
        .run();
    // The producers have returned or will, and no barrier waits for them. Code that they shared
    // with consumers would make the compiler serialize the MMAs.
    if (g.writes_result) ResultStore<kForm>(g, call, memory, work).run(32 * first_producer);
  } else if constexpr (kConverts) {
    if (warp < first_producer + kConverterWarps) {
      OperandConverter<kForm>(g, call, memory, staging, work, warp - first_producer).run();
    } else if (elect_lane()) {
      StagingLoader(g, call, maps, staging, work).run();
    }
  } else if (warp == first_producer) {
    if (elect_lane()) GradientProducer<kComponents>(g, call, maps, memory, work).run();
  } else if (elect_lane()) {
    InputProducer<kComponents>(g, call, maps, memory, work).run();
  }
#endif
}

}  // namespace convx
