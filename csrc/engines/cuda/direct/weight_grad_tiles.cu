// Weight gradients whose blocks compute tiles of filters and columns (formula in
// weight_grad_common.cuh): the narrow kernel for few filters, and the wide one for enough of them.
#include <type_traits>

#include "device/cp_async.cuh"
#include "device/vectors.cuh"
#include "engines/cuda/direct/weight_grad_common.cuh"

namespace convx {

// The narrow kernel, for groups with few filters, such as depthwise layers.
//
// Tile: a block computes kFilters x kColumns of the gradient over its split-K slice of the pixels.
//
// Threads divide the pixels, not the outputs. Each keeps all accumulators of the block in registers
// and reads y and x directly from global memory: neighbouring threads read neighbouring pixels, and
// the taps of a pixel find most of their values in L1. At the end the accumulators are reduced over
// the threads, by shuffles and then warp by warp, always in the same order.
//
// Shared memory: kColumns column offsets of 16 bytes, 8 warps x kFilters x kColumns partial sums.
// Grid: tile fastest, then split.

constexpr int kNarrowThreads = 256;

template <typename T, int kFilters, int kColumns>
__device__ __forceinline__ void add_pixel(const WeightGradParams& p, const WeightGradTile& tile,
                                          const ColumnOffset* table, const PixelWalk& at,
                                          accumulate_t<T> (&sum)[kFilters][kColumns]) {
  using Acc = accumulate_t<T>;
  // y: [n][group, k][p][q], x: [n][group, c][h][w], any strides
  const T* y = static_cast<const T*>(p.y) +
               (int64_t{tile.group} * p.filters + tile.filter) * p.y_strides.c + locate_y(p, at);
  const int h = at.p * p.stride_h - p.pad_top;
  const int w = at.q * p.stride_w - p.pad_left;
  const T* x = static_cast<const T*>(p.x) + int64_t{tile.group} * p.channels * p.x_strides.c +
               at.n * p.x_strides.n + h * p.x_strides.h + w * p.x_strides.w;
  Acc values[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const ColumnOffset offset = table[c];
    const bool valid = static_cast<unsigned>(h + offset.h) < static_cast<unsigned>(p.H) &&
                       static_cast<unsigned>(w + offset.w) < static_cast<unsigned>(p.W);
    values[c] = valid ? to_accumulate(x[offset.elements]) : Acc{0};
  }
#pragma unroll
  for (int f = 0; f < kFilters; ++f) {
    if (kFilters > 1 && tile.filter + f >= p.filters) break;
    const Acc gradient = to_accumulate(y[f * p.y_strides.c]);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) sum[f][c] += gradient * values[c];
  }
}

// Three blocks per multiprocessor in float32: enough loads in flight, and no spills.
template <typename T, int kFilters, int kColumns>
__global__ void __launch_bounds__(kNarrowThreads, sizeof(T) == 8 ? 1 : 3)
    weight_grad_narrow_kernel(const __grid_constant__ WeightGradParams p) {
  using Acc = accumulate_t<T>;
  constexpr int kSums = kFilters * kColumns;
  constexpr int kWarps = kNarrowThreads / 32;
  __shared__ ColumnOffset table[kColumns];
  __shared__ Acc warp_sums[kWarps][kSums];
  const WeightGradTile tile = locate_tile(p, kFilters, kColumns);
  if (threadIdx.x < kColumns) table[threadIdx.x] = locate_column(p, tile.column + threadIdx.x);
  __syncthreads();

  const int64_t begin = tile.split * p.pixels_per_split;
  const int64_t end = min(begin + p.pixels_per_split, p.pixels);
  Acc sum[kFilters][kColumns] = {};
  PixelWalk at(p, begin + threadIdx.x);
  for (int64_t pixel = begin + threadIdx.x; pixel < end; pixel += kNarrowThreads) {
    // Keeps the table in shared memory. Hoisted out of the loop it would take 64 registers.
    asm volatile("" ::: "memory");
    add_pixel<T, kFilters, kColumns>(p, tile, table, at, sum);
    at.advance(p, kNarrowThreads);
  }

#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    Acc value = sum[i / kColumns][i % kColumns];
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      value += __shfl_xor_sync(0xffffffffu, value, distance);
    }
    if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32][i] = value;
  }
  __syncthreads();
  if (threadIdx.x >= kSums) return;
  Acc total = 0;
  for (int warp = 0; warp < kWarps; ++warp) total += warp_sums[warp][threadIdx.x];
  if (p.direct) {
    write_weight<T>(p, tile.group, tile.filter + threadIdx.x / kColumns,
                    tile.column + threadIdx.x % kColumns, total);
  } else {
    static_cast<Acc*>(
        p.partial)[(int64_t{tile.split} * p.tiles + tile.index) * kSums + threadIdx.x] = total;
  }
}

// The wide kernel, for groups with enough filters and columns for a matrix tile.
//
// Tile: a block computes kFilters x kColumns of the gradient over its split-K slice of the pixels,
// in chunks of kChunk = 16 pixels. x is gathered from the image value by value; no column matrix
// exists outside shared memory.
//
//              columns ->                      warp:   32 filters x 64 columns
//     filters  +-------+-------+               thread: 4 + 4 filters x 4 + 4 columns, the halves
//        |     | warp  | warp  |                       16 filters and 32 columns apart, so that a
//        v     +-------+-------+                       warp's 16-byte loads have no bank conflict
//              | warp  | warp  |
//              +-------+-------+               copies: 8 pixels x 4 filters or columns per warp, so
//                                              whole 32-byte sectors and 32 different banks
//
// All warps copy (cp.async) and compute. Accumulators run over kFlushChunks chunks and are then
// added to the block's partial sums in the workspace. These short accumulation chains keep float32
// accurate, and no other block touches that memory.
//
// Shared memory:
//     table     [kColumns] ColumnOffset, 16 bytes each
//     stages    [2] y [16 pixels][kFilters + 4], x [16 pixels][kColumns + 4], accumulation type
// Grid: tile fastest, then split.

template <int kWarpsKValue, int kWarpsCValue>
struct WideTile {
  static constexpr int kWarpsK = kWarpsKValue;
  static constexpr int kWarps = kWarpsK * kWarpsCValue;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kFilters = 32 * kWarpsK;
  static constexpr int kColumns = 64 * kWarpsCValue;
  static constexpr int kChunk = 16;
  static constexpr int kFlushChunks = 64;  // 1024 terms
  static constexpr int kFilterPitch = kFilters + 4;
  static constexpr int kColumnPitch = kColumns + 4;
  static constexpr int kStage = kChunk * (kFilterPitch + kColumnPitch);
  template <typename Acc>
  static constexpr int kSharedBytes =
      kColumns * int{sizeof(ColumnOffset)} + 2 * kStage * int{sizeof(Acc)};
};

// Copies this thread's share of a chunk: one pixel, and every kStep-th filter and column.
template <typename T, typename Tile>
__device__ __forceinline__ void load_chunk(const WeightGradParams& p, const WeightGradTile& tile,
                                           const ColumnOffset* table, const PixelWalk& at,
                                           bool pixel_valid, accumulate_t<T>* stage) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int pixel = warp % 2 * 8 + lane % 8;
  const int first = warp / 2 * 4 + lane / 8;
  constexpr int kStep = Tile::kWarps / 2 * 4;
  // y: [n][group, k][p][q], any strides
  const T* y = static_cast<const T*>(p.y) +
               (int64_t{tile.group} * p.filters + tile.filter) * p.y_strides.c +
               (pixel_valid ? locate_y(p, at) : 0);
  auto* y_stage = stage + pixel * Tile::kFilterPitch;
#pragma unroll 4
  for (int f = first; f < Tile::kFilters; f += kStep) {
    const bool valid = pixel_valid && tile.filter + f < p.filters;
    copy_element<T>(y_stage + f, y + (valid ? f * p.y_strides.c : 0), valid);
  }
  // x: [n][group, c][h][w], any strides; h and w of tap (0, 0)
  const int h = at.p * p.stride_h - p.pad_top;
  const int w = at.q * p.stride_w - p.pad_left;
  const T* group_x = static_cast<const T*>(p.x) + int64_t{tile.group} * p.channels * p.x_strides.c;
  const T* x = group_x + at.n * p.x_strides.n + h * p.x_strides.h + w * p.x_strides.w;
  auto* x_stage = stage + Tile::kChunk * Tile::kFilterPitch + pixel * Tile::kColumnPitch;
#pragma unroll 4
  for (int c = first; c < Tile::kColumns; c += kStep) {
    const ColumnOffset offset = table[c];
    const bool valid = pixel_valid &&
                       static_cast<unsigned>(h + offset.h) < static_cast<unsigned>(p.H) &&
                       static_cast<unsigned>(w + offset.w) < static_cast<unsigned>(p.W);
    copy_element<T>(x_stage + c, valid ? x + offset.elements : group_x, valid);
  }
}

template <typename Tile, typename Acc>
__device__ __forceinline__ void multiply_chunk(const Acc* y, const Acc* x, Acc (&sum)[8][8]) {
#pragma unroll
  for (int pixel = 0; pixel < Tile::kChunk; ++pixel) {
    Acc filters[2][4];
    Acc columns[2][4];
    load_vec4(filters[0], y + pixel * Tile::kFilterPitch);
    load_vec4(filters[1], y + pixel * Tile::kFilterPitch + 16);
    load_vec4(columns[0], x + pixel * Tile::kColumnPitch);
    load_vec4(columns[1], x + pixel * Tile::kColumnPitch + 32);
#pragma unroll
    for (int f = 0; f < 8; ++f) {
#pragma unroll
      for (int c = 0; c < 8; ++c) sum[f][c] += filters[f / 4][f % 4] * columns[c / 4][c % 4];
    }
  }
}

// Adds the accumulators to the block's partial sums (or stores them, if first) and clears them.
template <typename Tile, typename Acc>
__device__ __forceinline__ void flush_sums(Acc* partial, bool first, Acc (&sum)[8][8]) {
#pragma unroll
  for (int f = 0; f < 8; ++f) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Acc* to = partial + (f / 4 * 16 + f % 4) * Tile::kColumns + half * 32;
      Acc* four = &sum[f][half * 4];
      if (!first) {
        Acc before[4];
        load_vec4(before, to);
#pragma unroll
        for (int i = 0; i < 4; ++i) four[i] += before[i];
      }
      store_vec4(to, four);
#pragma unroll
      for (int i = 0; i < 4; ++i) four[i] = 0;
    }
  }
}

template <typename T, typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, (sizeof(T) == 8 ? 256 : 512) / Tile::kThreads)
    weight_grad_wide_kernel(const __grid_constant__ WeightGradParams p) {
  using Acc = accumulate_t<T>;
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  ColumnOffset* table = reinterpret_cast<ColumnOffset*>(shared_bytes);
  Acc* stages = reinterpret_cast<Acc*>(table + Tile::kColumns);
  const WeightGradTile tile = locate_tile(p, Tile::kFilters, Tile::kColumns);
  for (int i = threadIdx.x; i < Tile::kColumns; i += Tile::kThreads) {
    table[i] = locate_column(p, tile.column + i);
  }
  __syncthreads();

  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int filter = warp % Tile::kWarpsK * 32 + ((lane & 1) | ((lane >> 3) & 2)) * 4;
  const int column = warp / Tile::kWarpsK * 64 + ((lane >> 1) & 7) * 4;
  const int64_t begin = tile.split * p.pixels_per_split;
  const int64_t end = min(begin + p.pixels_per_split, p.pixels);
  const int chunks =
      static_cast<int>((max(end - begin, int64_t{0}) + Tile::kChunk - 1) / Tile::kChunk);
  const int own = warp % 2 * 8 + lane % 8;  // the pixel of each chunk that this thread copies
  int64_t pixel = begin + own;
  PixelWalk at(p, pixel);
  Acc* partial = static_cast<Acc*>(p.partial) +
                 (int64_t{tile.split} * p.tiles + tile.index) * (Tile::kFilters * Tile::kColumns) +
                 filter * Tile::kColumns + column;

  Acc sum[8][8] = {};
  bool flushed = false;
  if (chunks > 0) load_chunk<T, Tile>(p, tile, table, at, pixel < end, stages);
  commit_copies();
  for (int chunk = 0; chunk < chunks; ++chunk) {
    if (chunk + 1 < chunks) {
      pixel += Tile::kChunk;
      at.advance(p, Tile::kChunk);
      load_chunk<T, Tile>(p, tile, table, at, pixel < end, stages + (chunk + 1) % 2 * Tile::kStage);
      commit_copies();
      wait_copies<1>();
    } else {
      wait_copies<0>();
    }
    __syncthreads();
    const Acc* stage = stages + chunk % 2 * Tile::kStage;
    multiply_chunk<Tile>(stage + filter, stage + Tile::kChunk * Tile::kFilterPitch + column, sum);
    __syncthreads();
    if ((chunk + 1) % Tile::kFlushChunks == 0 && !p.direct) {
      flush_sums<Tile>(partial, !flushed, sum);
      flushed = true;
    }
  }
  if (!p.direct) {
    if (!flushed || chunks % Tile::kFlushChunks != 0) flush_sums<Tile>(partial, !flushed, sum);
    return;
  }
#pragma unroll
  for (int f = 0; f < 8; ++f) {
#pragma unroll
    for (int c = 0; c < 8; ++c) {
      write_weight<T>(p, tile.group, tile.filter + filter + f / 4 * 16 + f % 4,
                      tile.column + column + c / 4 * 32 + c % 4, sum[f][c]);
    }
  }
}

void launch_weight_grad_tiles(const LaunchSite& site, const WeightGradFit& fit,
                              const Buffers& buffers) {
  visit_device_type(site.problem->dtype, [&]<typename T>(T) {
    launch_weight_grad<T>(
        site, fit, buffers,
        [&]<WeightGradConfig kConfig>(const WeightGradParams& params, Grid blocks) {
          if constexpr (kConfig.kernel == WeightGradKernel::kNarrow) {
            launch_kernel<weight_grad_narrow_kernel<T, kConfig.filters, kConfig.columns>>(
                site, blocks, kNarrowThreads, 0, params);
          } else if constexpr (kConfig.kernel == WeightGradKernel::kWide &&
                               (!kConfig.float32_only || std::is_same_v<T, float>)) {
            using Tile = WideTile<kConfig.filters / 32, kConfig.columns / 64>;
            constexpr int kBytes = Tile::template kSharedBytes<accumulate_t<T>>;
            launch_kernel<weight_grad_wide_kernel<T, Tile>>(site, blocks, Tile::kThreads, kBytes,
                                                            params);
          } else {
            throw_launch_error(site, "choosing a kernel", "no such tile");
          }
        });
  });
}

}  // namespace convx
