// Finds the scales of kScaledFp16 and kScaledFp16x2: one power of two for X and one for dY, each by
// a sample of 4,096 values. The packing kernel then checks every value against its scale.
#pragma once

#include "engines/cuda/weight_grad/wgrad_call.h"
#include "engines/cuda/weight_grad/wgrad_geometry.h"
#include "kernels/measure_halves.cuh"

namespace convx {

// Block 0 samples X, block 1 samples dY.
template <typename Geometry>  // a template, so that every file may have it
__global__ void __launch_bounds__(kMeasureThreads)
    measure_scales_kernel(const __grid_constant__ Geometry g,
                          const __grid_constant__ WgradCall call) {
  wait_for_kernels_before();
  let_next_kernel_start();
  extern __shared__ __align__(16) char memory[];
  const bool is_input = blockIdx.x == 0;
  const SampledTensor tensor{static_cast<const float*>(is_input ? call.x : call.y),
                             g.images,
                             is_input ? g.channels : g.filters,
                             is_input ? g.height : g.out_height,
                             is_input ? g.width : g.out_width,
                             is_input ? g.x_strides : g.y_strides};
  const Measure measure = join_block(sample_tensor(tensor), reinterpret_cast<Measure*>(memory));
  if (threadIdx.x != 0) return;
  const float scale = find_scale(measure.largest, kSourceExponent);
  if (is_input) {
    call.scales->unfit = 0;
    call.scales->source = scale;
  } else {
    filter_scales(call.scales)[0] = scale;
  }
}

}  // namespace convx
