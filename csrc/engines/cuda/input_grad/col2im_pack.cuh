// Packs filters in the order in which blocks keep them in shared memory:
//
//   packed [group][channel tile][component][chunk][atom][filter][32 columns]
//
// with rows of 64 bytes, swizzled. A thread packs 8 filters of a column.
#pragma once

#include "device/convert.cuh"
#include "device/dependent_launch.cuh"
#include "device/wgmma_descriptors.cuh"
#include "engines/cuda/input_grad/col2im_geometry.h"
#include "kernels/half_scales.cuh"
#include "kernels/run_flag.cuh"
#include "kernels/tensor_types.cuh"

namespace convx {

inline constexpr int kCol2imPackThreads = 128;

template <TensorMath kMath>
__global__ void __launch_bounds__(kCol2imPackThreads)
    pack_col2im_kernel(const __grid_constant__ Col2imParams p) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using T = typename TensorTypes<kMath>::Element;
  const Col2imGeometry& g = p.g;
  wait_for_kernels_before();
  let_next_kernel_start();
  if (must_return(p)) return;
  // Neighbouring threads have neighbouring columns.
  const int columns = g.chunks * g.atoms * kAtomColumns, units = g.depth_chunks * kDepthFilters / 8;
  const int index =
      static_cast<int>(blockIdx.x) * kCol2imPackThreads + static_cast<int>(threadIdx.x);
  const int column = index % columns, unit = index / columns % units,
            tile = index / columns / units;
  if (tile >= p.groups * g.channel_tiles) return;

  const int atom = column / kAtomColumns, chunk = atom / g.atoms;
  const int in_chunk = column - chunk * g.atoms * kAtomColumns;
  const int tap = in_chunk / g.tile_channels;
  const int r = chunk * g.chunk_rows + tap / g.kernel_columns, s = tap % g.kernel_columns;
  const int group = tile / g.channel_tiles;
  const int channel =
      (tile - group * g.channel_tiles) * g.tile_channels + in_chunk - tap * g.tile_channels;
  const bool exists = in_chunk < g.chunk_columns && r < g.kernel_rows && channel < g.channels;
  const T* const from = static_cast<const T*>(p.filters) + group * p.filter_group +
                        channel * p.filter_target + r * p.filter_r + s * p.filter_s;
  float values[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const int filter = unit * 8 + i;
    values[i] = exists && filter < g.filters ? to_accumulate(from[filter * p.filter_source]) : 0.f;
  }
  if constexpr (is_half(kMath)) {
    if (exists) scale_filter(p.scales, group * g.channels + channel, values);
  }
  const OperandWords<kMath> operands(values);
  char* const to = static_cast<char*>(const_cast<void*>(p.packed)) +
                   int64_t{tile} * count_planes(kMath) * g.component_bytes() +
                   atom * g.atom_bytes();
#pragma unroll
  for (int j = 0; j < count_planes(kMath); ++j) {
    const uint4& part = operands.part[j];
    const uint32_t words[4] = {part.x, part.y, part.z, part.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t place =
          swizzle((unit * 8 + i) * kAtomColumns * 2 + column % kAtomColumns * 2, kAtomColumns * 2);
      *reinterpret_cast<uint16_t*>(to + j * g.component_bytes() + place) =
          static_cast<uint16_t>(words[i / 2] >> i % 2 * 16);
    }
  }
#endif
}

}  // namespace convx
