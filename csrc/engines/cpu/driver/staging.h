// Staging copies the part of a source tensor that one task needs into dense scratch memory, once
// and in the accumulation type, with zeros outside the image. Every tap of every target pixel is
// then a plain unit-stride load.
//
// Staged layout of one block of channels, with `pitch` elements between rows and `plane` elements
// between channels:
//   staged[channel][column segment][row][column]
// Along each axis, source positions that differ by a multiple of the source step and are reached by
// neighbouring taps form a segment. Stepping the target by one then steps the staged position by
// one, whatever the step and the dilation.
#pragma once

#include <cstdint>
#include <vector>

#include "core/gather_view.h"
#include "engines/cpu/kernels/cpu_kernels.h"

namespace convx {

struct AxisSegment {
  int64_t start;   // staged position of its first element
  int64_t origin;  // source position of its first element, for target lattice index 0
  int64_t length;
};

struct AxisTapPlace {
  int64_t segment;
  int64_t shift;  // position in the segment, for target lattice index 0
};

// The layout of the source positions that some taps of a phase need for `extent` lattice points.
struct AxisLayout {
  int64_t extent = 0;
  int64_t step = 1;
  int64_t length = 0;   // total length of the segments
  int64_t longest = 0;  // longest segment
  std::vector<AxisSegment> segments;
  std::vector<AxisTapPlace> taps;
};

AxisLayout lay_out_axis(const AxisPhase& phase, int64_t first_tap, int64_t tap_count,
                        int64_t extent);

// A reduction over channels and taps is cut into boxes of at most this many terms, which bounds the
// scratch memory and keeps accumulation chains short. 3 * 2^7 suits kernels of width 1 and 3.
constexpr int64_t kMaxDepth = 384;

// Extents of a box. A box splits the kernel only if it has one channel, and kernel rows only if it
// has one row, so its terms are contiguous in the order (channel, kernel row, kernel column).
struct DepthBox {
  int64_t channels = 1;
  int64_t rows = 1;
  int64_t columns = 1;
};

DepthBox fit_depth_box(int64_t channels, int64_t rows, int64_t columns, int64_t max_depth);

struct DepthBlock {
  int64_t channel, channels;
  int64_t row, rows;  // taps
  int64_t column, columns;
  int64_t depth() const { return channels * rows * columns; }
};

// Calls visit(block) for the boxes of a reduction, in order. channel_end bounds the channels.
template <typename Visit>
void for_each_depth_block(const DepthBox& box, int64_t channel_begin, int64_t channel_end,
                          int64_t rows, int64_t columns, const Visit& visit) {
  for (int64_t c = channel_begin; c < channel_end; c += box.channels) {
    for (int64_t r = 0; r < rows; r += box.rows) {
      for (int64_t s = 0; s < columns; s += box.columns) {
        auto least = [](int64_t a, int64_t b) { return a < b ? a : b; };
        visit(DepthBlock{c, least(box.channels, channel_end - c), r, least(box.rows, rows - r), s,
                         least(box.columns, columns - s)});
      }
    }
  }
}

// The layouts of one axis: [phase][tap block].
using AxisLayouts = std::vector<std::vector<AxisLayout>>;
AxisLayouts lay_out_phases(const std::vector<AxisPhase>& phases, int64_t taps_per_block,
                           int64_t extent);

// The target lattice points of one task.
struct LatticeChunk {
  int64_t row, rows;
  int64_t column, columns;
};

// A staged block of channels: its layouts and its strides.
struct StagedShape {
  const AxisLayout* row_layout;
  const AxisLayout* column_layout;
  int64_t pitch;
  int64_t plane;
};

StagedShape make_staged_shape(const AxisLayout& rows, const AxisLayout& columns, int64_t pitch);

// Elements behind the staged data that vector loads may touch. They are staged as zeros.
constexpr int64_t kStagingSlack = kMaxTileColumns;

// The most elements that a staged block takes, including slack. A pitch of 0 means the smallest.
int64_t count_staged(const AxisLayouts& rows, const AxisLayouts& columns, int64_t channels,
                     int64_t pitch);

// The source, starting with the plane of the first staged channel.
struct SourcePlanes {
  const char* data;
  int64_t element_bytes;
  int64_t height, width;
  int64_t channel_stride, row_stride, column_stride;
};

template <typename Acc>
void stage_channels(const CpuKernels<Acc>& kernels, const SourcePlanes& source,
                    const StagedShape& shape, const LatticeChunk& chunk, int64_t channels,
                    Acc* staged);

// offsets[k] is the staged position of term k of the block, for lattice point (0, 0) of the chunk.
void fill_tap_offsets(const StagedShape& shape, int64_t channels, int32_t* offsets);

}  // namespace convx
