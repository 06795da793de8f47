// The kernels around the GEMMs of cuda_gemm. They only move data; gemm_shape.h has the layouts.
//
//     fill_columns     builds a chunk of the column matrix: a block copies one source row of one
//                      channel, for all column taps, up to kColumnsPerBlock pixels
//     pack_filters     w -> [group][filter][row tap][c][column tap], the order of the columns
//     move_results     staged results -> target, with bias; or zeros
//     add_bias         adds the bias to results in place
//     fill_bias        bias values that a GEMM accumulates onto
//     gather_planes    planes of a 1x1 layer -> side by side
//     scatter_planes   results side by side -> planes, with bias
//     gather_gradient  y -> staging, where the GEMM cannot read it in place
//     add_products     weight gradient: adds a chunk's products to the sum, in order
//     write_gradient   the sum -> w
//
// None of them uses shared memory. Kernels that only move values are launched for MovedAs<T>.
#pragma once

#include "core/arithmetic.h"
#include "core/problem.h"
#include "device/convert.cuh"

namespace convx {

constexpr int kColumnThreads = 128;
constexpr int kColumnsPerBlock = 512;
constexpr int kMoveThreads = 256;

struct ColumnParams {
  const void* source;  // at the chunk's first image
  void* columns;
  Strides strides;
  int source_h, source_w;
  int channels;  // per group
  int stored_rows, column_taps;
  int pixels;     // images times columns of the chunk
  int pitch;      // elements from one row of the column matrix to the next
  int first_row;  // u of stored row 0, see StoredRows
  int unit, outer_step, inner_step, row_origin;
  int column_step, offset_step, column_origin;
  bool sliding;  // true: steps are 1, and four pixels never straddle two images
  FastDivmod by_columns;
};

// Stride 1 and dilation 1: four neighbouring pixels at a time. From one tap to the next their
// values shift by one, so each tap costs one load and one store of four values.
template <typename T>
__device__ inline void fill_sliding(const ColumnParams& p, const T* source, bool row_valid,
                                    T* columns, int first, int last) {
  struct alignas(4 * sizeof(T)) Four {
    T v[4];
  };
  for (int pixel = first + 4 * threadIdx.x; pixel < last; pixel += 4 * kColumnThreads) {
    int image = pixel;
    int w = p.by_columns.split(image) + p.column_origin;
    const T* from = source + image * p.strides.n;
    auto read = [&](int at) {
      const bool valid = row_valid && static_cast<unsigned>(at) < static_cast<unsigned>(p.source_w);
      return valid ? from[at * p.strides.w] : T(0.0f);
    };
    Four four{{read(w), read(w + 1), read(w + 2), read(w + 3)}};
    T* to = columns + pixel;
#pragma unroll 4
    for (int tap = 0; tap < p.column_taps; ++tap) {
      *reinterpret_cast<Four*>(to) = four;
      four = {{four.v[1], four.v[2], four.v[3], read(w + 4)}};
      ++w;
      to += p.pitch;
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kColumnThreads)
    fill_columns_kernel(const __grid_constant__ ColumnParams p) {
  const int channel = blockIdx.x % p.channels;
  const int line = blockIdx.x / p.channels;  // [group][stored row]
  const int t = line % p.stored_rows;
  const int group = line / p.stored_rows;
  const int u = p.first_row + t;
  const int h = u / p.unit * p.outer_step + u % p.unit * p.inner_step + p.row_origin;
  const bool row_valid = static_cast<unsigned>(h) < static_cast<unsigned>(p.source_h);
  // source: [n][group, c][h][w], any strides.
  const T* source = static_cast<const T*>(p.source) +
                    (int64_t{group} * p.channels + channel) * p.strides.c +
                    (row_valid ? h * p.strides.h : 0);
  // columns: [group][stored row][c][column tap][pixel].
  T* columns = static_cast<T*>(p.columns) + int64_t{blockIdx.x} * p.column_taps * p.pitch;
  const int first = blockIdx.y * kColumnsPerBlock;
  const int last = min(first + kColumnsPerBlock, p.pixels);
  if (p.sliding) return fill_sliding(p, source, row_valid, columns, first, last);
  for (int pixel = first + threadIdx.x; pixel < last; pixel += kColumnThreads) {
    int image = pixel;
    const int column = p.by_columns.split(image);
    int w = column * p.column_step + p.column_origin;
    const T* from = source + image * p.strides.n;
    T* to = columns + pixel;
#pragma unroll 4
    for (int tap = 0; tap < p.column_taps; ++tap) {
      const bool valid = row_valid && static_cast<unsigned>(w) < static_cast<unsigned>(p.source_w);
      *to = valid ? from[w * p.strides.w] : T(0.0f);
      w += p.offset_step;
      to += p.pitch;
    }
  }
}

struct FilterParams {
  int64_t group_stride, target_stride, source_stride, r_stride, s_stride;  // strides of w
  int filters, channels;                                                   // per group
  int row_taps, row_tap0, row_tap_step;
  int column_taps, column_tap0, column_tap_step;
};

template <typename T>
__global__ void __launch_bounds__(kMoveThreads)
    pack_filters_kernel(const __grid_constant__ FilterParams p, const T* w, T* packed,
                        int64_t elements) {
  const int64_t step = int64_t{gridDim.x} * kMoveThreads;
  for (int64_t i = int64_t{blockIdx.x} * kMoveThreads + threadIdx.x; i < elements; i += step) {
    int64_t rest = i;
    const int s = p.column_tap0 + static_cast<int>(rest % p.column_taps) * p.column_tap_step;
    rest /= p.column_taps;
    const int c = static_cast<int>(rest % p.channels);
    rest /= p.channels;
    const int r = p.row_tap0 + static_cast<int>(rest % p.row_taps) * p.row_tap_step;
    rest /= p.row_taps;
    const int k = static_cast<int>(rest % p.filters);
    const int64_t group = rest / p.filters;
    packed[i] = w[group * p.group_stride + k * p.target_stride + c * p.source_stride +
                  r * p.r_stride + s * p.s_stride];
  }
}

// A chunk of the target (or of y, for the weight gradient), for the kernels that move it.
struct MoveParams {
  void* tensor;      // at the chunk's first image
  const void* bias;  // may be null
  void* staged;      // [group][row][channel][image][column]; null: results are in place
  Strides strides;
  int groups, channels;  // channels per group
  int rows, columns, images;
  int pitch;                     // elements from one row of staged pixels to the next
  int64_t row_origin, row_step;  // tensor row i of the chunk is at row_origin + i * row_step
  int64_t column_origin, column_step;
  bool zero;  // true: no tap reaches these pixels, and the target is zero
  FastDivmod by_columns;
};

// Grid: x over images * columns, y over rows, z over the channels of all groups.
template <typename T>
__global__ void __launch_bounds__(kMoveThreads)
    move_results_kernel(const __grid_constant__ MoveParams p) {
  using Acc = accumulate_t<T>;
  const int pixels = p.images * p.columns;
  const int pixel = blockIdx.x * kMoveThreads + threadIdx.x;
  if (pixel >= pixels) return;
  int image = pixel;
  const int column = p.by_columns.split(image);
  T* at = static_cast<T*>(p.tensor) + image * p.strides.n +
          (p.column_origin + column * p.column_step) * p.strides.w;
  for (int row = blockIdx.y; row < p.rows; row += gridDim.y) {
    for (int channel = blockIdx.z; channel < p.groups * p.channels; channel += gridDim.z) {
      const int group = channel / p.channels;
      const int64_t line = (int64_t{group} * p.rows + row) * p.channels + channel % p.channels;
      T* to = at + (p.row_origin + row * p.row_step) * p.strides.h + channel * p.strides.c;
      Acc value = 0;
      if (!p.zero) value = static_cast<const Acc*>(p.staged)[line * p.pitch + pixel];
      if (p.bias != nullptr) value += to_accumulate(static_cast<const T*>(p.bias)[channel]);
      *to = round_to<T>(value);
    }
  }
}

// A block has one row of one channel, for all images of the chunk. 16-bit results are not in place
// where there is a bias: it is added before the sum is rounded.
template <typename T>
__global__ void __launch_bounds__(kMoveThreads)
    add_bias_kernel(const __grid_constant__ MoveParams p) {
  const int channels = p.groups * p.channels;
  const int channel = blockIdx.x % channels;
  const int row = blockIdx.x / channels;
  const auto bias = to_accumulate(static_cast<const T*>(p.bias)[channel]);
  T* line = static_cast<T*>(p.tensor) + channel * p.strides.c +
            (p.row_origin + row * p.row_step) * p.strides.h + p.column_origin * p.strides.w;
  const int64_t column_stride = p.column_step * p.strides.w;
  for (int image = 0; image < p.images; ++image) {
#pragma unroll 4
    for (int column = threadIdx.x; column < p.columns; column += kMoveThreads) {
      T* at = line + column * column_stride;
      *at = round_to<T>(to_accumulate(*at) + bias);
    }
    line += p.strides.n;
  }
}

// Fills rows of bias values, `pitch` apart: each row is one channel (line_is_channel), or has all
// channels.
template <typename T>
__global__ void __launch_bounds__(kMoveThreads)
    fill_bias_kernel(T* target, const T* bias, int values, FastDivmod by_columns, int64_t pitch,
                     bool line_is_channel) {
  for (int i = blockIdx.x * kMoveThreads + threadIdx.x; i < values; i += gridDim.x * kMoveThreads) {
    int line = i;
    const int column = by_columns.split(line);
    target[line * pitch + column] = bias[line_is_channel ? line : column];
  }
}

template <typename T>
__global__ void __launch_bounds__(kMoveThreads)
    gather_gradient_kernel(const __grid_constant__ MoveParams p) {
  const int pixels = p.images * p.columns;
  const int pixel = blockIdx.x * kMoveThreads + threadIdx.x;
  if (pixel >= pixels) return;
  int image = pixel;
  const int column = p.by_columns.split(image);
  const T* at = static_cast<const T*>(p.tensor) + image * p.strides.n +
                (p.column_origin + column * p.column_step) * p.strides.w;
  for (int row = blockIdx.y; row < p.rows; row += gridDim.y) {
    for (int channel = blockIdx.z; channel < p.groups * p.channels; channel += gridDim.z) {
      const int group = channel / p.channels;
      const int64_t line = (int64_t{group} * p.rows + row) * p.channels + channel % p.channels;
      static_cast<T*>(p.staged)[line * p.pitch + pixel] =
          at[(p.row_origin + row * p.row_step) * p.strides.h + channel * p.strides.c];
    }
  }
}

// The planes of some images, and their copy side by side: [channel][image, pixel].
struct PlaneParams {
  void* planes;  // planes of the first image
  int64_t n, c;  // strides from image to image, and from plane to plane
  void* lines;
  const void* bias;  // may be null
  int channels, pixels, pitch;
  FastDivmod by_plane;
};

// Calls use(address in a plane, index in the copy, channel) for each of the thread's pixels. The
// address is null in the padding at the end of a row. Neighbouring threads have neighbouring
// pixels. Grid: x over pixels of a row, y over channels.
constexpr int kPlanePixels = 4;  // per thread
template <typename T, typename Use>
__device__ inline void visit_planes(const PlaneParams& p, const Use& use) {
  const int first = blockIdx.x * kPlanePixels * kMoveThreads + threadIdx.x;
  for (int channel = blockIdx.y; channel < p.channels; channel += gridDim.y) {
    T* const plane = static_cast<T*>(p.planes) + channel * p.c;
    const int64_t line = static_cast<int64_t>(channel) * p.pitch;
#pragma unroll
    for (int i = 0; i < kPlanePixels; ++i) {
      const int pixel = first + i * kMoveThreads;
      int image = pixel;
      const int of_plane = p.by_plane.split(image);
      T* const at = pixel < p.pixels ? plane + image * p.n + of_plane : nullptr;
      if (pixel < p.pitch) use(at, line + pixel, channel);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kMoveThreads)
    gather_planes_kernel(const __grid_constant__ PlaneParams p) {
  visit_planes<const T>(p, [&](const T* from, int64_t to, int) {
    static_cast<T*>(p.lines)[to] = from == nullptr ? T(0.0f) : *from;
  });
}

// Staged: type of the results.
template <typename T, typename Staged>
__global__ void __launch_bounds__(kMoveThreads)
    scatter_planes_kernel(const __grid_constant__ PlaneParams p) {
  visit_planes<T>(p, [&](T* to, int64_t from, int channel) {
    if (to == nullptr) return;
    auto sum = to_accumulate(static_cast<const Staged*>(p.lines)[from]);
    if (p.bias != nullptr) sum += to_accumulate(static_cast<const T*>(p.bias)[channel]);
    *to = round_to<T>(sum);
  });
}

// The i-th elements of all products, in their order.
template <typename Acc>
__device__ __forceinline__ Acc add_products(const Acc* products, int count, int64_t elements,
                                            int64_t i) {
  Acc chunk = 0;
#pragma unroll 16
  for (int product = 0; product < count; ++product) chunk += products[product * elements + i];
  return chunk;
}

// products: [product][element]; sum: [element].
template <typename Acc>
__global__ void __launch_bounds__(kMoveThreads)
    add_products_kernel(const Acc* products, int count, Acc* sum, int64_t elements, bool first) {
  const int64_t step = int64_t{gridDim.x} * kMoveThreads;
  for (int64_t i = int64_t{blockIdx.x} * kMoveThreads + threadIdx.x; i < elements; i += step) {
    const Acc chunk = add_products(products, count, elements, i);
    sum[i] = first ? chunk : sum[i] + chunk;
  }
}

// Adds the last products to the sum and writes the result. sum: [group][filter][r][c][s], or null,
// as are products.
template <typename Acc>
__global__ void __launch_bounds__(kMoveThreads)
    write_gradient_kernel(const __grid_constant__ FilterParams p, const Acc* sum,
                          const Acc* products, int count, DType dtype, void* w, int64_t elements) {
  const int64_t step = int64_t{gridDim.x} * kMoveThreads;
  for (int64_t i = int64_t{blockIdx.x} * kMoveThreads + threadIdx.x; i < elements; i += step) {
    Acc value = sum == nullptr ? Acc{0} : sum[i];
    if (count > 0) {
      const Acc chunk = add_products(products, count, elements, i);
      value = sum == nullptr ? chunk : value + chunk;
    }
    int64_t rest = i;
    const int s = static_cast<int>(rest % p.column_taps);
    rest /= p.column_taps;
    const int c = static_cast<int>(rest % p.channels);
    rest /= p.channels;
    const int r = static_cast<int>(rest % p.row_taps);
    rest /= p.row_taps;
    const int k = static_cast<int>(rest % p.filters);
    const int64_t group = rest / p.filters;
    const int64_t to = group * p.group_stride + k * p.target_stride + c * p.source_stride +
                       r * p.r_stride + s * p.s_stride;
    store_as(dtype, w, to, value);
  }
}

}  // namespace convx
