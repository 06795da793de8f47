// A block's tiles, and its ring of stages (boxes_shape.h).
#pragma once

#include "device/mbarrier.cuh"
#include "device/swizzle.cuh"
#include "device/warp_roles.cuh"
#include "engines/cuda_boxes/boxes_params.h"

namespace convx {

// Tiles of neighbouring blocks have the same pixels, for as long as there are filters.
__device__ __forceinline__ int locate_filter(const BoxesParams& p, int index, int filters) {
  return p.by_filter_tiles.split(index) * filters;
}

// What the number of a part stands for; where there are no parts, that of a tile.
struct TilePart {
  int tile;
  int first_chunk, chunks;

  __device__ __forceinline__ TilePart(const BoxesParams& p, int index) : tile(index) {
    first_chunk = p.by_parts.split(tile) * p.part_chunks;
    chunks = min(p.part_chunks, p.chunks - first_chunk);
  }
};

// The first of the 16 pixels of a piece that are this warp's.
__device__ __forceinline__ int first_warp_pixel() { return threadIdx.x / 32 * 16; }

// The first pixel of a tile, in the target.
struct BoxTile {
  int column, row, image;
};
__device__ __forceinline__ BoxTile locate_tile(const BoxesParams& p, int index) {
  index = p.by_filter_tiles.divide(index);
  BoxTile tile;
  tile.column = p.by_column_tiles.split(index) * p.box_columns;
  tile.row = p.by_row_tiles.split(index) * p.box_rows;
  tile.image = index * p.box_images;
  return tile;
}

// Of NCHW images: how many a tile has from its first one,
__device__ __forceinline__ int count_images(const BoxesParams& p, int first) {
  return min(p.box_images, p.images - first);
}
// and bytes from one to the next in a stage, where a channel's plane follows the one before, as a
// filter's does in what is to be stored:
__device__ __forceinline__ int image_pitch(const BoxesParams& p) { return p.plane * kBoxLineBytes; }
// bytes to a lane's two pixels of a piece, or less than none. They are rows lane / 4 and
// lane / 4 + 8 of a warp's products; of pairs, neighbours.
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

// Of NCHW lines: a tile's first one,
template <TensorMath kMath>
__device__ __forceinline__ int locate_lines(const BoxesParams& p, int index) {
  return p.by_filter_tiles.divide(index) * tile_lines(kMath);
}
// how many it has from there,
template <TensorMath kMath>
__device__ __forceinline__ int count_lines(const BoxesParams& p, int first) {
  return min(tile_lines(kMath), p.lines - first);
}
// and which of its plane's a line is.
struct PlaneLine {
  int index, image;

  __device__ __forceinline__ PlaneLine(const BoxesParams& p, int line) : image(line) {
    index = p.by_plane_lines.split(image);
  }
};

// Addresses will do for offsets: stages and filters start at multiples of 1024 bytes.
__device__ __forceinline__ uint32_t swizzle_line(uint32_t address) {
  return swizzle(address, kBoxLineBytes);
}

// Where lanes take pixels from a stage, and others write it, those that have read it say so at the
// first of these barriers, or the next, ... (One lane's word for its warp would do, but racecheck
// does not see that.) kCopyWarps: those that wait.
inline constexpr int kFirstStageBarrier = 2;
static_assert(kFirstStageBarrier + kMaxBoxStages <= 16, "a block has 16 barriers");
template <int kCopyWarps>
__device__ __forceinline__ void give_stage_back(int slot) {
  __syncwarp();
  pass_barrier(kFirstStageBarrier + slot, kBoxMultipliers + 32 * kCopyWarps);
}
template <int kCopyWarps>
__device__ __forceinline__ void wait_for_stage(int slot) {
  __syncwarp();
  wait_at_barrier(kFirstStageBarrier + slot, kBoxMultipliers + 32 * kCopyWarps);
}

// Where a ring begins in a block's shared memory.
__device__ __forceinline__ uint32_t align_ring(const void* memory) {
  return (shared_address(memory) + kBoxAlignment - 1) & ~uint32_t{kBoxAlignment - 1};
}

// Shared-memory addresses. full: a stage has been copied; empty: it has been multiplied.
struct BoxesRing {
  uint32_t full, empty, filters_full;  // barriers, 8 bytes each
  uint32_t tile;                       // [stage]: the index of the tile that it is of
  uint32_t bias;                       // [filter], float32
  uint32_t staging;                    // [2][pixel][128 bytes of filters], see boxes_staging.cuh
  uint32_t resident;                   // [tap][chunk][filter][128 bytes]
  uint32_t
      first;  // stage: [pixel][128 bytes], and, if filters are not resident, [filter][128 bytes]

  __device__ __forceinline__ BoxesRing(const BoxesParams& p, uint32_t memory)
      : full(memory),
        empty(memory + 8 * kMaxBoxStages),
        filters_full(memory + 16 * kMaxBoxStages),
        tile(memory + 16 * kMaxBoxStages + 8),
        bias(memory + kBoxBarrierBytes),
        staging(memory + kBoxBarrierBytes + kBoxBiasBytes),
        resident(memory + p.filters_offset),
        first(memory + p.ring_offset) {}

  // Arrivals at a stage that has been copied, and at one that has been read.
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
