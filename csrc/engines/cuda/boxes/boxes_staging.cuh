// Layouts of an epilogue slice in shared memory (the filters in 128 bytes, for all pixels of a
// tile), and the stores from there to the target.
//
// A Staging class has
//     stage         writes a warp's finished values of a slice to shared memory
//     store_boxes   stores a slice by TMA or bulk copies; called by one lane (if kHasBoxes)
//     store_values  stores a slice by ordinary stores; called by all consumer threads
#pragma once

#include "device/async_copy.cuh"
#include "device/convert.cuh"
#include "device/memory.cuh"
#include "engines/cuda/boxes/boxes_ring.cuh"
#include "kernels/tensor_types.cuh"
#include "planning/boxed_tensor.h"

namespace convx {

// Members that all layouts share.
template <TensorMath kMath>
class BoxStaging {
 public:
  using Element = typename TensorTypes<kMath>::Element;
  static constexpr int kBytes = static_cast<int>(sizeof(Element));
  static constexpr int kSliceFilters = kBoxLineBytes / kBytes;
  // Groups of 8 filters, the columns of an accumulator fragment.
  static constexpr int kGroups = kSliceFilters / 8;

  // Bias of a filter, or 0 if there is no such filter.
  __device__ __forceinline__ float load_bias(int filter) const {
    if (p_.bias == nullptr || filter >= p_.group_targets) return 0.f;
    return to_accumulate(static_cast<const Element*>(p_.bias)[filter]);
  }
  // Bias of a slice: the lane's two filters of each group.
  struct Bias {
    float value[2 * kGroups];
  };
  __device__ __forceinline__ Bias read_bias(uint32_t from) const {
    Bias bias;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      uint32_t words[2];
      load_8_bytes(from + 4 * (8 * g + lane_ % 4 * 2), words);
      bias.value[2 * g] = __uint_as_float(words[0]);
      bias.value[2 * g + 1] = __uint_as_float(words[1]);
    }
    return bias;
  }

 protected:
  __device__ __forceinline__ explicit BoxStaging(const BoxesParams& p)
      : p_(p), lane_(static_cast<int>(threadIdx.x) & 31) {}

  // Rounds a lane's values of two groups to 16 bits, two filters per word: words[group][lower or
  // upper pixel].
  static __device__ __forceinline__ void round_pairs(const float* v, uint32_t (&words)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = OperandPair<kMath>(v[2 * i], v[2 * i + 1]).part[0];
  }

  // Calls visit with the number of each staged value, spread over the consumer threads.
  template <typename Visit>
  static __device__ __forceinline__ void visit_values(int count, const Visit& visit) {
    for (int i = threadIdx.x; i < count; i += kBoxMultipliers) visit(i);
  }

  const BoxesParams& p_;
  const int lane_;
};

// channels_last: a slice is [pixel][128 bytes of filters], swizzled. With two pieces, each
// warpgroup stores the slice of one of them.
template <TensorMath kMath, int kPieces>
class PixelStaging : BoxStaging<kMath> {
  using Base = BoxStaging<kMath>;
  using Base::kBytes, Base::p_, Base::lane_;

 public:
  static constexpr bool kHasBoxes = true;
  using Base::kGroups, Base::kSliceFilters, Base::load_bias, Base::read_bias;
  using typename Base::Element;

  __device__ __forceinline__ explicit PixelStaging(const BoxesParams& p) : Base(p) {}

  __device__ __forceinline__ BoxTile locate(int index) const {
    return locate_tile(p_, index, static_cast<int>(threadIdx.x) / kThreads);
  }

  // half: with two pieces, which 64 pixels of the warpgroup's piece.
  __device__ __forceinline__ void stage(const BoxTile&, const float* v, uint32_t staged,
                                        int half) const {
    const int pixel = first_warp_pixel() % (kThreads / 2) + half * (kBoxPixels / 2);
    staged += pixel * kBoxLineBytes;
    if constexpr (kBytes == 4) {
      const uint32_t to = staged + lane_ / 4 * kBoxLineBytes + lane_ % 4 * 8;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const uint32_t at = swizzle_line(to + 32 * g);
        store_8_bytes(at, __float_as_uint(v[4 * g]), __float_as_uint(v[4 * g + 1]));
        store_8_bytes(at + 8 * kBoxLineBytes, __float_as_uint(v[4 * g + 2]),
                      __float_as_uint(v[4 * g + 3]));
      }
    } else {
      // Four matrices of 8 pixels by 8 filters: the lower and upper pixels of two groups.
      const uint32_t to = staged + lane_ % 16 * kBoxLineBytes + lane_ / 16 * 16;
#pragma unroll
      for (int g = 0; g < kGroups; g += 2) {
        uint32_t words[4];
        Base::round_pairs(v + 4 * g, words);
        store_matrices(swizzle_line(to + 16 * g), words);
      }
    }
  }

  __device__ __forceinline__ void store_boxes(const void* map, const BoxTile& tile, int filter,
                                              uint32_t staged) const {
    box_store(static_cast<const TensorMap*>(map) + tile.phase, filter, tile.column, tile.row,
              tile.image, staged);
  }
  // Stores a target that has no tensor map.
  __device__ __forceinline__ void store_values(const BoxTile& tile, int filter,
                                               uint32_t staged) const {
    // The planner gives such targets one piece, unless their address is the reason.
    if constexpr (kPieces == 2) return store_pixels(tile, filter, staged);
    if constexpr (kBytes == 2) {
      if (p_.dense_target) return store_units(tile, staged);
    }
    if (p_.row_piece == 0) return store_pixels(tile, filter, staged);
    if (p_.row_piece * kBytes == 8) return store_row<uint2>(tile, filter, staged);
    if (p_.row_piece * kBytes == 4) return store_row<uint32_t>(tile, filter, staged);
    if constexpr (kBytes == 2) store_row<uint16_t>(tile, filter, staged);
  }

 private:
  static constexpr int kThreads = kBoxMultipliers / kPieces;  // that store a box

  // 16-bit targets whose pixels are contiguous, with all filters in one slice: stores 16-byte units
  // across pixels.
  __device__ __forceinline__ void store_units(const BoxTile& tile, uint32_t staged) const {
    static_assert(kBytes == 2);
    constexpr int kValues = 16 / kBytes;  // values per unit
    const BoxPhaseParams& phase = p_.phases[tile.phase];
    auto* const target =
        static_cast<Element*>(phase.target) + static_cast<int64_t>(tile.column) * p_.group_targets;
    const int count = min(p_.box_columns, phase.target_width - tile.column) * p_.group_targets;
    const auto find = [&](int pixel) {
      const int filter = p_.by_group_targets.split(pixel);
      return swizzle_line(staged + pixel * kBoxLineBytes + filter * kBytes);
    };
    for (int first = threadIdx.x * kValues; first < count; first += kBoxMultipliers * kValues) {
      if (first + kValues > count) {  // the tail, which is less than a unit
        for (int i = first; i < count; ++i) target[i] = load_element<Element>(find(i));
        break;
      }
      uint32_t words[4] = {};
      if (p_.row_piece == kBoxPieceBytes / kBytes) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const auto piece = load_element<uint2>(find(first + i * kValues / 2));
          words[2 * i] = piece.x, words[2 * i + 1] = piece.y;
        }
      } else {
#pragma unroll
        for (int i = 0; i < kValues; ++i) {
          words[i / 2] |= load_half_word(find(first + i)) << 16 * (i % 2);
        }
      }
      store_global_16_bytes(target + first, words);
    }
  }

  // Boxes that are one row: a warp, or half of one, stores a pixel in pieces of up to 8 bytes.
  template <typename Piece>
  __device__ __forceinline__ void store_row(const BoxTile& tile, int filter,
                                            uint32_t staged) const {
    constexpr int kPieceBytes = static_cast<int>(sizeof(Piece));
    constexpr int kLanes = kBoxLineBytes / (kPieceBytes > 4 ? kPieceBytes : 4);
    constexpr int kStep = kBoxMultipliers / kLanes;  // pixels from one of a thread's to its next
    static_assert(kStep % 8 == 0, "lines that far apart are swizzled alike");
    const int pixel = static_cast<int>(threadIdx.x) / kLanes;
    const BoxPhaseParams& phase = p_.phases[tile.phase];
    const int left = min(p_.box_columns, phase.target_width - tile.column) - pixel;
    auto* const target = static_cast<Element*>(phase.target) + tile.image * p_.target_n +
                         tile.row * p_.target_h + (tile.column + pixel) * p_.target_w + filter;
#pragma unroll
    for (int first = 0; first < kBoxLineBytes; first += kLanes * kPieceBytes) {
      const int byte = first + lane_ % kLanes * kPieceBytes;
      if (byte >= (p_.group_targets - filter) * kBytes) break;
      const uint32_t from = swizzle_line(staged + pixel * kBoxLineBytes + byte);
#pragma unroll
      for (int i = 0; i < kBoxPixels; i += kStep) {
        if (i >= left) break;
        *reinterpret_cast<Piece*>(target + i * p_.target_w + byte / kBytes) =
            load_element<Piece>(from + i * kBoxLineBytes);
      }
    }
  }

  // Any other box: a warp stores a pixel, value by value.
  __device__ __forceinline__ void store_pixels(const BoxTile& tile, int filter,
                                               uint32_t staged) const {
    const BoxPhaseParams& phase = p_.phases[tile.phase];
    const int left = p_.group_targets - filter;
    const int pixels = p_.box_columns * p_.box_rows * p_.box_images;
#pragma unroll 4
    for (int pixel = threadIdx.x % kThreads / 32; pixel < pixels; pixel += kThreads / 32) {
      int image = pixel;
      const int column = tile.column + p_.by_box_columns.split(image);
      const int row = tile.row + p_.by_box_rows.split(image);
      image += tile.image;
      if (column >= phase.target_width || row >= phase.target_height || image >= p_.images)
        continue;
      auto* const target = static_cast<Element*>(phase.target) + image * p_.target_n +
                           row * p_.target_h + column * p_.target_w + filter;
#pragma unroll
      for (int i = 0; i < kSliceFilters; i += 32) {
        const int own = i + lane_;
        const uint32_t from = swizzle_line(staged + pixel * kBoxLineBytes + own * kBytes);
        if (own < left) target[own] = load_element<Element>(from);
      }
    }
  }
};

// NCHW, lines: a slice is [line][filter][128 bytes of pixels], swizzled.
template <TensorMath kMath>
class LineStaging : BoxStaging<kMath> {
  using Base = BoxStaging<kMath>;
  using Base::kBytes, Base::p_, Base::lane_;
  static constexpr int kLinePixels = line_pixels(kMath);
  // Bytes of one line with all filters of a slice.
  static constexpr int kLineBytes = Base::kSliceFilters * kBoxLineBytes;

 public:
  static constexpr bool kHasBoxes = true;
  using Base::kGroups, Base::kSliceFilters, Base::load_bias, Base::read_bias;
  using typename Base::Element;

  __device__ __forceinline__ explicit LineStaging(const BoxesParams& p) : Base(p) {}

  __device__ __forceinline__ int locate(int index) const { return locate_lines<kMath>(p_, index); }

  __device__ __forceinline__ void stage(int /*first*/, const float* v, uint32_t staged,
                                        int /*piece*/) const {
    const int pixel = first_warp_pixel();
    staged += pixel / kLinePixels * kLineBytes + pixel % kLinePixels * kBytes;
    if constexpr (kBytes == 4) {
      const uint32_t to = staged + lane_ % 4 * 2 * kBoxLineBytes + lane_ / 4 * 4;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t at = to + (8 * g + i) * kBoxLineBytes;
          store_element(swizzle_line(at), v[4 * g + i]);
          store_element(swizzle_line(at + 32), v[4 * g + 2 + i]);
        }
      }
    } else {
      // Four transposed matrices of 8 filters by 8 pixels: the lower and upper pixels of two
      // groups.
      const int matrix = lane_ / 8;
      const uint32_t to = staged + (matrix / 2 * 8 + lane_ % 8) * kBoxLineBytes + matrix % 2 * 16;
#pragma unroll
      for (int g = 0; g < kGroups; g += 2) {
        uint32_t words[4];
        Base::round_pairs(v + 4 * g, words);
        store_transposed_matrices(swizzle_line(to + 8 * g * kBoxLineBytes), words);
      }
    }
  }

  __device__ __forceinline__ void store_boxes(const void* map, int first, int filter,
                                              uint32_t staged) const {
    const int count = count_lines<kMath>(p_, first);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      const PlaneLine line(p_, first + i);
      box_store(map, line.index * kLinePixels, filter, line.image, 0, staged + i * kLineBytes);
    }
  }
  __device__ __forceinline__ void store_values(int first, int filter, uint32_t staged) const {
    Base::visit_values(count_lines<kMath>(p_, first) * kSliceFilters * kLinePixels, [&](int i) {
      const PlaneLine line(p_, first + i / (kSliceFilters * kLinePixels));
      const int own = filter + i / kLinePixels % kSliceFilters;
      const int pixel = line.index * kLinePixels + i % kLinePixels;
      if (own >= p_.group_targets || pixel >= p_.plane) return;
      static_cast<Element*>(p_.target)[line.image * p_.target_n + own * p_.target_c + pixel] =
          load_element<Element>(swizzle_line(staged + kBytes * i));
    });
  }
};

// NCHW, whole planes: a slice is [image][filter][plane].
template <TensorMath kMath, int kPieces, bool kPaired>
class ImageStaging : BoxStaging<kMath> {
  using Base = BoxStaging<kMath>;
  using Base::kBytes, Base::p_, Base::lane_;

 public:
  static constexpr bool kHasBoxes = true;
  using Base::kGroups, Base::kSliceFilters, Base::load_bias, Base::read_bias;
  using typename Base::Element;

  __device__ __forceinline__ explicit ImageStaging(const BoxesParams& p) : Base(p), pixels_(p) {}

  __device__ __forceinline__ int locate(int index) const { return locate_tile(p_, index).image; }

  __device__ __forceinline__ void stage(int /*first*/, const float* v, uint32_t staged,
                                        int piece) const {
    const auto& place = pixels_.place[piece];
    const int plane = p_.plane * kBytes;
    staged += lane_ % 4 * 2 * plane;
    // Half of the lanes start with the second of their two filters. Otherwise four lanes would hit
    // the same bank with planes of 49 pixels.
    const int turn = lane_ / 2 % 2;
#pragma unroll
    for (int g = 0; g < kGroups; g += 2) {
      uint32_t words[4];
      if constexpr (kBytes == 2) Base::round_pairs(v + 4 * g, words);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool second = i % 2 != turn;
        const int own = 8 * (g + i / 2) + second;
        const uint32_t to = staged + own * plane;
        if constexpr (kBytes == 2) {
          const uint32_t pair =
              __byte_perm(words[i / 2 * 2], words[i / 2 * 2 + 1], second ? 0x7632 : 0x5410);
          stage_pair(to, place, pair);
        } else {
          const float* const of_group = v + 4 * (g + i / 2);
          stage_pixel(to, place[0], second ? of_group[1] : of_group[0]);
          stage_pixel(to, place[1], second ? of_group[3] : of_group[2]);
        }
      }
    }
  }

  // The filters of an image are contiguous in the target too: one bulk store per image.
  __device__ __forceinline__ void store_boxes(const void*, int first, int filter,
                                              uint32_t staged) const {
    const uint32_t bytes = count_values(filter) * kBytes;
    visit_images(first, filter, [&](int i, Element* target) {
      bulk_store(target, staged + i * image_pitch(p_), bytes);
    });
  }
  __device__ __forceinline__ void store_values(int first, int filter, uint32_t staged) const {
    const int count = count_values(filter);
    visit_images(first, filter, [&](int i, Element* target) {
      const uint32_t from = staged + i * image_pitch(p_);
      Base::visit_values(count,
                         [&](int v) { target[v] = load_element<Element>(from + kBytes * v); });
    });
  }

 private:
  // Stores one of the lane's pixels to a filter's plane at `to`, unless the row has no pixel.
  template <typename Value>
  static __device__ __forceinline__ void stage_pixel(uint32_t to, int place, Value value) {
    if (place >= 0) store_element(to + place, value);
  }
  // Stores both pixels (16 bits).
  __device__ __forceinline__ void stage_pair(uint32_t to, const int (&place)[2],
                                             uint32_t pair) const {
    if constexpr (kPaired) {
      if (place[0] >= 0) store_word(to + place[0], pair);
    } else {
      stage_pixel(to, place[0], static_cast<uint16_t>(pair));
      stage_pixel(to, place[1], static_cast<uint16_t>(pair >> 16));
    }
  }

  // Values per image in the slice that begins with this filter.
  __device__ __forceinline__ int count_values(int filter) const {
    return min(kSliceFilters, p_.group_targets - filter) * p_.plane;
  }
  // Calls visit(i, address of this filter's plane) for each image i of a tile.
  template <typename Visit>
  __device__ __forceinline__ void visit_images(int first, int filter, const Visit& visit) const {
    auto* target = static_cast<Element*>(p_.target) + first * p_.target_n +
                   static_cast<int64_t>(filter) * p_.plane;
    const int count = count_images(p_, first);
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      visit(i, target);
      target += p_.target_n;
    }
  }

  const ImagePixels<kMath, kPieces, kPaired> pixels_;
};

}  // namespace convx
