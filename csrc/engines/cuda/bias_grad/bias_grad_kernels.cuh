// The kernels of the bias gradient: grad_bias[k] = sum over n, p, q of y[n][k][p][q], in a fixed
// order and without atomics.
//
// Three kernels read y, each for one kind of memory layout. V elements have 16 bytes.
//
//   sum_runs_kernel     The pixels of a channel are contiguous runs: planes of P*Q elements, or
//                       rows of Q elements in a view that crops an NCHW tensor.
//   sum_columns_kernel  y is dense in channels_last, one run of N*P*Q*K elements. It is read as a
//                       matrix of lcm(K, V) columns, since column c then has channel c % K.
//   sum_strided_kernel  Everything else, element by element.
//
// In one iteration a thread reads four vectors of 16 bytes, here those of thread 0 (*):
//
//   sum_runs_kernel, groups of 4 lanes        sum_columns_kernel, K = 3, V = 4, 2 slots
//   run 0   |* . . .|* . . .|* . . .|* .      row 0  |* . .|   12 elements, 4 pixels
//   run 1   |. . . .|. . . .|. . . .|. .      row 1  |. . .|
//   (group 1 reads run 1)                     row 2  |* . .|
//                                             row 3  |. . .|
//
// A run may begin and end anywhere. Vectors are counted from the multiple of 16 bytes at or before
// its beginning. The first and the last vector are read element by element if they reach beyond it.
//
// Threads: 256 per block. In sum_runs_kernel a block has one channel, and groups of 1 to 256 lanes
// alternate through its runs. In the other two, threads are [slot][column].
//
// Accumulation: a thread adds the values of one iteration pairwise in float32, at most 32 of them,
// and adds these sums in float64. Threads are added as a tree in float64, and so are slices.
//
// Shared memory: one float64 per thread and column, 2 KiB, or V times as much in sum_columns_kernel
// (16 KiB for 16-bit types).
//
// Slices: if one block per channel, or per 64 vectors of a row, would have more than 64 KiB to
// read, several blocks divide its pixels. Their sums go to the workspace, and sum_slices_kernel
// adds them. Otherwise there is a single launch.
//
// Limit: memory bandwidth. Tensors of 4.3 GB in bf16 are read at 4.1 to 4.5 TB/s, those of 268 MB
// at 2 to 4 TB/s in NCHW and at 1.8 to 3 TB/s in channels_last (H200, 2026-11-18).
#pragma once

#include <cstdint>
#include <cstring>

#include "core/arithmetic.h"
#include "device/convert.cuh"
#include "device/dependent_launch.cuh"

namespace convx {

constexpr int kBiasGradThreads = 256;
constexpr int kResidentBlocks = 4;  // per SM, at least: 64 registers per thread
constexpr int kSliceSumThreads = 128;
constexpr int kBatch = 4;              // vectors that a thread has in flight
constexpr int kMaxColumnVectors = 64;  // per block of sum_columns_kernel: 1 KiB of a row
constexpr int kStridedChannels = 32;  // per block of sum_strided_kernel, if channels are contiguous
constexpr int kStridedChain = 16;     // float32 additions between two float64 additions

// Where a block's sums go: to grad_bias if partials is null, else to partials[entry][slice].
struct BiasGradTarget {
  void* grad_bias;
  double* partials;
  int slices;
};

template <typename T>
__device__ void store_sum(const BiasGradTarget& target, int channel, int64_t entry, int slice,
                          double sum) {
  if (target.partials != nullptr) {
    target.partials[entry * target.slices + slice] = sum;
  } else {
    static_cast<T*>(target.grad_bias)[channel] = round_to<T>(static_cast<accumulate_t<T>>(sum));
  }
}
// Stores a sum in a dtype that is known at run time.
__device__ inline void store_sum(DType dtype, const BiasGradTarget& target, int channel,
                                 int64_t entry, int slice, double sum) {
  if (target.partials != nullptr) {
    target.partials[entry * target.slices + slice] = sum;
  } else if (dtype == DType::kFloat64) {
    store_as(dtype, target.grad_bias, channel, sum);
  } else {
    store_as(dtype, target.grad_bias, channel, static_cast<float>(sum));
  }
}

// Adds the rows of sums[rows][columns] to the first one, as a tree. All threads of the block call
// it and may read the result.
__device__ inline void add_rows(double* sums, int rows, int columns) {
  while (rows > 1) {
    __syncthreads();
    const int kept = (rows + 1) / 2;
    for (int i = threadIdx.x; i < (rows - kept) * columns; i += blockDim.x) {
      sums[i] += sums[i + kept * columns];
    }
    rows = kept;
  }
  __syncthreads();
}

template <typename T>
constexpr int kVectorElements = 16 / sizeof(T);

// Contiguous elements, counted from the multiple of 16 bytes at or before the first: the run is
// aligned[begin] to aligned[end - 1].
template <typename T>
struct VectorRun {
  const T* aligned;
  int64_t begin, end;

  __device__ VectorRun(const T* first, int64_t length) {
    begin = static_cast<int64_t>(reinterpret_cast<uintptr_t>(first) % 16 / sizeof(T));
    end = begin + length;
    aligned = first - begin;
  }
  // Whether the run has all elements of the vector that starts at aligned[at].
  __device__ bool has_vector(int64_t at) const {
    return at >= begin && at + kVectorElements<T> <= end;
  }
  // Whether it has some of them, but not all.
  __device__ bool has_edge(int64_t at) const {
    return !has_vector(at) && at < end && at + kVectorElements<T> > begin;
  }
  // Whether it has all elements of a batch, the vectors at start, start + step, and so on.
  __device__ bool has_batch(int64_t start, int64_t step) const {
    return start >= begin && start + (kBatch - 1) * step + kVectorElements<T> <= end;
  }
  // Loads a batch; vectors that are not completely inside the run are read as zeros.
  __device__ void load(T (&to)[kBatch][kVectorElements<T>], int64_t start, int64_t step) const {
    uint4 words[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int64_t at = start + i * step;
      words[i] = uint4{0, 0, 0, 0};
      if (has_vector(at)) words[i] = __ldg(reinterpret_cast<const uint4*>(aligned + at));
    }
    memcpy(to, words, sizeof words);
  }
  // Loads a batch that lies inside of the run: there are no comparisons between the loads.
  __device__ void load_all(T (&to)[kBatch][kVectorElements<T>], int64_t start, int64_t step) const {
    uint4 words[kBatch];
    const T* from = aligned + start;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      words[i] = __ldg(reinterpret_cast<const uint4*>(from + i * step));
    }
    memcpy(to, words, sizeof words);
  }
  // Element i of a vector with an edge, or zero.
  __device__ accumulate_t<T> load_edge(int64_t at, int i) const {
    return at + i >= begin && at + i < end ? to_accumulate(aligned[at + i]) : accumulate_t<T>{0};
  }
};

struct RunSumParams {
  const void* y;
  int64_t n_stride, c_stride, h_stride;
  int64_t run_length;
  FastDivmod runs_per_image, units_per_run;
  int channels, units, units_per_slice;
  int lanes_log2;  // log2 of the lanes in a group
  BiasGradTarget target;
};

// A unit is the stretch of a run that a group of lanes reads in one iteration: kBatch vectors per
// lane.
template <typename T>
__global__ void __launch_bounds__(kBiasGradThreads, kResidentBlocks)
    sum_runs_kernel(const __grid_constant__ RunSumParams p) {
  using Acc = accumulate_t<T>;
  constexpr int kElements = kVectorElements<T>;
  extern __shared__ __align__(16) char memory[];
  double* sums = reinterpret_cast<double*>(memory);
  const int channel = blockIdx.x % p.channels;
  const int slice = blockIdx.x / p.channels;
  const int lanes = 1 << p.lanes_log2;
  const int lane = threadIdx.x & (lanes - 1);
  const int first = slice * p.units_per_slice + (static_cast<int>(threadIdx.x) >> p.lanes_log2);
  const int last = min((slice + 1) * p.units_per_slice, p.units);
  const T* y = static_cast<const T*>(p.y) + channel * p.c_stride;
  double total = 0;
  wait_for_kernels_before();
  for (int unit = first; unit < last; unit += kBiasGradThreads >> p.lanes_log2) {
    int run_index = unit;
    const int part = p.units_per_run.split(run_index);
    int image = run_index;
    const int row = p.runs_per_image.split(image);
    const VectorRun<T> run(y + image * p.n_stride + row * p.h_stride, p.run_length);
    const int64_t start = (int64_t{part} * kBatch * lanes + lane) * kElements;
    const int step = lanes * kElements;

    T values[kBatch][kElements];
    const bool has_batch = run.has_batch(start, step);
    has_batch ? run.load_all(values, start, step) : run.load(values, start, step);
    Acc vector_sums[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      Acc pairs[kElements / 2];
#pragma unroll
      for (int j = 0; j < kElements / 2; ++j) {
        pairs[j] = to_accumulate(values[i][2 * j]) + to_accumulate(values[i][2 * j + 1]);
      }
#pragma unroll
      for (int width = kElements / 4; width > 0; width /= 2) {
#pragma unroll
        for (int j = 0; j < width; ++j) pairs[j] += pairs[j + width];
      }
      vector_sums[i] = pairs[0];
    }
    total +=
        static_cast<double>((vector_sums[0] + vector_sums[1]) + (vector_sums[2] + vector_sums[3]));
    if (has_batch) continue;
#pragma unroll 1
    for (int i = 0; i < kBatch; ++i) {
      const int64_t at = start + i * step;
      if (!run.has_edge(at)) continue;
      Acc edge = 0;
#pragma unroll
      for (int j = 0; j < kElements; ++j) edge += run.load_edge(at, j);
      total += static_cast<double>(edge);
    }
  }
  sums[threadIdx.x] = total;
  add_rows(sums, kBiasGradThreads, 1);
  if (threadIdx.x == 0) store_sum<T>(p.target, channel, channel, slice, sums[0]);
}

struct ColumnSumParams {
  const void* y;
  int64_t elements;  // elements of y
  int64_t rows, rows_per_slice;
  int channels;
  int columns;        // lcm(channels, V)
  int block_vectors;  // columns / V, divided among the blocks of a row
  int column_blocks;
  int slots;
  int begin;  // elements between a multiple of 16 bytes and y; column c has channel (c - begin) % K
  BiasGradTarget target;
};

template <typename T>
__global__ void __launch_bounds__(kBiasGradThreads, kResidentBlocks)
    sum_columns_kernel(const __grid_constant__ ColumnSumParams p) {
  using Acc = accumulate_t<T>;
  constexpr int kElements = kVectorElements<T>;
  extern __shared__ __align__(16) char memory[];
  double* sums = reinterpret_cast<double*>(memory);
  const int block = blockIdx.x % p.column_blocks;
  const int slice = blockIdx.x / p.column_blocks;
  const int slot = threadIdx.x / p.block_vectors;
  const int column = (threadIdx.x % p.block_vectors) * kElements;
  const int first_column = block * p.block_vectors * kElements;
  const bool has_column = slot < p.slots && first_column + column < p.columns;
  const int64_t last = min((slice + 1) * p.rows_per_slice, p.rows);
  // The run ends with the slice: a batch may reach beyond it.
  VectorRun<T> run(static_cast<const T*>(p.y), p.elements);
  run.end = min(run.end, last * p.columns);
  const int64_t step = int64_t{p.slots} * p.columns;
  double totals[kElements] = {};
  wait_for_kernels_before();
  int64_t row = has_column ? slice * p.rows_per_slice + slot : last;
  int64_t start = row * p.columns + first_column + column;
  for (; row < last; row += kBatch * p.slots, start += kBatch * step) {
    T values[kBatch][kElements];
    const bool has_batch = run.has_batch(start, step);
    has_batch ? run.load_all(values, start, step) : run.load(values, start, step);
#pragma unroll
    for (int j = 0; j < kElements; ++j) {
      const Acc upper = to_accumulate(values[0][j]) + to_accumulate(values[1][j]);
      const Acc lower = to_accumulate(values[2][j]) + to_accumulate(values[3][j]);
      totals[j] += static_cast<double>(upper + lower);
    }
    if (has_batch) continue;
#pragma unroll 1
    for (int i = 0; i < kBatch; ++i) {
      const int64_t at = start + i * step;
      if (!run.has_edge(at)) continue;
#pragma unroll
      for (int j = 0; j < kElements; ++j) totals[j] += static_cast<double>(run.load_edge(at, j));
    }
  }
  const int block_columns = p.block_vectors * kElements;
  if (slot < p.slots) {
#pragma unroll
    for (int j = 0; j < kElements; ++j) sums[slot * block_columns + column + j] = totals[j];
  }
  add_rows(sums, p.slots, block_columns);
  const bool direct = p.target.partials == nullptr;
  for (int i = threadIdx.x; i < block_columns; i += kBiasGradThreads) {
    const int entry = first_column + i;
    if (entry >= (direct ? p.channels : p.columns)) break;
    double sum = sums[i];
    // A block that writes results has all columns of its channels.
    if (direct) {
      for (int other = i + p.channels; other < block_columns && other < p.columns;
           other += p.channels) {
        sum += sums[other];
      }
    }
    const int channel = (entry + p.channels - p.begin % p.channels) % p.channels;
    store_sum<T>(p.target, channel, entry, slice, sum);
  }
}

struct StridedSumParams {
  DType dtype;
  const void* y;
  int64_t n_stride, c_stride, h_stride, w_stride;
  int64_t pixels, pixels_per_slice;
  int channels, block_channels, channel_blocks;
  int P, Q;
  BiasGradTarget target;
};

template <typename Acc>
__global__ void __launch_bounds__(kBiasGradThreads, kResidentBlocks)
    sum_strided_kernel(const __grid_constant__ StridedSumParams p) {
  extern __shared__ __align__(16) char memory[];
  double* sums = reinterpret_cast<double*>(memory);
  const int block = blockIdx.x % p.channel_blocks;
  const int slice = blockIdx.x / p.channel_blocks;
  const int channel = block * p.block_channels + threadIdx.x % p.block_channels;
  const int slots = kBiasGradThreads / p.block_channels;
  const int64_t end = min((slice + 1) * p.pixels_per_slice, p.pixels);
  const int64_t first = channel * p.c_stride;
  double total = 0;
  wait_for_kernels_before();
  int64_t pixel = slice * p.pixels_per_slice + threadIdx.x / p.block_channels;
  if (channel < p.channels) {
    const int64_t line = pixel / p.Q;
    int q = static_cast<int>(pixel % p.Q);
    int64_t n = line / p.P;
    int row = static_cast<int>(line % p.P);
    while (pixel < end) {
      Acc chain = 0;
      for (int i = 0; i < kStridedChain && pixel < end; ++i, pixel += slots) {
        const int64_t at = first + n * p.n_stride + row * p.h_stride + q * p.w_stride;
        chain += load_as<Acc>(p.dtype, p.y, at);
        for (q += slots; q >= p.Q; q -= p.Q) {
          if (++row == p.P) row = 0, ++n;
        }
      }
      total += static_cast<double>(chain);
    }
  }
  sums[threadIdx.x] = total;
  add_rows(sums, slots, p.block_channels);
  if (static_cast<int>(threadIdx.x) < p.block_channels && channel < p.channels) {
    store_sum(p.dtype, p.target, channel, channel, slice, sums[threadIdx.x]);
  }
}

struct SliceSumParams {
  DType dtype;
  int channels, entries, begin;  // entry e has channel (e - begin) % channels
  BiasGradTarget source;
};

// A block adds all slices of the entries of one channel.
__global__ void __launch_bounds__(kSliceSumThreads)
    sum_slices_kernel(const __grid_constant__ SliceSumParams p) {
  extern __shared__ __align__(16) char memory[];
  double* sums = reinterpret_cast<double*>(memory);
  const int channel = blockIdx.x;
  double total = 0;
  wait_for_kernels_before();
  for (int entry = (channel + p.begin) % p.channels; entry < p.entries; entry += p.channels) {
    const double* partials = p.source.partials + int64_t{entry} * p.source.slices;
#pragma unroll 4
    for (int i = threadIdx.x; i < p.source.slices; i += kSliceSumThreads) total += partials[i];
  }
  sums[threadIdx.x] = total;
  add_rows(sums, kSliceSumThreads, 1);
  if (threadIdx.x == 0) {
    store_sum(p.dtype, {p.source.grad_bias, nullptr, 0}, channel, 0, 0, sums[0]);
  }
}

}  // namespace convx
