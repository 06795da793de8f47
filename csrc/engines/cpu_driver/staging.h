// Staging: the part of a source tensor that one task needs, copied once into dense scratch memory
// in the accumulate type, zeros where it leaves the image, so that every tap of every target pixel
// is a plain unit-stride load.
//
// Staged layout of one block of channels, in elements:
//   staged[channel][column segment][row][column]     rows `pitch` apart, channels `plane` apart
// Along each axis, source positions that differ by a multiple of the source step and are reached
// by neighbouring taps form a segment, so that stepping the target by one steps the staged
// position by one, whatever the step and the dilation.
#pragma once

#include <cstdint>
#include <vector>

#include "core/gather_view.h"
#include "engines/cpu_kernels/cpu_kernels.h"

namespace convx {

struct AxisSegment {
  int64_t start;   // staged position of its first element
  int64_t origin;  // source position of its first element for target lattice index 0
  int64_t length;
};

struct AxisTapPlace {
  int64_t segment;
  int64_t shift;  // position in the segment for target lattice index 0
};

// How the source positions that some taps of a phase need for `extent` lattice points are laid out.
struct AxisLayout {
  int64_t extent = 0;
  int64_t step = 1;
  int64_t length = 0;   // of all segments
  int64_t longest = 0;  // segment
  std::vector<AxisSegment> segments;
  std::vector<AxisTapPlace> taps;
};

AxisLayout lay_out_axis(const AxisPhase& phase, int64_t first_tap, int64_t tap_count,
                        int64_t extent);

// A reduction over channels and taps is cut into boxes of at most this many terms, to bound the
// scratch memory and to keep sums short. A power of two times three suits kernels of 1 and 3.
constexpr int64_t kMaxDepth = 384;

// Extents of a box. Boxes cut kernels only when a box has one channel, and kernel rows only when it
// has one of those, so terms of a box are neighbours in the order (channel, kernel row, column).
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

// Calls visit(block) for the boxes of a reduction in its order. channel_end bounds the channels.
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

// The target lattice points one task works on.
struct LatticeChunk {
  int64_t row, rows;
  int64_t column, columns;
};

// A staged block of channels: where it came from and how it is addressed.
struct StagedShape {
  const AxisLayout* row_layout;
  const AxisLayout* column_layout;
  int64_t pitch;
  int64_t plane;
};

StagedShape make_staged_shape(const AxisLayout& rows, const AxisLayout& columns, int64_t pitch);

// Elements behind the staged data that vector loads may touch; they are staged as zeros.
constexpr int64_t kStagingSlack = kMaxTileColumns;

// The most elements a staged block takes, slack included. A pitch of 0 means the tightest one.
int64_t count_staged(const AxisLayouts& rows, const AxisLayouts& columns, int64_t channels,
                     int64_t pitch);

// Where the source lies: the plane of the first channel to be staged.
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

// offsets[k] = staged position of term k of the block for lattice point (0, 0) of the chunk.
void fill_tap_offsets(const StagedShape& shape, int64_t channels, int32_t* offsets);

}  // namespace convx
