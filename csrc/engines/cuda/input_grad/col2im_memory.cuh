// Shared memory of a block:
//   barriers | filters | stages of dY, [worker][stage][component] | T, [worker][pixel][pitch]
//   | ring of dX rows, [worker][row][unit][vector] | table of units | factors of channels
#pragma once

#include "device/mbarrier.cuh"
#include "device/memory.cuh"
#include "engines/cuda/input_grad/col2im_geometry.h"

namespace convx {

// What the threads of a unit need to know, 16 bytes.
struct UnitPlace {
  uint16_t offset;  // of the first tap's value in T, in words
  uint16_t taps;    // of a kernel row
  int target;       // elements of dX from the strip's first column and the tile's first channel
  int column;       // of dX in the strip
  int channel;      // of the tile, the first one
};

struct Col2imMemory {
  uint32_t full, empty;  // barriers, [worker][stage]
  uint32_t filters, source, results, ring, places, factors;

  __device__ Col2imMemory(const Col2imGeometry& g, int components, const void* unaligned)
      : full((shared_address(unaligned) + 1023) / 1024 * 1024),
        empty(full + 8 * kWorkers * kMaxStages),
        filters(full + 1024),
        source(filters + components * g.component_bytes()),
        results(source + kWorkers * g.stages * components * kStageBytes),
        ring(results + kWorkers * kStripPixels * g.pitch * 4),
        places(ring + kWorkers * g.ring_bytes()),
        factors(places + g.units * 16) {}

  __device__ void init_barriers(const Col2imGeometry& g) const {
#pragma unroll 1
    for (int worker = 0; worker < kWorkers; ++worker) {
#pragma unroll 1
      for (int i = 0; i < g.stages; ++i) {
        const int barrier = 8 * (worker * kMaxStages + i);
        init_barrier(full + barrier, 4);   // a lane of each loader warp
        init_barrier(empty + barrier, 4);  // a lane of each consumer warp
      }
    }
    fence_barrier_init();
  }
};

// The steps of a worker, one segment of a strip after the other.
class StepRange {
 public:
  int image = 0, strip = 0;
  int first = 0, last = 0;  // steps whose rows of dX the worker stores, counted from first_step

  __device__ StepRange(const Col2imGeometry& g, int images, int worker) : g_(g) {
    const int64_t total = int64_t{images} * g.strips * g.steps;
    const int workers = g.tile_blocks * kWorkers;
    next_ = static_cast<int>(total * worker / workers);
    end_ = static_cast<int>(total * (worker + 1) / workers);
  }

  // Moves on to the next segment. Returns false if there is none.
  __device__ bool advance() {
    if (next_ >= end_) return false;
    const int strips = next_ / g_.steps;
    image = strips / g_.strips;
    strip = strips - image * g_.strips;
    first = next_ - strips * g_.steps;
    last = min(first + end_ - next_, g_.steps);
    next_ += last - first;
    first += g_.first_step, last += g_.first_step;
    return true;
  }

  // The strip's first column of dY.
  __device__ int first_pixel() const {
    return g_.first_point + strip * g_.strip_points - g_.halo_points;
  }

 private:
  const Col2imGeometry& g_;
  int next_, end_;
};

// A block's channels of dX.
struct ChannelTile {
  int group, channel, index, range;  // channel: the first one, in the group

  __device__ ChannelTile(const Col2imParams& p, int block) {
    const int tiles = p.groups * p.g.channel_tiles;
    range = block / tiles;
    index = block - range * tiles;
    group = index / p.g.channel_tiles;
    channel = (index - group * p.g.channel_tiles) * p.g.tile_channels;
  }
};

}  // namespace convx
