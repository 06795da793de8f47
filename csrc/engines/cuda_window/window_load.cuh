// Fills a tile of positions: source values, through registers, as [position][channels].
#pragma once

#include <climits>

#include "device/warp_roles.cuh"
#include "engines/cuda_window/window_spans.cuh"

namespace convx {

constexpr int kNoSource = -1;  // outside the image

// Walks over a tile's positions, some at a time. Stepping is cheaper than locating each anew.
class PositionWalk {
 public:
  __device__ __forceinline__ PositionWalk(const WindowParams& p, const WindowTables& tables,
                                          const TilePlace& tile, int first)
      : p_(p), tables_(tables), start_(tile.first), segment_(0), within_(first) {
    settle();
  }

  __device__ __forceinline__ void advance(int positions) {
    within_ += positions;
    if (within_ >= p_.segment_length) return settle();
    point_.column += positions;
    while (point_.column >= p_.pitch) {
      point_.column -= p_.pitch;
      if (++point_.row < p_.rows) continue;
      point_.row = 0;
      if (++point_.strip < p_.strips) continue;
      point_.strip = 0;
      ++point_.image;
    }
  }

  __device__ __forceinline__ int segment() const { return segment_; }

  // Image, row and column of the position's source, maybe outside.
  __device__ __forceinline__ LinePoint source() const {
    LinePoint source = point_;
    source.row = (point_.row + p_.row_base) * p_.source_step_h + place_.row_phase;
    source.column =
        (point_.strip * p_.strip_columns + point_.column + p_.column_base) * p_.source_step_w +
        place_.column_phase;
    return source;
  }

 private:
  __device__ __forceinline__ void settle() {
    const int segments = p_.by_segment_length.divide(within_);
    within_ -= segments * p_.segment_length;
    segment_ = min(segment_ + segments, p_.segments - 1);
    place_ = tables_.segments[segment_];
    point_ = locate_position(p_, start_ + place_.shift + within_);
  }

  const WindowParams& p_;
  const WindowTables& tables_;
  const int start_;
  int segment_, within_;
  WindowSegment place_;
  LinePoint point_;
};

// Loads chunks of channels, by kThreads threads of which this is thread. A tile's sources are
// looked up once, for all its chunks; position q's entry is
//   kStaged  {element of a channel's row of a stage, misalignment of its span}
//   kPlanes  {offset or kNoSource, -}
//   kFolded  {element as in kStaged, row << 16 | column, or INT_MIN if there is no target}
// Where planes are staged, threads read the entries they wrote themselves.
template <TensorMath kMath, int kThreads, int kBatch>
class WindowLoader {
  using Unit = WindowUnit<kMath>;
  using Source = typename Unit::Source;

 public:
  __device__ __forceinline__ WindowLoader(const WindowParams& p, const WindowTables& tables,
                                          int thread)
      : p_(p), tables_(tables), thread_(thread) {}

  // Called by all threads before the first chunk of a tile.
  __device__ __forceinline__ void start_tile(const TilePlace& tile) {
    first_ = locate_position(p_, tile.first);
    source_ = static_cast<const Source*>(p_.source) + first_.image * p_.source_n +
              static_cast<int64_t>(tile.group) * p_.group_sources * p_.source_c;
    if (p_.raw_stages > 0) return find_staged(tile);
    synchronise();  // the tile before may still be looked up
    PositionWalk walk(p_, tables_, tile, thread_);
    for (int q = thread_; q < p_.positions; q += kThreads, walk.advance(kThreads)) {
      const LinePoint point = walk.source();
      const int offset = (point.image - first_.image) * static_cast<int>(p_.source_n) +
                         point.row * static_cast<int>(p_.source_h) +
                         point.column * static_cast<int>(p_.source_w);
      tables_.sources[q] = make_int2(is_inside(point) ? offset : kNoSource, 0);
    }
    synchronise();
  }

  // raw: the stage of copied planes, where they are staged.
  __device__ __forceinline__ void load_chunk(uint32_t tile, uint32_t raw, int chunk) {
    switch (p_.load) {
      case WindowLoad::kStaged:
        return p_.source_c % (16 / static_cast<int>(sizeof(Source))) == 0
                   ? turn_planes<false>(tile, raw, chunk)
                   : turn_planes<true>(tile, raw, chunk);
      case WindowLoad::kPlanes:
        return load_planes(tile, chunk);
      case WindowLoad::kFolded:
        return fold_planes(tile, raw, chunk);
    }
  }

  // A barrier of the threads that load.
  __device__ __forceinline__ void synchronise() { wait_at_barrier<2, kThreads>(); }

 private:
  __device__ __forceinline__ bool is_inside(const LinePoint& source) const {
    return source.image < p_.images &&
           static_cast<unsigned>(source.row) < static_cast<unsigned>(p_.source_height) &&
           static_cast<unsigned>(source.column) < static_cast<unsigned>(p_.source_width);
  }

  __device__ __forceinline__ void find_staged(const TilePlace& tile) {
    constexpr int kUnit = 16 / sizeof(Source);
    const SourceSpan own = find_spans(p_, tables_, tile, kUnit);
    const int misaligned = static_cast<int>((own.start + own.first) & (kUnit - 1));
    PositionWalk walk(p_, tables_, tile, thread_);
    for (int q0 = thread_ & ~31; q0 < p_.positions; q0 += kThreads, walk.advance(kThreads)) {
      const int q = q0 + (thread_ & 31);
      const LinePoint point = walk.source();
      const int segment = p_.by_kernel_rows ? walk.segment() : 0;  // phases share spans
      const int begin = tile.first + tables_.segments[segment].shift;
      const int image = point.image - p_.by_images.divide(begin);
      const int span = segment * p_.span_images + min(image, p_.span_images - 1);
      const int first = __shfl_sync(0xffffffff, own.first, span);
      const int last = __shfl_sync(0xffffffff, own.last, span);
      const int slot = __shfl_sync(0xffffffff, own.slot, span);
      const int shift = __shfl_sync(0xffffffff, misaligned, span);
      const int element = point.row * p_.source_width + point.column;
      if (p_.load == WindowLoad::kFolded) {  // taps look beyond the image on their own
        const bool some = point.image < p_.images && q < p_.positions;
        if (q < p_.positions) {
          tables_.sources[q] = make_int2(slot + element - first + shift,
                                         some ? (point.row << 16) | point.column : INT_MIN);
        }
        continue;
      }
      const bool staged =
          is_inside(point) && image < p_.span_images && element >= first && element < last;
      if (q < p_.positions) {
        tables_.sources[q] =
            staged ? make_int2(slot + element - first, shift) : make_int2(0, 0);  // the zeros
      }
    }
    __syncwarp();
  }

  // From rows of channels to channels of positions, shared memory to shared memory.
  template <bool kMisaligned>
  __device__ __forceinline__ void turn_planes(uint32_t tile, uint32_t raw, int chunk) {
    constexpr int kUnit = 16 / sizeof(Source);
    const int first_channel = chunk * p_.chunk_channels;
    const int units = p_.lane_bytes / Unit::kBytes;
    const uint32_t row_bytes = p_.raw_pitch * sizeof(Source);
    const int channel_shift = static_cast<int>(p_.source_c & (kUnit - 1));
#pragma unroll 1
    for (int q0 = thread_; q0 < p_.positions; q0 += kThreads * kBatch) {
      uint32_t from[kBatch];
      int shift[kBatch];
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        // A thread may look at its own entries only: others may not have been written yet.
        const int q = q0 + u * kThreads;
        const int2 entry = tables_.sources[q < p_.positions ? q : q0];
        from[u] = raw + entry.x * sizeof(Source);
        // Of channel first_channel; start_tile's is of channel 0.
        shift[u] = entry.y + first_channel * channel_shift;
        if (!kMisaligned) from[u] += entry.y * sizeof(Source);
      }
#pragma unroll 1
      for (int unit = 0; unit < units; ++unit) {
        const int left = p_.channels - first_channel - unit * 8;
        Source values[kBatch][8];
#pragma unroll
        for (int c = 0; c < 8; ++c) {
#pragma unroll
          for (int u = 0; u < kBatch; ++u) {
            uint32_t address = from[u];
            if (kMisaligned) {
              address += ((shift[u] + c * channel_shift) & (kUnit - 1)) * sizeof(Source);
            }
            values[u][c] = c < left ? load_element<Source>(address) : Source{};
            from[u] += row_bytes;
          }
        }
        if (kMisaligned) {
#pragma unroll
          for (int u = 0; u < kBatch; ++u) shift[u] += 8 * channel_shift;
        }
#pragma unroll
        for (int u = 0; u < kBatch; ++u) {
          const int q = q0 + u * kThreads;
          if (q < p_.positions) {
            Unit::store(tile, q * p_.lane_bytes + unit * Unit::kBytes, p_.lane_bytes,
                        p_.plane_bytes, values[u]);
          }
        }
      }
    }
  }

  // Neighbouring threads load neighbouring positions of a plane, 8 channels each.
  __device__ __forceinline__ void load_planes(uint32_t tile, int chunk) {
    const int first_channel = chunk * p_.chunk_channels;
    const int count = p_.positions * (p_.lane_bytes / Unit::kBytes);
#pragma unroll 1
    for (int i0 = thread_; i0 < count; i0 += kThreads * kBatch) {
      const Source* from[kBatch];
      int left[kBatch];  // channels there are
      uint32_t place[kBatch];
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        const int i = min(i0 + u * kThreads, count - 1);
        const int unit = p_.by_positions.divide(i);
        const int q = i - unit * p_.positions;
        const int channel = first_channel + unit * 8;
        const int offset = tables_.sources[q].x;
        from[u] = source_ + channel * p_.source_c + offset;
        left[u] = offset == kNoSource ? 0 : p_.channels - channel;
        place[u] = q * p_.lane_bytes + unit * Unit::kBytes;
      }
      Source values[kBatch][8];
#pragma unroll
      for (int c = 0; c < 8; ++c) {
#pragma unroll
        for (int u = 0; u < kBatch; ++u) {
          values[u][c] = c < left[u] ? __ldg(from[u]) : 0;
          from[u] += p_.source_c;
        }
      }
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        if (i0 + u * kThreads < count) {
          Unit::store(tile, place[u], p_.lane_bytes, p_.plane_bytes, values[u]);
        }
      }
    }
  }

  // Every channel is a tap and a source channel, with its own place and bounds.
  __device__ __forceinline__ void fold_planes(uint32_t tile, uint32_t raw, int chunk) {
    const int first_channel = chunk * p_.chunk_channels;
    const int units = p_.lane_bytes / Unit::kBytes;
#pragma unroll 1
    for (int q0 = thread_; q0 < p_.positions; q0 += kThreads * kBatch) {
      uint32_t from[kBatch];
      int rows[kBatch], columns[kBatch];
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        const int q = q0 + u * kThreads;
        const int2 entry = q < p_.positions ? tables_.sources[q] : make_int2(0, INT_MIN);
        from[u] = raw + entry.x * static_cast<int>(sizeof(Source));
        // A row far above the image is outside for every tap.
        rows[u] = entry.y == INT_MIN ? INT_MIN / 2 : entry.y >> 16;
        columns[u] = entry.y & 0xffff;
      }
#pragma unroll 1
      for (int unit = 0; unit < units; ++unit) {
        const int channel = first_channel + unit * 8;
        Source values[kBatch][8];
#pragma unroll
        for (int c = 0; c < 8; ++c) {
          const int2 lane = tables_.lanes[channel + c];
#pragma unroll
          for (int u = 0; u < kBatch; ++u) {
            const int row = rows[u] + (lane.y >> 16);
            const int column = columns[u] + static_cast<short>(lane.y & 0xffff);
            const bool inside =
                static_cast<unsigned>(row) < static_cast<unsigned>(p_.source_height) &&
                static_cast<unsigned>(column) < static_cast<unsigned>(p_.source_width);
            // The stage starts with zeros.
            values[u][c] = load_element<Source>(inside ? from[u] + lane.x : raw);
          }
        }
#pragma unroll
        for (int u = 0; u < kBatch; ++u) {
          const int q = q0 + u * kThreads;
          if (q < p_.positions) {
            Unit::store(tile, q * p_.lane_bytes + unit * Unit::kBytes, p_.lane_bytes,
                        p_.plane_bytes, values[u]);
          }
        }
      }
    }
  }

  const WindowParams& p_;
  const WindowTables& tables_;
  const Source* source_ = nullptr;
  LinePoint first_{};
  int thread_;
};

}  // namespace convx
