// Streaming blocks (Pace::kStream, Pace::kCarry), which need no lines in the workspace. All tiles
// have the same filters and one chunk, and there is no split-K.
//
// A block takes neighbouring tiles, so it moves along its own section of the line. Two warps
// transpose the source rows into a ring of positions in shared memory, kStretchBytes of a row at a
// time, each position once. Every tap of every tile reads a position there before it is
// overwritten.
//
//   source rows    bulk copies   raw [channel][pixel]   two warps    ring [position][32 bytes]
//   16 planes     ------------>  raw_stretches deep    ---------->   |<-- window, tap 0 -->|
//                                                      transpose       |<-- window, tap 1 -->|
//
// Warps: the two transposing warps (LineTransposer) alternate stretches, and each prefetches its
// own raw stretches. The two MMA warpgroups read the ring (LineReader, multiply_stream), and two
// warps store (store_stream).
//
// Shared memory:
//   raw     [warp][raw_stretches][16 channels][kRawPitchBytes]   9 KiB per raw stretch
//   ring    [ring_positions + kColumns][32 bytes], swizzled      position modulo ring_positions
//
// The first kColumns positions are repeated behind the end of the ring, so that no window wraps
// around.
#pragma once

#include "device/mbarrier.cuh"
#include "device/warp_roles.cuh"
#include "device/wgmma_descriptors.cuh"
#include "engines/cuda/lines/stage_accumulators.cuh"
#include "engines/cuda/lines/staging.cuh"
#include "engines/cuda/lines/store_carried.cuh"
#include "engines/cuda/lines/store_staged.cuh"
#include "engines/cuda/lines/window_multiply.cuh"
#include "engines/cuda/lines/window_place.cuh"
#include "kernels/half_scales.cuh"
#include "kernels/tensor_types.cuh"

namespace convx {

// Where on the line a block starts: at the stretch that contains the first position of its first
// window.
struct StreamStart {
  LinePoint point;
  int origin;  // the position of the stretch's start

  __device__ __forceinline__ StreamStart(const WindowParams& p, int first_tile) {
    origin = first_tile * p.tile_step;
    point = locate_position(p, origin);
    const int before = point.column & (p.stretch - 1);
    origin -= before;
    point.column -= before;
  }
};

// Goes from stretch to stretch. A stretch ends at the latest with its row of the line.
struct StretchCursor {
  int column;       // where the stretch starts in its row
  int begin = 0;    // the same, as positions from the origin
  RingCursor ring;  // the stretch's barriers

  __device__ __forceinline__ explicit StretchCursor(int first_column) : column(first_column) {}

  __device__ __forceinline__ int length(const WindowParams& p) const {
    return min(p.stretch, p.pitch - column);
  }
  __device__ __forceinline__ void advance(const WindowParams& p) {
    const int here = length(p);
    begin += here;
    column += here;
    if (column == p.pitch) column = 0;
    ring.advance(p.source_stages);
  }
};

// How an MMA warpgroup reads the ring; the same interface as StageReader (window_multiply.cuh).
class LineReader {
 public:
  static constexpr bool kAlternates = true;

  __device__ __forceinline__ LineReader(const WindowParams& p, const WindowRings& rings,
                                        int first_tile)
      : LineReader(p, rings, StreamStart(p, first_tile), first_tile * p.tile_step) {}

  __device__ __forceinline__ uint32_t enter(const TilePlace& tile, uint32_t offset) {
    const int end = tile.first - origin_ + p_.reach;
    while (ready_.begin < end) {
      wait_barrier(rings_.source_full + 8 * ready_.ring.slot, ready_.ring.parity);
      ready_.advance(p_);
    }
    return wrap(place_ * kPieces + offset);
  }
  __device__ __forceinline__ uint32_t find_tap(uint32_t start, int tap) const {
    return lower_descriptor(rings_.source) + wrap(start + tap);
  }
  __device__ __forceinline__ void leave() {
    done_ += p_.tile_step;
    place_ += p_.tile_step;
    if (place_ >= p_.ring_positions) place_ -= p_.ring_positions;
  }
  // Releases the stretches that end before the first position that later MMAs read.
  __device__ __forceinline__ void release(bool leader) {
    while (freed_.begin + freed_.length(p_) <= done_) {
      if (leader) arrive(rings_.source_empty + 8 * freed_.ring.slot);
      freed_.advance(p_);
    }
  }

 private:
  static constexpr uint32_t kPieces = 2;  // 16-byte units of a position

  __device__ __forceinline__ LineReader(const WindowParams& p, const WindowRings& rings,
                                        const StreamStart& start, int first)
      : p_(p),
        rings_(rings),
        origin_(start.origin),
        ready_(start.point.column),
        freed_(start.point.column),
        place_(first - start.origin),
        done_(first - start.origin) {}

  __device__ __forceinline__ uint32_t wrap(uint32_t piece) const {
    const uint32_t pieces = p_.ring_positions * kPieces;
    return piece >= pieces ? piece - pieces : piece;
  }

  const WindowParams& p_;
  const WindowRings& rings_;
  const int origin_;
  StretchCursor ready_, freed_;
  int place_;  // where the next tile starts in the ring
  // Positions from the origin that no later MMA reads: those before the current tile or, after
  // leave(), before the next one.
  int done_;
};

// Transposes the source for all of a block's tiles. Two warps alternate stretches; each has
// raw_stretches bulk copies in flight ahead of the stretch that it transposes.
template <TensorMath kMath, int kColumns>
class LineTransposer {
  using Source = SourceBits<kMath>;
  using Word = OperandWord<kMath>;
  static constexpr int kBytes = kStreamLaneBytes;
  static constexpr int kChannels = kBytes / operand_bytes(kMath);
  static constexpr int kStretch = kStretchBytes / static_cast<int>(sizeof(Source));
  static constexpr int kUnit = 16 / static_cast<int>(sizeof(Source));  // source pixels in 16 bytes
  static constexpr int kRawPitch = kRawPitchBytes / static_cast<int>(sizeof(Source));
  static_assert(count_planes(kMath) == 1 && Word::kChannels == 2);

 public:
  // warp: 0 or 1. The constructor does all the work.
  __device__ __forceinline__ LineTransposer(const WindowParams& p, const WindowRings& rings,
                                            char* memory, int warp)
      : p_(p),
        rings_(rings),
        raw_(reinterpret_cast<Source*>(memory + p.raw_offset) +
             warp * p.raw_stretches * kChannels * kRawPitch),
        raw_full_(rings.raw_full + 8 * warp * p.raw_stretches),
        lane_(threadIdx.x & 31) {
    if constexpr (is_half(kMath)) scale_ = p.scales->source;
    const TileRange tiles = find_tiles<true>(p);
    const StreamStart start(p, tiles.first);
    const int end = (tiles.end - 1) * p.tile_step + p.reach - start.origin;
    StreamCursor transposed(start), copied(start);
    if (warp == 1) transposed.advance(p), copied.advance(p);
    const auto copy_next = [&](int slot) {
      if (copied.stretch.begin >= end) return;
      copy(find_pixels(copied), slot);
      copied.advance(p), copied.advance(p);
    };
    for (int slot = 0; slot < p.raw_stretches; ++slot) copy_next(slot);
    RingCursor raw;
    while (transposed.stretch.begin < end) {
      const RingCursor& ring = transposed.stretch.ring;
      wait_barrier(raw_full_ + 8 * raw.slot, raw.parity);
      wait_barrier(rings.source_empty + 8 * ring.slot, ring.parity ^ 1);
      transpose(find_pixels(transposed), raw.slot, transposed.place);
      fence_async_proxy();
      arrive(rings.source_full + 8 * ring.slot);
      transposed.advance(p), transposed.advance(p);
      __syncwarp();  // all lanes have read the slot that the next copy overwrites
      copy_next(raw.slot);
      raw.advance(p.raw_stretches);
    }
  }

 private:
  // A stretch's place on the line and in the ring.
  struct StreamCursor {
    StretchCursor stretch;
    int image, row;  // image and row of the line
    int place = 0;   // first position in the ring

    __device__ __forceinline__ explicit StreamCursor(const StreamStart& start)
        : stretch(start.point.column), image(start.point.image), row(start.point.row) {}

    __device__ __forceinline__ void advance(const WindowParams& p) {
      place += stretch.length(p);
      if (place >= p.ring_positions) place -= p.ring_positions;
      stretch.advance(p);
      if (stretch.column > 0 || ++row < p.rows) return;
      row = 0;
      ++image;
    }
  };

  // The source pixels of a stretch.
  struct Pixels {
    int image, row;
    int first;       // source column of the stretch's first position
    int begin, end;  // source columns that are copied, in whole 16-byte units
    int length;      // positions of the stretch
  };

  __device__ __forceinline__ Pixels find_pixels(const StreamCursor& at) const {
    Pixels pixels{at.image, at.row + p_.row_base, at.stretch.column + p_.column_base, 0,
                  0,        at.stretch.length(p_)};
    const bool inside = at.image < p_.images &&
                        static_cast<unsigned>(pixels.row) < static_cast<unsigned>(p_.source_height);
    pixels.begin = max(pixels.first, 0) & -kUnit;
    pixels.end = (min(pixels.first + pixels.length, p_.source_width) + kUnit - 1) & -kUnit;
    if (!inside || pixels.end < pixels.begin) pixels.end = pixels.begin;
    return pixels;
  }

  __device__ __forceinline__ void copy(const Pixels& pixels, int slot) const {
    const uint32_t full = raw_full_ + 8 * slot;
    const Source* from = static_cast<const Source*>(p_.source) + pixels.image * p_.source_n +
                         pixels.row * p_.source_h + pixels.begin;
    Source* const to = raw_ + slot * kChannels * kRawPitch;
    const int count = pixels.end - pixels.begin;
    if (p_.aligned_rows) {
      if (elect_lane()) {
        const uint32_t bytes = count * sizeof(Source);
        arrive_expecting(full, bytes * p_.channels);
        uint32_t address = shared_address(to);
#pragma unroll 1
        for (int c = 0; c < p_.channels && count > 0; ++c) {
          bulk_copy(address, from, bytes, full);
          from += p_.source_c, address += kRawPitchBytes;
        }
      }
    } else {
      for (int c = 0; c < p_.channels; ++c) {
        for (int i = lane_; i < count; i += 32) to[c * kRawPitch + i] = from[c * p_.source_c + i];
      }
      __syncwarp();
      if (elect_lane()) arrive(full);
    }
  }

  __device__ __forceinline__ void transpose(const Pixels& pixels, int slot, int place) const {
    const Source* const raw =
        raw_ + slot * kChannels * kRawPitch + pixels.first - pixels.begin + lane_;
#pragma unroll 1
    for (int i = 0; i < kStretch; i += 32) {
      const int column = pixels.first + i + lane_;
      const bool in_stretch = i + lane_ < pixels.length;
      const bool some = in_stretch && column >= pixels.begin && column < pixels.end &&
                        static_cast<unsigned>(column) < static_cast<unsigned>(p_.source_width);
      Source values[kChannels / 2][2];
#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        values[c / 2][c % 2] = some && c < p_.channels ? raw[c * kRawPitch + i] : Source{};
      }
      if constexpr (is_half(kMath)) {
#pragma unroll
        for (int c = 0; c < kChannels; ++c) values[c / 2][c % 2] *= scale_;
        check_fitness(p_.scales, reinterpret_cast<float (&)[kChannels]>(values), 0xffffffff);
      }
      uint32_t words[2][4];
#pragma unroll
      for (int c = 0; c < kChannels / 2; ++c) words[c / 4][c % 4] = Word(values[c]).part[0];
      int position = place + i + lane_;
      if (position >= p_.ring_positions) position -= p_.ring_positions;
      if (!in_stretch) continue;
      write(position, words);
      if (position < kColumns) write(position + p_.ring_positions, words);
    }
  }

  __device__ __forceinline__ void write(int position, const uint32_t (&words)[2][4]) const {
    const uint32_t offset = position * kBytes;
    store_16_bytes(rings_.source + swizzle(offset, kBytes), words[0]);
    store_16_bytes(rings_.source + swizzle(offset + 16, kBytes), words[1]);
  }

  const WindowParams& p_;
  const WindowRings& rings_;
  Source* const raw_;  // this warp's raw stretches
  const uint32_t raw_full_;
  const int lane_;
  float scale_ = 1;  // source scale, for scaled fp16
};

template <TensorMath kMath, int kColumns, Pace kPace>
__device__ __forceinline__ void multiply_stream(const WindowParams& p, const WindowRings& rings,
                                                const int* taps, char* memory) {
  using Multiplier = WindowMultiplier<kMath, kColumns, LineReader>;
  using Element = typename TensorTypes<kMath>::Element;
  using Stager = AccumulatorStager<kMath, kColumns, kPace, Element, Element>;
  static_assert(kPace != Pace::kCarry || kParts<Element, kColumns> == 1);
  const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
  const TileRange tiles = find_tiles<true>(p);
  Multiplier multiplier(p, rings, taps, warpgroup, tiles);
  const StoreTarget<Element> target = find_whole_target<Element>(p);
  const TileShare first(p, locate_tile<true>(p, tiles.first), warpgroup);
  Stager stager(p, target, 0, first.filter, static_cast<const Element*>(p.bias),
                find_staging<Element, kColumns, kPace>(p, memory, warpgroup));
  StagingWriter buffer(rings, warpgroup);
  int bytes_before = 0;  // bytes per filter of the previous tile's first run, for kCarry
  for (int index = tiles.first; index < tiles.end; ++index) {
    const TilePlace tile = locate_tile<true>(p, index);
    const bool more = index + 1 < tiles.end;
    WgmmaSums<kColumns> sums;
    typename Multiplier::Chains chains;
    // Done before the warpgroup waits until it may issue MMAs, so that it overlaps with the other
    // one's MMAs.
    stager.start_window(TileShare(p, tile, warpgroup).window);
    multiplier.multiply(tile, chains, sums, more);
    multiplier.finish(chains, sums);
    stager.finish_early(sums.value);
    stager.visit_parts([&]<int kPart>() {
      if constexpr (kPace == Pace::kCarry) {
        const typename Stager::Rest rest = stager.load_rest(bytes_before);
        buffer.wait();
        stager.store_rest(rest);
        bytes_before = stager.run().bytes();
      } else {
        buffer.wait();
      }
      stager.template stage<kPart>(sums.value);
      buffer.hand_over();
    });
  }
}

template <TensorMath kMath, int kColumns, Pace kPace>
__device__ __forceinline__ void store_stream(const WindowParams& p, const WindowRings& rings,
                                             char* memory, int warpgroup) {
  using Element = typename TensorTypes<kMath>::Element;
  constexpr int kCount = kParts<Element, kColumns>;
  const StoreTarget<Element> target = find_whole_target<Element>(p);
  Element* const staging = find_staging<Element, kColumns, kPace>(p, memory, warpgroup);
  StagingReader buffer(rings, warpgroup);
  const auto wait = [&] {
    buffer.wait();
    return false;
  };
  const TileRange tiles = find_tiles<true>(p);
  // Calls store(tile, part, more) for each part of each tile; more: the block has further tiles.
  const auto store_parts = [&](const auto& store) {
    for (int index = tiles.first; index < tiles.end; ++index) {
      const TilePlace tile = locate_tile<true>(p, index);
#pragma unroll 1
      for (int part = 0; part < kCount; ++part) {
        store(tile, part, index + 1 < tiles.end);
        __syncwarp();
        buffer.release();
      }
    }
  };
  if constexpr (kPace == Pace::kCarry) {
    CarriedStorer<kColumns, Element> storer(p, target, warpgroup * kWindowFilters, staging);
    store_parts(
        [&](const TilePlace& tile, int, bool more) { storer.store(tile.first, more, wait); });
  } else {
    store_parts([&](const TilePlace& tile, int part, bool) {
      const TileShare share(p, tile, warpgroup);
      const StagedStorer<kMath, kColumns, kPace, Element, Element> storer(
          p, target, tile, share.window, share.filter, nullptr, staging, nullptr);
      storer.store(part, wait);
    });
  }
  if (elect_lane()) wait_bulk_stores();
}

}  // namespace convx
