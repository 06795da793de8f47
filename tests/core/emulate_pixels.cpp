// Where the pixel kernels look for things, computed by their own source on the
// host.
#include "emulated_cuda/emulator.h"
//
#include "emulate_pixels.h"
#include "engines/cuda/pixels/pixel_place.cuh"
#include "engines/cuda/pixels/pixel_tiles.h"

namespace convx {
namespace {

template <TensorMath kMath>
std::vector<int> make_distances(const PixelParams& p) {
  constexpr int kUnwritten = -2;
  const int depth = p.paired ? kPairDepth : gathered_depth(kMath);
  std::vector<int> distances(size_t{4} * depth * p.steps, kUnwritten);
  blockDim.x = kPixelThreads;
  for (threadIdx.x = 0; threadIdx.x < kPixelThreads; ++threadIdx.x) {
    if (p.paired) {
      fill_pair_distances<kMath>(p, distances.data());
    } else {
      fill_distances<kMath>(p, distances.data());
    }
  }
  return distances;
}

std::vector<int> make_distances(const PixelFit& fit) {
  if (!fit.shape.folded) return {};
  switch (fit.shape.math) {
    case TensorMath::kTf32:
      return make_distances<TensorMath::kTf32>(fit.params);
    case TensorMath::kIeee:
      return make_distances<TensorMath::kIeee>(fit.params);
    case TensorMath::kBFloat16:
      return make_distances<TensorMath::kBFloat16>(fit.params);
    case TensorMath::kFloat16:
      return make_distances<TensorMath::kFloat16>(fit.params);
    case TensorMath::kHalfTf32:
      return make_distances<TensorMath::kHalfTf32>(fit.params);
    case TensorMath::kHalfIeee:
      return make_distances<TensorMath::kHalfIeee>(fit.params);
  }
  return {};
}

}  // namespace

PixelPlaces emulate_pixel_places(const PixelFit& fit) {
  const PixelParams& p = fit.params;
  PixelPlaces places;
  for (int index = 0; index < p.tiles; ++index) {
    const PixelTile tile = locate_tile(p, index);
    places.tiles.insert(places.tiles.end(),
                        {tile.first, tile.end, tile.image, tile.group, tile.filter,
                         tile.filter_tile, tile.chunk, tile.chunk_end, tile.split});
    if (tile.filter_tile != 0 || tile.split != 0) continue;
    const StagedTile staged(p, tile);
    for (int warpgroup = 0; warpgroup < 2; ++warpgroup) {
      const int window = tile.first + warpgroup * p.window_step;
      for (int i = 0; i < fit.shape.window_pixels(); ++i) {
        places.bases.push_back(staged.base(window + i));
      }
    }
    for (int i = 0; i < p.entries; ++i) places.sources.push_back(staged.source(i * p.vector));
  }
  places.distances = make_distances(fit);
  return places;
}

}  // namespace convx
