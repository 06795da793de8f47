// Second pass of the depthwise weight gradients: adds the partial sums of all parts in a fixed
// order.
//
//     dW[weight] = sum over parts of  partials[part][weight]
//
// A block has 32 neighbouring weights and 8 slices of the parts. Thread (slice, weight) adds parts
// slice, slice + 8, slice + 16, ...; then the 8 slices are added in order. The parts are many (a
// few hundred) and the weights few (a few thousand): one thread per weight would wait for memory
// once per handful of parts.
//
// Programmatic dependent launch: its blocks start while the last blocks of the first pass end.
//
// Shared memory: 8 x 32 floats.
#pragma once

#include "device/convert.cuh"
#include "device/dependent_launch.cuh"
#include "engines/cuda/depthwise/depthwise_weight_grad_fit.h"

namespace convx {

template <typename T>
__global__ void __launch_bounds__(kWeightGradSumsThreads)
    weight_grad_sums_kernel(const __grid_constant__ WeightGradSums p) {
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  constexpr int kSlices = kWeightGradSumsThreads / kWeightGradSumsWeights;
  float* const sums = reinterpret_cast<float*>(shared_bytes);
  const int lane = static_cast<int>(threadIdx.x) % kWeightGradSumsWeights;
  const int slice = static_cast<int>(threadIdx.x) / kWeightGradSumsWeights;
  const int64_t weight = int64_t{blockIdx.x} * kWeightGradSumsWeights + lane;
  wait_for_kernels_before();
  float sum = 0;
  if (weight < p.weights) {
    const float* from = p.partials + weight;
#pragma unroll 8
    for (int part = slice; part < p.parts; part += kSlices) sum += from[part * p.weights];
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (slice > 0 || weight >= p.weights) return;
#pragma unroll
  for (int i = 1; i < kSlices; ++i) sum += sums[i * kWeightGradSumsWeights + lane];
  int64_t filter = weight;
  const int64_t column = filter % p.columns;
  filter /= p.columns;
  const int64_t row = filter % p.rows;
  filter /= p.rows;
  static_cast<T*>(p.target)[filter * p.target_k + row * p.target_r + column * p.target_s] =
      round_to<T>(sum);
}

}  // namespace convx
