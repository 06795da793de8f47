// The main loop of the two consumer warpgroups. Each has 64 pixels of every piece of a tile, or,
// with own pieces (boxes_shape.h), both halves of one piece. It multiplies a stage in four steps of
// 32 bytes of channels:
//
//     channels_last  A and B from shared memory (descriptors); one stage of MMAs stays in flight
//     NCHW           A from registers: a Loader transposes fragments of pixels as it reads them,
//                    half a stage at a time, while the tensor cores work on the other half
#pragma once

#include <type_traits>

#include "device/memory.cuh"
#include "device/warp_roles.cuh"
#include "device/wgmma.cuh"
#include "engines/cuda/boxes/boxes_ring.cuh"
#include "kernels/tensor_types.cuh"

namespace convx {

// Loaders of the A operand: a warp reads 16 pixels by 32 bytes of channels of a stage into
// registers, four words per lane, in the layout of wgmma's A fragments (wgmma.cuh). Stages of NCHW
// tensors are transposed on the way.
//
//     kUsed    false: the tensor cores read pixels from shared memory
//     kByTile  true: start_tile() is called for every tile
//     kRounds  true: the stage holds float32 values that have not been rounded to TF32 yet

// channels_last: no fragments.
struct NoFragments {
  static constexpr bool kUsed = false, kByTile = false;

  __device__ __forceinline__ explicit NoFragments(const BoxesParams&) {}
};

// NCHW stages [line][channel][128 bytes of pixels]. A warp's 16 pixels lie in one line.
template <TensorMath kMath>
class LineFragments {
  static constexpr bool kWide = operand_bytes(kMath) == 4;

 public:
  static constexpr bool kUsed = true, kByTile = false, kRounds = false;

  __device__ __forceinline__ explicit LineFragments(const BoxesParams&) {
    const int lane = threadIdx.x & 31, matrix = lane / 8, pixel = first_warp_pixel();
    const int line = pixel / line_pixels(kMath), first = pixel % line_pixels(kMath);
    place_ = line * (box_chunk(kMath) * kBoxLineBytes);
    if constexpr (kWide) {
      place_ += lane % 4 * kBoxLineBytes + (first + lane / 4) * 4;
    } else {
      // Lane 8 * m + i addresses row i of matrix m: the lower or upper eight pixels (m % 2) of the
      // lower or upper eight channels (m / 2).
      place_ += (matrix / 2 * 8 + lane % 8) * kBoxLineBytes + (first + matrix % 2 * 8) * 2;
    }
  }

  __device__ __forceinline__ void load(uint32_t from, int /*stage*/, int /*piece*/, int step,
                                       uint32_t (&words)[4]) const {
    from += place_;
    if constexpr (kWide) {
      from += 8 * step * kBoxLineBytes;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        words[i] = load_word(swizzle_line(from + i / 2 * 4 * kBoxLineBytes + i % 2 * 32));
      }
    } else {
      load_transposed_matrices(swizzle_line(from + 16 * step * kBoxLineBytes), words);
    }
  }

 private:
  uint32_t place_;
};

// NCHW stages [image][channel][plane]. A warp's 16 pixels may lie in several images.
template <TensorMath kMath, int kPieces, bool kPaired>
class ImageFragments {
  static constexpr int kBytes = operand_bytes(kMath);
  // An MMA has two units of channels. In each, a lane reads kOwn consecutive channels.
  static constexpr int kUnit = 16 / kBytes;
  static constexpr int kOwn = kUnit / 4;

 public:
  static constexpr bool kUsed = true, kByTile = false;
  // Bulk copies do not round; the TMA boxes of other forms do.
  static constexpr bool kRounds = kMath == TensorMath::kTf32;

  __device__ __forceinline__ explicit ImageFragments(const BoxesParams& p) : p_(p), pixels_(p) {
    const int channels = (threadIdx.x & 3) * kOwn * p.plane * kBytes;
#pragma unroll
    for (auto& piece : pixels_.place) {
      // Rows without a pixel read some other one: their accumulators are never stored.
#pragma unroll
      for (int& place : piece) place = max(place, 0) + channels;
    }
  }

  // Channels past the last one are replaced by zeros, because the stage still holds older values
  // there. Channels come in whole units, so a unit is either present or missing.
  __device__ __forceinline__ void load(uint32_t from, int stage, int piece, int step,
                                       uint32_t (&words)[4]) const {
    const int channels = p_.group_sources - stage * box_chunk(kMath);
    const auto& place = pixels_.place[piece];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int unit = 2 * step + half;
      uint32_t& lower = words[2 * half];
      uint32_t& upper = words[2 * half + 1];
      const uint32_t at = from + unit * (16 * p_.plane);
      if constexpr (kOwn == 1) {
        lower = load_word(at + place[0]);
        upper = load_word(at + place[1]);
      } else {
        load_pairs(at, place, lower, upper);
      }
      if (unit * kUnit >= channels) lower = upper = 0;
    }
  }

 private:
  // Reads two channels of both pixels.
  __device__ __forceinline__ void load_pairs(uint32_t at, const int (&place)[2], uint32_t& lower,
                                             uint32_t& upper) const {
    const uint32_t next = at + kBytes * p_.plane;
    if constexpr (kPaired) {
      const uint32_t first = load_word(at + place[0]), second = load_word(next + place[0]);
      lower = __byte_perm(first, second, 0x5410);
      upper = __byte_perm(first, second, 0x7632);
    } else {
      lower = __byte_perm(load_half_word(at + place[0]), load_half_word(next + place[0]), 0x5410);
      upper = __byte_perm(load_half_word(at + place[1]), load_half_word(next + place[1]), 0x5410);
    }
  }

  const BoxesParams& p_;
  ImagePixels<kMath, kPieces, kPaired> pixels_;
};

// Loader: reads pixels into registers. Source: the producer's class, which
// says how a stage is released. kColumns: filters are an N-major operand (BoxFilters::kColumns).
template <TensorMath kMath, int kFilters, int kPieces, typename Loader, typename Source,
          bool kColumns>
class BoxMultiplier {
  static constexpr bool kOwnPieces = kPieces == 2 && !Loader::kUsed;
  using Operand = typename TensorTypes<kMath>::Operand;
  using Mma = Wgmma<std::conditional_t<kColumns, ByColumns<Operand>, Operand>, kFilters>;
  static constexpr int kSteps = kBoxLineBytes / 32;  // MMAs per stage
  // From the filters of one MMA to those of the next, in descriptor units of 16 bytes: 32 bytes of
  // channels, or 16 channels of 128 bytes each.
  static constexpr int kFilterStep = kColumns ? 16 * kBoxLineBytes / 16 : 2;
  // Fragments are loaded by half stages (the pieces, if there are two), so that one half is loaded
  // while the tensor cores read the other.
  static_assert(kPieces <= 2);
  static constexpr int kHalfSteps = kSteps * kPieces / 2;
  using Fragments = uint32_t[kHalfSteps][4];

 public:
  using Sums = WgmmaSums<kFilters>[kPieces];

  __device__ __forceinline__ BoxMultiplier(const BoxesParams& p, const BoxesRing& ring)
      : p_(p),
        ring_(ring),
        leader_((threadIdx.x & 31) == 0),
        says_(leader_ || !p.boxed_source),
        loader_(p) {
    const int warpgroup = __shfl_sync(0xffffffff, threadIdx.x / 128, 0);
    first_pixel_ = warpgroup * (kOwnPieces ? kBoxPixels : kBoxPixels / 2) * kBoxLineBytes;
  }

  // Waits for the resident filters, if any. Call before the first tile.
  __device__ __forceinline__ void take_filters() const {
    if (p_.resident) wait_barrier(ring_.filters_full, 0);
  }

  // Waits for the next stage and returns the index of its tile (or split-K slice), which is p.tiles
  // or more at the end.
  __device__ __forceinline__ int find_tile() const {
    wait_barrier(ring_.full + 8 * cursor_.slot, cursor_.parity);
    uint32_t index = 0;  // only the lane that releases the stage reads it
    if (leader_) index = load_word(ring_.tile + 4 * cursor_.slot);
    return static_cast<int>(__shfl_sync(0xffffffff, index, 0));
  }

  // Takes the only stage of a tile whose phase has no taps. It holds no values.
  __device__ __forceinline__ void skip_stage() {
    cursor_.advance(p_.stages);
    release();
  }

  // Computes a work item. The accumulators are complete on return.
  __device__ __forceinline__ void multiply(Sums& sums, const WorkItem& item) {
    if constexpr (Loader::kByTile) loader_.start_tile(item.tile);
    first_chunk_ = item.first_step;
    first_resident_ = p_.phases[item.phase].first_tap * p_.chunks;
    int stage = 0, end = item.steps;
    if constexpr (kOwnPieces) {
      if (p_.is_staggered) {
        if (threadIdx.x < kBoxMultipliers / 2) {
          end = kBoxLead;
        } else {
          wait_at_barrier<kLeadBarrier, kBoxMultipliers>();
        }
      }
    }
#pragma unroll 1
    for (;; end = item.steps) {
#pragma unroll 1
      for (; stage < end; ++stage) {
        wait_barrier(ring_.full + 8 * cursor_.slot, cursor_.parity);
        __syncwarp();  // lanes diverge while they wait
        if constexpr (Loader::kUsed) {
          multiply_fragments(sums, stage);
        } else {
          multiply_stage(sums, stage);
        }
        cursor_.advance(p_.stages);
      }
      if (!kOwnPieces || end == item.steps) break;
      pass_barrier<kLeadBarrier, kBoxMultipliers>();
    }
    wait_wgmma<0>();
    __syncwarp();  // all lanes have read the last stage
    release();
  }

 private:
  __device__ __forceinline__ void multiply_stage(Sums& sums, int stage) {
    const uint32_t pixels = find_pixels();
    const uint32_t filters = find_filters(pixels, stage);
    const uint32_t a = lower_descriptor(pixels + first_pixel_);
    fence_wgmma();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int half = 0; half < kPieces; ++half) {
        const uint32_t rows = a + half * (kBoxPixels / 2 * kBoxLineBytes / 16);
        Mma::multiply(
            sums[half], join_descriptor(rows + 2 * step, upper_descriptor(kBoxLineBytes)),
            join_descriptor(filters + kFilterStep * step, upper_descriptor(kBoxLineBytes)),
            step > 0 ? 1 : stage > 0);
      }
    }
    commit_wgmma();
    if (stage > 0) {
      wait_wgmma<1>();
      release();
    }
  }

  __device__ __forceinline__ void multiply_fragments(Sums& sums, int stage) {
    const uint32_t pixels = find_pixels();
    const uint32_t filters = find_filters(pixels, stage);
    const auto multiply_half = [&](Fragments& fragments, int half) {
      const int piece = half * (kPieces - 1), first = kPieces == 1 ? half * kHalfSteps : 0;
#pragma unroll
      for (int i = 0; i < kHalfSteps; ++i) {
        load_fragment(pixels, stage, piece, first + i, fragments[i]);
      }
      fence_wgmma();
#pragma unroll
      for (int i = 0; i < kHalfSteps; ++i) {
        Mma::multiply(
            sums[piece], fragments[i],
            join_descriptor(filters + kFilterStep * (first + i), upper_descriptor(kBoxLineBytes)),
            first + i > 0 ? 1 : stage > 0);
      }
      commit_wgmma();
    };
    multiply_half(lower_, 0);
    wait_wgmma<1>();
    if (stage > 0) release();
    multiply_half(upper_, 1);
    wait_wgmma<1>();
  }

  // Loads the A operand of one step. wgmma would truncate float32 to TF32, so it is rounded here.
  __device__ __forceinline__ void load_fragment(uint32_t pixels, int stage, int piece, int step,
                                                uint32_t (&words)[4]) const {
    loader_.load(pixels, first_chunk_ + stage, piece, step, words);
    if constexpr (Loader::kRounds) {
#pragma unroll
      for (uint32_t& word : words) word = round_to_tf32(__uint_as_float(word));
    }
  }

  __device__ __forceinline__ uint32_t find_pixels() const {
    return ring_.first + cursor_.slot * p_.stage_bytes;
  }
  // Descriptor of the filters that belong to a stage.
  __device__ __forceinline__ uint32_t find_filters(uint32_t pixels, int stage) const {
    const uint32_t first =
        p_.resident ? ring_.resident + (first_resident_ + stage) * (kFilters * kBoxLineBytes)
                    : pixels + p_.pixel_bytes;
    return kColumns ? lower_columns_descriptor(first, kBoxFilters * kBoxLineBytes)
                    : lower_descriptor(first);
  }

  __device__ __forceinline__ void release() {
    if constexpr (Source::kNamedBarriers) {
      release_stage<Source::kWarps>(done_.slot);
    } else if (says_) {
      arrive(ring_.empty + 8 * done_.slot);
    }
    done_.advance(p_.stages);
  }

  const BoxesParams& p_;
  const BoxesRing& ring_;
  const bool leader_;
  // True if this lane arrives when a stage is released: one lane per warp, or every lane where the
  // stages are not filled by TMA.
  const bool says_;
  Loader loader_;
  uint32_t first_pixel_;      // byte offset of this warpgroup's pixels in a stage
  int first_chunk_ = 0;       // NCHW, where the only tap's steps are chunks
  int first_resident_ = 0;    // resident filters of earlier phases, in stages
  Fragments lower_, upper_;   // unused, and without registers, for NoFragments
  RingCursor cursor_, done_;  // next stage to multiply, and next to release
};

}  // namespace convx
