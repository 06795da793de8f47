// grad_bias[k] = sum over n, p, q of y[n][k][p][q], in two passes without atomics.
//
// First pass: a block sums one split of the pixels for one channel, or, where channels are
// neighbours in memory, for 32 of them. Threads are [pixel slot][channel of the block]; a thread
// walks over its pixels, and the slots are added as a tree in shared memory (256 sums).
// Second pass: one thread per channel adds the splits in their order.
#include <algorithm>

#include "cuda/launch.h"
#include "device/convert.cuh"
#include "device/fast_divmod.cuh"
#include "engines/launch_cuda.h"

namespace convx {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMinSplitPixels = 8192;
constexpr int64_t kWantedBlocks = 2048;

struct BiasGradParams {
  const void* y;
  int64_t n_stride, c_stride, h_stride, w_stride;
  int64_t pixels, pixels_per_split;
  int channels, channels_per_block, channel_blocks, splits;
  int P, Q;
};

bool has_neighbouring_channels(const ConvProblem& problem) {
  return problem.y_strides.c == 1 && problem.y_strides.w != 1;
}

BiasGradParams make_params(const ConvProblem& problem, const void* y) {
  BiasGradParams p{};
  p.y = y;
  p.n_stride = problem.y_strides.n;
  p.c_stride = problem.y_strides.c;
  p.h_stride = problem.y_strides.h;
  p.w_stride = problem.y_strides.w;
  p.pixels = problem.N * problem.P * problem.Q;
  p.channels = static_cast<int>(problem.K);
  p.channels_per_block = has_neighbouring_channels(problem) ? 32 : 1;
  p.channel_blocks = (p.channels + p.channels_per_block - 1) / p.channels_per_block;
  const int64_t wanted = std::max<int64_t>(kWantedBlocks / p.channel_blocks, 1);
  const int64_t minimum = kMinSplitPixels / p.channels_per_block;
  p.splits = static_cast<int>(std::clamp<int64_t>(p.pixels / minimum, 1, wanted));
  p.pixels_per_split = (p.pixels + p.splits - 1) / p.splits;
  p.P = static_cast<int>(problem.P);
  p.Q = static_cast<int>(problem.Q);
  return p;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    sum_split_kernel(const __grid_constant__ BiasGradParams p, double* partial) {
  using Acc = accumulate_t<T>;
  __shared__ double sums[kThreads];
  const int block = blockIdx.x % p.channel_blocks;
  const int split = blockIdx.x / p.channel_blocks;
  const int channel = block * p.channels_per_block + threadIdx.x % p.channels_per_block;
  const int slots = kThreads / p.channels_per_block;
  const int64_t end = min((split + 1) * p.pixels_per_split, p.pixels);
  const T* y = static_cast<const T*>(p.y) + channel * p.c_stride;
  Acc sum = 0;
  int64_t pixel = split * p.pixels_per_split + threadIdx.x / p.channels_per_block;
  if (channel < p.channels) {
    int64_t line = pixel / p.Q;
    int q = static_cast<int>(pixel % p.Q);
    int64_t n = line / p.P;
    int row = static_cast<int>(line % p.P);
    for (; pixel < end; pixel += slots) {
      sum += to_accumulate(y[n * p.n_stride + row * p.h_stride + q * p.w_stride]);
      q += slots;
      while (q >= p.Q) {
        q -= p.Q;
        if (++row == p.P) {
          row = 0;
          ++n;
        }
      }
    }
  }
  sums[threadIdx.x] = static_cast<double>(sum);
  for (int half = slots / 2; half > 0; half /= 2) {
    __syncthreads();
    const int other = threadIdx.x + half * p.channels_per_block;
    if (static_cast<int>(threadIdx.x) < half * p.channels_per_block) {
      sums[threadIdx.x] += sums[other];
    }
  }
  if (static_cast<int>(threadIdx.x) < p.channels_per_block && channel < p.channels) {
    partial[int64_t{split} * p.channels + channel] = sums[threadIdx.x];
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    sum_splits_kernel(const double* partial, int channels, int splits, T* grad_bias) {
  const int channel = blockIdx.x * kThreads + threadIdx.x;
  if (channel >= channels) return;
  double sum = 0;
#pragma unroll 8
  for (int split = 0; split < splits; ++split) sum += partial[int64_t{split} * channels + channel];
  grad_bias[channel] = round_to<T>(static_cast<accumulate_t<T>>(sum));
}

}  // namespace

int64_t cuda_bias_grad_workspace_bytes(const ConvProblem& problem) {
  const BiasGradParams p = make_params(problem, nullptr);
  return int64_t{p.splits} * p.channels * static_cast<int64_t>(sizeof(double));
}

void cuda_bias_grad(const ConvProblem& problem, const void* y, void* grad_bias, void* workspace,
                    const CudaContext& context) {
  const LaunchSite site{"cuda_bias_grad", &problem, static_cast<cudaStream_t>(context.stream)};
  const BiasGradParams params = make_params(problem, y);
  double* partial = static_cast<double*>(workspace);
  visit_device_type(problem.dtype, [&](auto type) {
    using T = decltype(type);
    const unsigned blocks = static_cast<unsigned>(params.channel_blocks) * params.splits;
    launch_kernel<sum_split_kernel<T>>(site, blocks, kThreads, 0, params, partial);
    const unsigned last = (params.channels + kThreads - 1) / kThreads;
    launch_kernel<sum_splits_kernel<T>>(site, last, kThreads, 0,
                                        static_cast<const double*>(partial), params.channels,
                                        params.splits, static_cast<T*>(grad_bias));
  });
}

}  // namespace convx
