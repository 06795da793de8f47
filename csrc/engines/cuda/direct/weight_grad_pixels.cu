// Weight gradient of 1x1 layers with few filters per group, where the channels of a pixel are
// adjacent in memory (formula in weight_grad_common.cuh).
//
// Tile: a block computes kFilters x 64 channels of the gradient over its split-K slice of the
// pixels.
//
//     x [pixel][channel]  kLanes lanes read 64 channels of a pixel, 16 bytes each; a warp reads
//                         32 / kLanes pixels at a time, and has kPixelTogether such loads in flight
//     y [pixel][filter]   lane i of a pixel reads filter i, and shuffles show it to the others
//     accumulators        [filter][channel of the lane], in registers
//
// At the end, accumulators of the same channels are added by shuffles and then warp by warp, always
// in the same order. Shared memory: 8 warps x kFilters x 64 partial sums.
//
// Limit: memory. x is read once per kFilters filters.
#include <type_traits>

#include "device/vectors.cuh"
#include "engines/cuda/direct/weight_grad_common.cuh"
#include "engines/cuda/direct/weight_grad_geometry.h"

namespace convx {

constexpr int kPixelGradThreads = 256;

// Where a thread finds the pixels of its slice, one after the other, `step` pixels apart.
// kDense: both tensors have a constant pitch over all images (WeightGradParams::x_pitch).
template <typename T, bool kDense>
class PixelCursor {
 public:
  struct Place {
    const T *x, *y;
    bool exists;  // false: the pixel lies beyond the slice, or in the padding of x
  };

  // x, y: a channel and a filter of the tensors' first pixel.
  __device__ PixelCursor(const WeightGradParams& params, const T* x, const T* y, int64_t pixel,
                         int64_t end, int step)
      : params_(params), x_(x), y_(y), left_(end - pixel), step_(step), at_(params, pixel) {
    if (kDense) x_ += pixel * params.x_pitch, y_ += pixel * params.y_pitch;
  }

  __device__ __forceinline__ Place advance() {
    Place place{x_, y_, left_ > 0};
    left_ -= step_;
    if constexpr (kDense) {
      x_ += step_ * params_.x_pitch, y_ += step_ * params_.y_pitch;
    } else {
      const int h = at_.p * params_.stride_h - params_.pad_top;
      const int w = at_.q * params_.stride_w - params_.pad_left;
      place.exists = place.exists && static_cast<unsigned>(h) < static_cast<unsigned>(params_.H) &&
                     static_cast<unsigned>(w) < static_cast<unsigned>(params_.W);
      place.x += at_.n * params_.x_strides.n + h * params_.x_strides.h + w * params_.x_strides.w;
      place.y += locate_y(params_, at_);
      at_.advance(params_, step_);
    }
    return place;
  }

 private:
  const WeightGradParams& params_;
  const T *x_, *y_;
  int64_t left_;  // pixels until the end of the slice
  const int step_;
  PixelWalk at_;
};

// kSimple: pixels are dense and x is aligned to 16 bytes.
template <typename T, int kFilters, bool kSimple>
__global__ void __launch_bounds__(kPixelGradThreads, count_pixel_blocks(kFilters, sizeof(T)))
    weight_grad_pixels_kernel(const __grid_constant__ WeightGradParams p) {
  constexpr int kValues = 16 / static_cast<int>(sizeof(T));
  constexpr int kLanes = kPixelColumns / kValues;
  constexpr int kWarps = kPixelGradThreads / 32;
  constexpr int kStep = kPixelGradThreads / kLanes;  // pixels that the block reads at a time
  static_assert(kFilters <= kLanes);
  extern __shared__ __align__(16) char memory[];
  auto* const warp_sums = reinterpret_cast<float (*)[kFilters][kPixelColumns]>(memory);
  const WeightGradTile tile = locate_tile(p, kFilters, kPixelColumns);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kLanes;
  const int first_lane = thread % 32 - lane;  // of the pixel, in the warp
  const int channel = tile.column + lane * kValues;
  const bool has_channels = channel < p.channels;  // the plan makes it all of them or none
  const bool has_filter = lane < kFilters && tile.filter + lane < p.filters;
  const T* const x = static_cast<const T*>(p.x) + int64_t{tile.group} * p.channels + channel;
  const T* const y = static_cast<const T*>(p.y) +
                     (int64_t{tile.group} * p.filters + tile.filter + lane) * p.y_strides.c;

  const int64_t begin = tile.split * p.pixels_per_split;
  const int64_t end = min(begin + p.pixels_per_split, p.pixels);
  float sums[kFilters][kValues] = {};
  PixelCursor<T, kSimple> pixels(p, x, y, begin + thread / kLanes, end, kStep);
#pragma unroll 1
  for (int64_t first = begin; first < end; first += kPixelTogether * kStep) {
    uint32_t words[kPixelTogether][4];
    float gradients[kPixelTogether];
#pragma unroll
    for (int i = 0; i < kPixelTogether; ++i) {
      const auto place = pixels.advance();
      const bool reads_x = place.exists && has_channels;
      if (kSimple || p.x_has_units) {
        load_words<4>(words[i], place.x, reads_x);
      } else {
        load_words_of_elements<4>(words[i], place.x, reads_x);
      }
      // Zero in the padding as well, where an infinite gradient must not meet the zeros of x.
      gradients[i] = place.exists && has_filter ? to_accumulate(*place.y) : 0.f;
    }
#pragma unroll
    for (int i = 0; i < kPixelTogether; ++i) {
      float values[kValues];
#pragma unroll
      for (int j = 0; j < 4; ++j) widen(values, j * (kValues / 4), words[i][j], T{});
#pragma unroll
      for (int f = 0; f < kFilters; ++f) {
        const float gradient = __shfl_sync(0xffffffffu, gradients[i], first_lane + f);
#pragma unroll
        for (int v = 0; v < kValues; ++v) sums[f][v] = fmaf(gradient, values[v], sums[f][v]);
      }
    }
  }

#pragma unroll
  for (int i = 0; i < kFilters * kValues; ++i) {
    const int f = i / kValues, v = i % kValues;
    float value = sums[f][v];
#pragma unroll
    for (int distance = 16; distance >= kLanes; distance /= 2) {
      value += __shfl_xor_sync(0xffffffffu, value, distance);
    }
    if (first_lane == 0) warp_sums[thread / 32][f][lane * kValues + v] = value;
  }
  __syncthreads();
  constexpr int kSums = kFilters * kPixelColumns;
#pragma unroll 1
  for (int i = thread; i < kSums; i += kPixelGradThreads) {
    const int f = i / kPixelColumns, column = i % kPixelColumns;
    float total = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) total += warp_sums[warp][f][column];
    if (p.direct) {
      write_weight<T>(p, tile.group, tile.filter + f, tile.column + column, total);
    } else {
      static_cast<float*>(p.partial)[(int64_t{tile.split} * p.tiles + tile.index) * kSums + i] =
          total;
    }
  }
}

template <typename T, int kFilters>
void launch_pixels(const LaunchSite& site, const WeightGradParams& params, Grid blocks) {
  constexpr size_t kBytes = kPixelGradThreads / 32 * kFilters * kPixelColumns * sizeof(float);
  if (params.x_pitch > 0 && params.x_has_units) {
    launch_kernel<weight_grad_pixels_kernel<T, kFilters, true>>(site, blocks, kPixelGradThreads,
                                                                kBytes, params);
  } else {
    launch_kernel<weight_grad_pixels_kernel<T, kFilters, false>>(site, blocks, kPixelGradThreads,
                                                                 kBytes, params);
  }
}

void launch_weight_grad_pixels(const LaunchSite& site, const WeightGradFit& fit,
                               const Buffers& buffers) {
  visit_device_type(site.problem->dtype, [&]<typename T>(T) {
    if constexpr (!std::is_same_v<T, double>) {
      launch_weight_grad<T>(
          site, fit, buffers,
          [&]<WeightGradConfig kConfig>(const WeightGradParams& params, Grid blocks) {
            if constexpr (kConfig.kernel == WeightGradKernel::kPixels) {
              launch_pixels<T, kConfig.filters>(site, params, blocks);
            } else {
              throw_launch_error(site, "choosing a kernel", "no such tile");
            }
          });
    }
  });
}

}  // namespace convx
