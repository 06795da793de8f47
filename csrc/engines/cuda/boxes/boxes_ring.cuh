// The order of tiles, their indices, and the layout of a block's shared memory (boxes_shape.h).
#pragma once

#include "device/mbarrier.cuh"
#include "device/warp_roles.cuh"
#include "device/wgmma_descriptors.cuh"
#include "engines/cuda/boxes/boxes_params.h"

namespace convx {

// First filter of a tile. Filters vary fastest over tiles, so neighbouring blocks read the same
// pixels.
__device__ __forceinline__ int locate_filter(const BoxesParams& p, int index, int filters) {
  return p.by_filter_tiles.split(index) * filters;
}

// The phase of a pixel tile.
__device__ __forceinline__ int find_phase(const BoxesParams& p, int pixel_tile) {
  int phase = 0;
#pragma unroll
  for (int i = 1; i < kMaxBoxPhases; ++i) phase += pixel_tile >= p.phases[i].first_tile;
  return phase;
}

// A work item: one split-K slice of a tile, or the whole tile if the reduction is not split. A step
// of the reduction is one chunk of one tap; chunks vary fastest.
struct WorkItem {
  int tile;
  int phase;
  int first_step = 0, steps;
  int slice;  // number of the slice among those of all tiles; negative for a whole tile

  __device__ __forceinline__ WorkItem(const BoxesParams& p, int index)
      : tile(index), slice(index - p.whole_tiles) {
    if (slice >= 0) {
      tile = slice;
      first_step = p.by_parts.split(tile) * p.part_steps;
      tile += p.whole_tiles;
    }
    phase = find_phase(p, p.by_filter_tiles.divide(tile));
    steps = p.phases[phase].taps * p.chunks - first_step;
    if (slice >= 0) steps = min(steps, p.part_steps);
  }
};

// The order in which a block takes tiles. Block b starts with tile b. Then blocks either advance by
// the grid size, or take the next tile that no block has taken, by an atomic counter. With a fixed
// stride blocks drift apart, and memory is slower the further apart concurrent accesses are. The
// order does not change how a tile is computed. All lanes of the producer warp call this class
// together.
class TileOrder {
 public:
  __device__ __forceinline__ explicit TileOrder(const BoxesParams& p)
      : p_(p), index_(static_cast<int>(blockIdx.x)) {
    int others = index_;
    kind_ = p.by_tile_kinds.split(others);
  }

  __device__ __forceinline__ int index() const { return index_; }

  // Starts the atomic for the next tile before the current tile is copied, to hide its latency.
  __device__ __forceinline__ void ask_for_next() {
    if (p_.taken != nullptr && threadIdx.x % 32 == 0) taken_ = atomicAdd(p_.taken + kind_, 1);
  }
  __device__ __forceinline__ void take_next() {
    const int step = static_cast<int>(gridDim.x);
    if (p_.taken == nullptr) {
      index_ += step;
    } else {
      const int kinds = static_cast<int>(p_.by_tile_kinds.divisor);
      index_ = step + kind_ + kinds * __shfl_sync(0xffffffff, taken_, 0);
    }
  }

 private:
  const BoxesParams& p_;
  int index_;
  int kind_;       // the tile kind of this block, see BoxesShape::tile_kinds
  int taken_ = 0;  // counter value; excludes the tiles that blocks start with
};

// The chunk of a step, and the row and column of its tap among those of the phase. kOneTap: the
// phase has one tap, which saves registers.
template <bool kOneTap>
struct BoxStep {
  int row = 0, column = 0, chunk;

  // The phase must have taps.
  __device__ __forceinline__ BoxStep(const BoxesParams& p, const BoxPhaseParams& phase, int step)
      : chunk(step) {
    if constexpr (kOneTap) return;
    chunk = p.by_chunks.split(step);
    row = step / phase.tap_columns;
    column = step - row * phase.tap_columns;
  }

  __device__ __forceinline__ void advance(const BoxesParams& p, const BoxPhaseParams& phase) {
    if (++chunk < p.chunks || kOneTap) return;
    chunk = 0;
    if (++column < phase.tap_columns) return;
    column = 0;
    ++row;
  }
};

// Each consumer warp has 16 of a piece's 128 pixels: index of the first one. (With own pieces, see
// PixelStaging.)
__device__ __forceinline__ int first_warp_pixel() { return threadIdx.x / 32 * 16; }

// A tile's phase, and the first of its target pixels.
struct BoxTile {
  int phase;
  int column, row, image;
};
// box: which of p.tile_boxes. The last tile may have fewer; the images of a missing box are past
// the last one.
__device__ __forceinline__ BoxTile locate_tile(const BoxesParams& p, int index, int box = 0) {
  index = p.by_filter_tiles.divide(index);
  BoxTile tile;
  tile.phase = find_phase(p, index);
  const BoxPhaseParams& phase = p.phases[tile.phase];
  index = (index - phase.first_tile) * p.tile_boxes + box;
  tile.column = phase.by_column_tiles.split(index) * p.box_columns;
  tile.row = phase.by_row_tiles.split(index) * p.box_rows;
  tile.image = index * p.box_images;
  return tile;
}

// Number of images of a tile of whole planes (BoxForm::kImages, kPairs).
__device__ __forceinline__ int count_images(const BoxesParams& p, int first) {
  return min(p.box_images, p.images - first);
}
// Bytes from one image to the next in a stage, [image][channel][plane], and in an epilogue buffer,
// [image][filter][plane].
__device__ __forceinline__ int image_pitch(const BoxesParams& p) { return p.plane * kBoxLineBytes; }
// Byte offsets of a lane's two pixels of each piece, or -1 where a row of the tile has no pixel.
// The two pixels are rows lane / 4 and lane / 4 + 8 of a warp's MMA tile. If kPaired, the pixels
// are permuted so that they are neighbours in memory and one 32-bit word holds both.
template <TensorMath kMath, int kPieces, bool kPaired>
struct ImagePixels {
  __device__ __forceinline__ explicit ImagePixels(const BoxesParams& p) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int own = kPaired ? lane / 4 * 2 + i : lane / 4 + 8 * i;
        int image = piece * kBoxPixels + first_warp_pixel() + own;
        const int pixel = p.by_box_columns.split(image);
        place[piece][i] =
            image < p.box_images ? image * image_pitch(p) + pixel * operand_bytes(kMath) : -1;
      }
    }
  }

  int place[kPieces][2];
};

// First line of a tile (BoxForm::kLines).
template <TensorMath kMath>
__device__ __forceinline__ int locate_lines(const BoxesParams& p, int index) {
  return p.by_filter_tiles.divide(index) * tile_lines(kMath);
}
// Number of lines of a tile.
template <TensorMath kMath>
__device__ __forceinline__ int count_lines(const BoxesParams& p, int first) {
  return min(tile_lines(kMath), p.lines - first);
}
// The image of a line, and the line's index in its plane.
struct PlaneLine {
  int index, image;

  __device__ __forceinline__ PlaneLine(const BoxesParams& p, int line) : image(line) {
    index = p.by_plane_lines.split(image);
  }
};

// Swizzles an address instead of an offset, which is the same: stages and filters start at
// multiples of 1024 bytes.
__device__ __forceinline__ uint32_t swizzle_line(uint32_t address) {
  return swizzle(address, kBoxLineBytes);
}

// For whole planes and spans (Source::kNamedBarriers), consumers release a stage at a named
// barrier, one per stage. One arrival per warp at an mbarrier would be enough, but racecheck does
// not understand it. kCopyWarps: producer warps that wait at the barrier.
inline constexpr int kFirstStageBarrier = 2;
// Named barriers of channels_last tiles, where stages have none: warpgroup 0 arrives when
// warpgroup 1 may start a tile (kBoxLead), and with own pieces each warpgroup has its own barrier
// for the epilogue.
inline constexpr int kLeadBarrier = 2;
inline constexpr int kFirstPieceBarrier = 3;
static_assert(kFirstStageBarrier + kMaxBoxStages <= 16, "a block has 16 barriers");
template <int kCopyWarps>
__device__ __forceinline__ void release_stage(int slot) {
  __syncwarp();
  pass_barrier(kFirstStageBarrier + slot, kBoxMultipliers + 32 * kCopyWarps);
}
template <int kCopyWarps>
__device__ __forceinline__ void wait_for_stage(int slot) {
  __syncwarp();
  wait_at_barrier(kFirstStageBarrier + slot, kBoxMultipliers + 32 * kCopyWarps);
}

// Start of the ring in a block's dynamic shared memory, which is aligned to 16 bytes only.
__device__ __forceinline__ uint32_t align_ring(const void* memory) {
  return (shared_address(memory) + kBoxAlignment - 1) & ~uint32_t{kBoxAlignment - 1};
}

// Shared-memory addresses of a block's buffers. full: a stage's copies have completed; empty: the
// consumers have released it.
struct BoxesRing {
  uint32_t full, empty, filters_full;  // mbarriers, 8 bytes each
  uint32_t tile;                       // [stage]: index of the stage's tile
  uint32_t bias;                       // [filter], float32; with own pieces [warpgroup][filter]
  uint32_t staging;                    // [2][pixel][128 bytes of filters], see boxes_staging.cuh
  uint32_t resident;  // [tap][chunk] as in a stage, the taps of all phases one after the other
  // Stages: [pixel][128 bytes] and, unless filters are resident, [filter][128 bytes] or, with
  // BoxFilters::kColumns, [filter / 64][channel][128 bytes of filters].
  uint32_t first;

  __device__ __forceinline__ BoxesRing(const BoxesParams& p, uint32_t memory)
      : full(memory),
        empty(memory + 8 * kMaxBoxStages),
        filters_full(memory + 16 * kMaxBoxStages),
        tile(memory + 16 * kMaxBoxStages + 8),
        bias(memory + kBoxBarrierBytes),
        staging(memory + kBoxBarrierBytes + kBoxBiasBytes),
        resident(memory + p.filters_offset),
        first(memory + p.ring_offset) {}

  // copies: arrivals that complete a full barrier; reads: arrivals that complete an empty barrier.
  __device__ __forceinline__ void init(const BoxesParams& p, int copies, int reads) const {
    init_barrier(filters_full, 1);
    for (int i = 0; i < p.stages; ++i) {
      init_barrier(full + 8 * i, copies);
      init_barrier(empty + 8 * i, reads);
    }
    fence_barrier_init();
  }
};

}  // namespace convx
