// Second pass of the depthwise weight gradients: adds the partial sums of all splits in a fixed
// order.
//
//     dW[weight] = sum over splits of  partials[split][weight]
//
// A block has 32 neighbouring weights and 8 slices of the splits. Thread (slice, weight) adds
// splits slice, slice + 8, slice + 16, ...; then the 8 slices are added in order. The splits are
// many (a few hundred) and the weights few (a few thousand): one thread per weight would wait for
// memory once per handful of splits.
//
// Programmatic dependent launch: its blocks start while the last blocks of the first pass end.
//
// Shared memory: 8 x 32 floats.
#include "cuda/launch.h"
#include "device/convert.cuh"
#include "device/dependent_launch.cuh"
#include "engines/cuda/depthwise/weight_grad_geometry.h"

namespace convx {

__global__ void __launch_bounds__(kWeightGradSumsThreads)
    weight_grad_sums_kernel(const __grid_constant__ WeightGradSums p, DType dtype) {
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
    for (int split = slice; split < p.splits; split += kSlices) sum += from[split * p.weights];
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
  const int64_t channel = filter % p.channels;
  filter /= p.channels;
  const int64_t to =
      filter * p.target_k + channel * p.target_c + row * p.target_r + column * p.target_s;
  store_as(dtype, p.target, to, sum);
}

void add_partial_sums(const LaunchSite& site, int64_t splits, const Buffers& buffers) {
  const WeightGradSums sums = make_weight_grad_sums(*site.problem, splits, buffers);
  launch_early<weight_grad_sums_kernel>(site, sums.count_blocks(), kWeightGradSumsThreads,
                                        kWeightGradSumsBytes, sums, site.problem->dtype);
}

}  // namespace convx
