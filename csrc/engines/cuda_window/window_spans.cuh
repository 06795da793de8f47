// Stretches of source planes: which ones a tile looks at, and how they get into shared memory.
#pragma once

#include "device/mbarrier.cuh"
#include "engines/cuda_window/window_tables.cuh"
#include "engines/cuda_window/window_units.cuh"

namespace convx {

// A stretch of each channel's plane that positions of the tile look at.
struct SourceSpan {
  int64_t start = 0;        // of the plane of the group's channel 0, in elements of the tensor
  int first = 0, last = 0;  // elements of the plane
  int slot = 0;             // element of a channel's row of a stage
};

// The spans of a tile, one per lane of a warp: of the images that the lines of its segments touch.
__device__ __forceinline__ SourceSpan find_spans(const WindowParams& p, const WindowTables& tables,
                                                 const TilePlace& tile, int unit) {
  const int lane = threadIdx.x & 31;
  SourceSpan span;
  if (lane < p.spans) {
    const int segment = lane / p.span_images;
    const int begin = tile.first + tables.segments[segment].shift;
    const int image = p.by_images.divide(begin) + lane % p.span_images;
    const int image_start = image * p.rows * p.pitch;
    const int from = max(begin, image_start);
    const int to = min(begin + p.segment_length, image_start + p.rows * p.pitch);
    if (image < p.images && from < to) {
      const LinePoint head = locate_position(p, from);
      const LinePoint tail = locate_position(p, to - 1);
      // One segment per phase: the first stands for all. Segments of kernel rows have one phase.
      const int first_phase = tables.segments[segment].row_phase;
      const int last_phase = p.by_kernel_rows ? first_phase : p.row_phase_last;
      int first_row = (head.row + p.row_base) * p.source_step_h + first_phase;
      int last_row = (tail.row + p.row_base) * p.source_step_h + last_phase;
      int first_column = (head.column + p.column_base) * p.source_step_w + p.column_phase_first;
      int last_column = (tail.column + p.column_base) * p.source_step_w + p.column_phase_last;
      if (p.load == WindowLoad::kFolded) {  // whole rows, of all taps
        first_row += p.offset_h0;
        last_row += p.offset_h0 + (p.tap_rows - 1) * p.offset_h_step;
        first_column = 0;
        last_column = p.source_width - 1;
      }
      const int width = p.source_width, plane = p.source_height * width;
      const int first = first_row * width + min(max(first_column, 0), width);
      const int last = last_row * width + min(max(last_column + 1, 0), width);
      span.first = min(max(first, 0), plane);
      span.last = max(span.first, min(max(last, 0), plane));
      span.start = p.source_shift + image * p.source_n +
                   static_cast<int64_t>(tile.group) * p.group_sources * p.source_c;
    }
  }
  // Slots follow each other, behind the zeros; a copy may begin and end in the middle of a unit.
  const int size =
      span.first < span.last ? ((span.last - span.first + unit - 1) & -unit) + unit : 0;
  int end = size;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int before = __shfl_up_sync(0xffffffff, end, step);
    if (lane >= step) end += before;
  }
  span.slot = unit + end - size;
  return span;
}

// Starts copies of the spans of a chunk's channels (or, where taps are folded, of all channels of a
// tile) into stages, by kWarps warps of which this is warp. Stages have, per channel, a unit of
// zeros and the spans' slots; a copy starts with the 16 bytes that its first value is in, so values
// lie as many elements later in the slot as that one is misaligned.
//
// A warp starts the copies of its lanes one after the other, some 75 cycles each: hence all warps.
template <typename Source, int kWarps>
class SpanCopier {
  static constexpr int kUnit = 16 / sizeof(Source);

 public:
  __device__ __forceinline__ SpanCopier(const WindowParams& p, const WindowTables& tables, int warp)
      : p_(p), tables_(tables), warp_(warp) {}

  __device__ __forceinline__ void start_tile(const TilePlace& tile) {
    const SourceSpan own = find_spans(p_, tables_, tile, kUnit);
    const int first_channel = p_.load == WindowLoad::kFolded ? 0 : tile.chunk * p_.chunk_channels;
    const int copy = warp_ + kWarps * static_cast<int>(threadIdx.x & 31);
    const int i = copy / p_.raw_channels;
    const int span = min(i, p_.spans - 1);
    channel_ = copy - i * p_.raw_channels;
    const int first = __shfl_sync(0xffffffff, own.first, span);
    const int last = __shfl_sync(0xffffffff, own.last, span);
    const int slot = __shfl_sync(0xffffffff, own.slot, span);
    const int64_t start =
        __shfl_sync(0xffffffff, own.start, span) + (first_channel + channel_) * p_.source_c;
    const int64_t end = (start + last + kUnit - 1) & ~int64_t{kUnit - 1};
    begin_ = (start + first) & ~int64_t{kUnit - 1};
    const bool used = i < p_.spans && first < last;
    bytes_ = used ? static_cast<uint32_t>(end - begin_) * sizeof(Source) : 0;
    slot_ = (channel_ * p_.raw_pitch + slot) * sizeof(Source);
  }

  // channels: how many of the stage's channels there are. The barrier counts each warp once.
  __device__ __forceinline__ void copy(uint32_t stage, uint32_t barrier, int channels) {
    const Source* from = static_cast<const Source*>(p_.source_units) + begin_;
    uint32_t bytes = channel_ < channels ? bytes_ : 0;
    if (bytes > 0 && begin_ + bytes / sizeof(Source) > p_.source_end) {
      // The tensor's last values are fewer than a unit: those are copied one by one.
      bytes -= 16;
      for (int64_t e = bytes / sizeof(Source); begin_ + e < p_.source_end; ++e) {
        store_element(stage + slot_ + static_cast<uint32_t>(e * sizeof(Source)), from[e]);
      }
    }
    const uint32_t total = __reduce_add_sync(0xffffffff, bytes);
    __syncwarp();
    // The barrier must expect bytes before the first of them arrives.
    if ((threadIdx.x & 31) == 0) arrive_expecting(barrier, total);
    __syncwarp();
    if (bytes > 0) bulk_copy(stage + slot_, from, bytes, barrier);
    __syncwarp();
    begin_ += p_.chunk_channels * p_.source_c;  // of the next chunk; aligned alike
  }

 private:
  const WindowParams& p_;
  const WindowTables& tables_;
  const int warp_;
  int64_t begin_ = 0;
  uint32_t bytes_ = 0, slot_ = 0;
  int channel_ = 0;
};

}  // namespace convx
