// Packs the filters of the pixel kernels on the host, by their own source.
// Include behind the emulator.
#pragma once

#include "engines/cuda_pixel_tiles/pack_pixel_filters.cuh"

namespace convx {

template <TensorMath kMath, FilterOrder kOrder>
void emulate_pack(const PixelShape& shape, const PixelParams& p, int64_t groups) {
  using Element = typename TensorTypes<kMath>::Element;
  constexpr int kRows = 8, kThreads = 128;
  std::vector<float> staged(size_t(kRows) * p.chunk_channels * p.tap_rows * p.tap_columns);
  std::vector<emulator::Fiber> fibers(kThreads);
  blockDim.x = kThreads;
  for (blockIdx.y = 0; blockIdx.y < p.chunks; ++blockIdx.y) {
    for (blockIdx.x = 0; blockIdx.x < shape.filters * shape.filter_tiles * groups / kRows;
         ++blockIdx.x) {
      emulator::run_block(fibers,
                          [&] { pack_filters<kMath, Element, kOrder>(p, kRows, staged.data()); });
    }
  }
}

}  // namespace convx
