// Depthwise convolution with large kernels on tensor cores: NCHW, TF32 and 16 bits, from sm_80 on.
//
//     y[q] = sum over r of  x_r[q ... q + span)  *  band_r,     band_r[k][n] = tap k - n - lead of
//                                                               row r of the kernel, or zero
//
//     lines in shared memory           one MMA, for one row of taps
//     |000xxxxxxxxxxxxxxxxxxxxxx000|   A: 16 output rows x 32 bytes of the source rows that they
//     |000xxxxxxxxxxxxxxxxxxxxxx000|      read (a step: 16 columns in 16 bits, 8 in TF32)
//     |000xxx[32 bytes]xxxxxxxxx000|   B: the columns of a step x 8 outputs, a piece of the band
//
//             outputs n
//         t0   0   0   0   0 ...       A piece depends only on the distance between its columns
//     k   t1  t0   0   0   0 ...       and its outputs. A lane therefore loads the band's words
//         t2  t1  t0   0   0 ...       once per row of taps, and they serve all columns and all
//         ... ... ...                  rows of its warp.
//
// Tile: a block keeps the taps of one filter and computes 16, 32 or 64 columns of up to 256 rows.
// It processes its images a few at a time. Copies of the next images (cp.async, two stages) overlap
// with the MMAs of the current ones; see bands_stage.cuh.
//
// Warps: up to 8, all with the same role. A warp computes 32 rows, of one image or of several, by
// all columns of the tile. It skips steps and kernel rows that lie outside the image.
//
// Non-finite values: a zero of the band times an infinity is NaN, which the definition does not
// have. Accumulators that became NaN are recomputed tap by tap.
//
// Shared memory: one line of zeros, the bands, two stages of lines (extents in bands_geometry.h).
// Limit: arithmetic, for large kernels. With few taps in a row most of the band is zeros.
// Grid: column tiles fastest, then row tiles, shares of the images, filters.
#include "cuda/launch.h"
#include "cuda/launch_listed.h"
#include "device/vectors.cuh"
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/depthwise/bands_stage.cuh"
#include "kernels/epilogue.cuh"
#include "kernels/finish.cuh"

namespace convx {

// Addresses of the buffers in shared memory.
struct BandsSpace {
  uint32_t zeros, bands, stage;
};

// 32 output rows that a warp computes at once.
template <typename T, int kSteps, int kTiles>
struct BandJob {
  static constexpr int kRowTiles = kBandRows / 16;
  static constexpr int kElement = sizeof(T);
  static constexpr int kDepth = count_band_depth(sizeof(T));
  static constexpr int kCopies = count_band_copies(sizeof(T));
  static constexpr int kPieces = kDepth / 8;         // MMAs (of 8 outputs) side by side in a band
  static constexpr int kColumns = kPieces * kTiles;  // MMAs side by side in the whole tile
  // Words of the band that a lane holds for one row of taps: two for each step. The second piece
  // (16 bits) is the first shifted by 8 columns, so it needs only one more word.
  static constexpr int kWords = 2 * kSteps + kPieces - 1;
  using Accumulators = float[kRowTiles * kColumns * 4];

  // Index of an MMA's first accumulator.
  static constexpr int index_accumulator(int row_tile, int n) {
    return (row_tile * kColumns + n) * 4;
  }

  const BandsParams& p;
  const BandsBlock& block;
  const BandsSpace& space;
  int images;  // number of images in the stage
  int first;   // first row of the warp, counted through the images of the stage

  // Maps a row of the warp to its image and its output row within the tile.
  struct Row {
    int image, row;
  };
  __device__ __forceinline__ Row locate(int row) const {
    Row at{first + row, 0};
    at.row = block.by_rows.split(at.image);
    return at;
  }

  // The read position of one output row: the source row under the first row of taps, and the
  // address of its line in the stage. The line is valid only while source_row is inside the image.
  // A row of an image that does not exist gets a source row that is outside under every tap.
  struct Reader {
    int source_row;
    uint32_t line;
  };
  __device__ __forceinline__ Reader make_reader(int row) const {
    constexpr int kOutside = -(1 << 30);
    const Row at = locate(row);
    const int seen = (block.first_row + at.row) * p.row.source_step + p.row.offset0;
    const auto line = static_cast<uint32_t>(at.image * p.span + seen - block.first_line);
    return {at.image < images ? seen : kOutside, space.stage + line * p.line_pitch};
  }
  __device__ __forceinline__ bool is_inside(const Reader& reader) const {
    return static_cast<unsigned>(reader.source_row) < static_cast<unsigned>(p.source_height);
  }
  // The range of source rows that the warp's rows read under one row of taps. If the rows belong to
  // several images, the range is unlimited.
  struct Sight {
    int first, last;
  };
  __device__ __forceinline__ Sight make_sight() const {
    constexpr int kFar = 1 << 30;
    const Row from = locate(0), to = locate(min(kBandRows, images * block.rows - first) - 1);
    if (from.image != to.image) return {-kFar, kFar};
    const int offset = block.first_row * p.row.source_step + p.row.offset0;
    return {from.row * p.row.source_step + offset, to.row * p.row.source_step + offset};
  }
  // Moves to the next row of taps.
  __device__ __forceinline__ void advance(Reader& reader) const {
    reader.source_row += p.row.offset_step;
    reader.line += static_cast<uint32_t>(p.row.offset_step) * p.line_pitch;
  }

  __device__ __forceinline__ void multiply(Accumulators& accumulators) const {
    const int lane = threadIdx.x % 32;
    const uint32_t side = lane / 16 * 16;  // lanes 16 to 31 address the second 16 bytes of a step
    Reader readers[kRowTiles];
#pragma unroll
    for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
      readers[row_tile] = make_reader(16 * row_tile + lane % 16);
    }
#pragma unroll
    for (float& value : accumulators) value = 0;
    Sight sight = make_sight();
    // The lane's first word: two elements in 16 bits, one in TF32.
    const int element = kBandFront - p.lead - 8 * (kPieces - 1) + kCopies * (lane % 4) - lane / 4;
    const int copy = element % kCopies;
    uint32_t word = space.bands + kElement * (element - copy + copy * p.band_elements);
#pragma unroll 1
    for (int r = 0; r < p.row.taps; ++r) {
      uint32_t lines[kRowTiles];
#pragma unroll
      for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
        lines[row_tile] =
            (is_inside(readers[row_tile]) ? readers[row_tile].line : space.zeros) + side;
        advance(readers[row_tile]);
      }
      if (sight.last >= 0 && sight.first < p.source_height) multiply_row(accumulators, lines, word);
      sight.first += p.row.offset_step, sight.last += p.row.offset_step;
      word += kElement * kCopies * p.band_elements;
    }
  }

  // Adds one row of taps. Each step is loaded one iteration before its MMAs.
  __device__ __forceinline__ void multiply_row(Accumulators& accumulators,
                                               const uint32_t (&lines)[kRowTiles],
                                               uint32_t word) const {
    constexpr int kReach = kTiles + kSteps - 1;  // steps that one group of band steps multiplies
    uint32_t from[kRowTiles] = {lines[0], lines[1]};
    int first_step = block.first_step, last_step = block.last_step;  // relative to the group
#pragma unroll 1
    for (int group = 0; group < p.groups; ++group) {
      uint32_t words[kWords], pixels[2][kRowTiles][4];
#pragma unroll
      for (int i = 0; i < kWords; ++i) words[i] = load_word(word + 16 * i);
#pragma unroll
      for (int next = 0; next <= kReach; ++next) {
        if (next < kReach && next >= first_step && next < last_step) {
#pragma unroll
          for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
            load_matrices(from[row_tile] + next * kBandBytes, pixels[next % 2][row_tile]);
          }
        }
        const int step = next - 1;
        if (step < 0 || step < first_step || step >= last_step) continue;
#pragma unroll
        for (int i = 0; i < kSteps; ++i) {
          const int tile = step - i;
          if (tile < 0 || tile >= kTiles) continue;
#pragma unroll
          for (int n = 0; n < kPieces; ++n) {
            const int first_word = 2 * i - n + kPieces - 1;
#pragma unroll
            for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
              multiply_operands<T>(accumulators + index_accumulator(row_tile, kPieces * tile + n),
                                   pixels[step % 2][row_tile], words[first_word],
                                   words[first_word + 1]);
            }
          }
        }
      }
      word += kBandBytes * kSteps;
      first_step -= kSteps, last_step -= kSteps;
#pragma unroll
      for (int row_tile = 0; row_tile < kRowTiles; ++row_tile)
        from[row_tile] += kBandBytes * kSteps;
    }
  }

  // Row (from the warp's first) and column (from the block's first) of accumulator i of an MMA.
  static __device__ __forceinline__ int row_of(int row_tile, int i) {
    return 16 * row_tile + threadIdx.x % 32 / 4 + 8 * (i / 2);
  }
  static __device__ __forceinline__ int column_of(int n, int i) {
    return 8 * n + threadIdx.x % 4 * 2 + i % 2;
  }

  // Computes one output tap by tap, without the zeros of the band.
  __device__ __forceinline__ float add_taps(int row, int column) const {
    Reader reader = make_reader(row);
    uint32_t taps = space.bands + kElement * kBandFront;
    float sum = 0;
#pragma unroll 1
    for (int r = 0; r < p.row.taps; ++r) {
      const uint32_t line =
          (is_inside(reader) ? reader.line : space.zeros) + kElement * (p.lead + column);
#pragma unroll 1
      for (int s = 0; s < p.column.taps; ++s) {
        const int place = kElement * s * p.column.offset_step;
        sum += to_accumulate(load_element<T>(line + place)) *
               to_accumulate(load_element<T>(taps + place));
      }
      advance(reader);
      taps += kElement * kCopies * p.band_elements;
    }
    return sum;
  }

  __device__ __forceinline__ void recompute_nan(Accumulators& accumulators) const {
    recompute_nans(accumulators, [&](int i) {
      const int row_tile = i / (4 * kColumns), n = i / 4 % kColumns;
      return add_taps(row_of(row_tile, i % 4), column_of(n, i % 4));
    });
  }

  static __device__ __forceinline__ void store_pair(T* target, const float (&pair)[2]) {
    if constexpr (kElement == 4) {
      *reinterpret_cast<float2*>(target) = make_float2(pair[0], pair[1]);
    } else {
      *reinterpret_cast<uint32_t*>(target) = narrow(pair, 0, T{});
    }
  }

  __device__ __forceinline__ void store(const Accumulators& accumulators, int first_image,
                                        float bias) const {
#pragma unroll
    for (int row_tile = 0; row_tile < kRowTiles; ++row_tile) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const Row at = locate(row_of(row_tile, i));
        if (at.image >= images) continue;
        T* target = static_cast<T*>(p.target) + (first_image + at.image) * p.target_n +
                    block.filter * p.target_c + (block.first_row + at.row) * p.target_h;
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
          const int column = block.first_column + column_of(n, i);
          if (column >= p.column.count) continue;
          const float* of_mma = accumulators + index_accumulator(row_tile, n);
          float pair[2] = {of_mma[i] + bias, of_mma[i + 1] + bias};
          all_at_least(pair, p.lowest);
          if (p.pairs) {
            store_pair(target + column, pair);
          } else {
            target[column] = round_to<T>(pair[0]);
            if (column + 1 < p.column.count) target[column + 1] = round_to<T>(pair[1]);
          }
        }
      }
    }
  }
};

template <typename T, int kSteps, int kTiles>
__device__ __forceinline__ void compute_bands(const BandsParams& p, unsigned char* shared_bytes) {
  const BandsBlock block = locate_bands_block(p, count_band_depth(sizeof(T)), kTiles, kSteps);
  uint4* const whole = reinterpret_cast<uint4*>(shared_bytes);
  const int clear_from = p.stages_offset / 16, clear_to = clear_from + 2 * p.stage_bytes / 16;
  for (int i = threadIdx.x; i < p.bands_offset / 16; i += blockDim.x) whole[i] = uint4{};
  for (int i = clear_from + static_cast<int>(threadIdx.x); i < clear_to; i += blockDim.x) {
    whole[i] = uint4{};
  }
  stage_bands<T>(p, block.filter, reinterpret_cast<T*>(shared_bytes + p.bands_offset));
  const float bias =
      p.bias == nullptr ? 0 : to_accumulate(static_cast<const T*>(p.bias)[block.filter]);
  __syncthreads();  // the zeros must be written before any copy lands

  const int stride = p.shares * p.tile_images;
  const auto count_images = [&](int first) { return min(p.tile_images, p.images - first); };
  const auto stage_of = [&](int slot) {
    return shared_bytes + p.stages_offset + slot * p.stage_bytes;
  };
  // The first iteration only starts copies: its images, before the block's first, do not exist.
  int slot = 1;
#pragma unroll 1
  for (int first_image = block.share * p.tile_images - stride; first_image < p.images;
       first_image += stride) {
    const int next = first_image + stride;
    if (next < p.images) stage_lines<T>(p, block, next, count_images(next), stage_of(1 - slot));
    commit_copies();
    if (first_image >= 0) {
      wait_copies<1>();
      const int images = count_images(first_image);
      round_lines<T>(p, block, first_image, images, stage_of(slot));
      __syncthreads();  // every thread's copies for these images have landed
      const BandsSpace space{shared_address(shared_bytes),
                             shared_address(shared_bytes + p.bands_offset),
                             shared_address(stage_of(slot))};
      for (int first = static_cast<int>(threadIdx.x) / 32 * kBandRows; first < images * block.rows;
           first += p.warps * kBandRows) {
        const BandJob<T, kSteps, kTiles> job{p, block, space, images, first};
        typename BandJob<T, kSteps, kTiles>::Accumulators accumulators;
        job.multiply(accumulators);
        job.recompute_nan(accumulators);
        job.store(accumulators, first_image, bias);
      }
      __syncthreads();  // all warps have read the stage
    }
    slot = 1 - slot;
  }
}

template <typename T, int kSteps, int kTiles>
__global__ void __launch_bounds__(kBandMostWarps * 32)
    __maxnreg__(count_band_registers(kTiles* count_band_depth(sizeof(T))))
        bands_kernel(const __grid_constant__ BandsParams p) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  extern __shared__ __align__(16) unsigned char shared_bytes[];
  compute_bands<T, kSteps, kTiles>(p, shared_bytes);
#endif
}

void launch_cuda_bands(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  const BandsFit& fit = geometry_of<BandsFit>(plan);
  const BandsParams params = make_bands_params(*site.problem, fit, buffers);
  visit_mma_type(site.problem->dtype, [&](auto element) {
    using T = decltype(element);
    launch_listed<kBandsKernels>(site, fit.kernel(), [&]<BandsKernel kKernel>() {
      constexpr int kTiles = kKernel.columns / count_band_depth(sizeof(T));
      launch_kernel<bands_kernel<T, kKernel.steps, kTiles>>(site, fit.blocks, 32 * params.warps,
                                                            fit.shared_bytes, params);
    });
  });
}

}  // namespace convx
