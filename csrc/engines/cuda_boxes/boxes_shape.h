// Convolution of channels_last tensors as products of boxes: the geometry.
//
// A tile is a box of target pixels, [images][rows][columns], by some filters. One after the other,
// the copy engine brings for each tap and each chunk of channels
//
//     pixels  [128 pixels][128 bytes of channels]   the box of source pixels that the tap sees
//     filters [filters][128 bytes of channels]      the tap's
//
// and the tensor cores add their product to sums[pixel][filter]. Where all filters of a tile fit in
// shared memory, they come once, for all tiles of a block. The copy engine does what is left
// of a convolution: it takes pixels a stride apart, has zeros for what lies outside of an image and
// behind the last channel or filter, and leaves out what a tile has outside of the target.
//
// 1x1 layers of NCHW tensors are multiplied as well. Their stages are turned on the way through
// registers, as the sums are on theirs to memory. Where planes are whole units of 16 bytes, a tile
// is 128 pixels of a few lines of 128 bytes, each of some plane:
//
//     pixels  [line][channel][128 bytes of pixels]
//
// Other planes have no boxes. But a chunk of an image is one piece of memory, of whole units where
// channels are: of small planes, such as 7 x 7, a tile is as many images as have 128 pixels, or
// 256:
//
//     pixels  [image][channel][plane]               which follow each other without a gap
//
// Behind the last channel such a stage has no zeros: they are put in its place in registers. Of all
// others, such as 17 x 17, a tile is 128 pixels of an image: of each channel, the units of 16 bytes
// that have some of them, in which they begin anywhere. Four warps copy these, unit by unit:
//
//     pixels  [channel][span of units]
//
// Sums leave the same way, by units, and value by value where pixels have only part of one.
#pragma once

#include <cstdint>
#include <optional>

#include "core/arithmetic.h"
#include "core/device_caps.h"
#include "core/problem.h"
#include "engines/gather_axis.h"
#include "engines/tensor_math.h"

namespace convx {

inline constexpr int kBoxPixels = 128;     // of a tile, or of each of its pieces; 64 a warpgroup
inline constexpr int kBoxLineBytes = 128;  // channels of a pixel, or of a filter, in a stage
inline constexpr int kBoxWords = kBoxLineBytes / 2;  // of 16 bits
inline constexpr int kBoxFilters = 64;               // of a box of filters; a tile has up to four
inline constexpr int kBoxPieceBytes = 8;             // of a pixel, that a thread stores at once
inline constexpr int kBoxThreads = 384;  // two warpgroups that multiply, one of which warps copy
inline constexpr int kBoxMultipliers = 256;
inline constexpr int kSpanWarps = 4;  // that copy spans
inline constexpr int kMaxBoxStages = 8;
inline constexpr int kBoxBarrierBytes = 1024;  // and what aligns stages
inline constexpr int kBoxBiasBytes = 1024;     // of a tile's filters, as float32
// Of all that the tensor cores read; a block's memory starts at a multiple of 16 bytes only.
inline constexpr int kBoxAlignment = 1024;

// Of NCHW planes: pixels of a line, and lines of a tile.
constexpr int line_pixels(TensorMath math) { return kBoxLineBytes / operand_bytes(math); }
constexpr int tile_lines(TensorMath math) { return kBoxPixels / line_pixels(math); }

constexpr int box_chunk(TensorMath math) { return kBoxLineBytes / operand_bytes(math); }

// Bytes from a channel's span to the next in a stage, and from a filter's in what is to be stored:
// lanes that read or write at once meet at few banks.
constexpr int span_pitch(TensorMath math) {
  return kBoxPixels * operand_bytes(math) + (operand_bytes(math) == 4 ? 32 : 16);
}
constexpr int stored_span_pitch(TensorMath math) { return kBoxPixels * operand_bytes(math) + 16; }

// How tensors lie, and what of them is copied at once.
enum class BoxForm : uint8_t {
  kPixels,  // channels_last: a box of pixels
  kLines,   // NCHW: 128 bytes of the planes of some channels
  kImages,  // NCHW: the whole planes of some channels
  kPairs,   // the same of 16 bits and an even number of pixels: two neighbours are a word
  kSpans,   // NCHW: all units that have one of 128 pixels
};
constexpr bool has_whole_planes(BoxForm form) {
  return form == BoxForm::kImages || form == BoxForm::kPairs;
}

// What the copy engine reads and stores by maps.
constexpr bool has_maps(BoxForm form) {
  return form == BoxForm::kPixels || form == BoxForm::kLines;
}

// Pieces of a tile, at least and at most. Pairs are of larger planes.
constexpr int fewest_tile_pieces(BoxForm form) { return form == BoxForm::kPairs ? 2 : 1; }
constexpr int most_tile_pieces(BoxForm form) { return has_whole_planes(form) ? 2 : 1; }
// Filters of a tile, the same: 64, 128 or 256. Of images those that are of use have kernels: 64
// filters are not worth the reading of fragments, and the sums of two pieces of 128 fill the
// registers.
constexpr int fewest_tile_filters(BoxForm form, int pieces) {
  return form == BoxForm::kImages && pieces == 1 ? 128 : 64;
}
constexpr int most_tile_filters(BoxForm form, TensorMath math, int pieces) {
  return has_whole_planes(form) && (math == TensorMath::kTf32 || pieces > 1) ? 128 : 256;
}

// Blocks that can share a multiprocessor, for their registers: then one stores while the other
// multiplies.
constexpr int most_boxes_per_sm(int filters, int pieces) { return filters * pieces == 64 ? 2 : 1; }

// Tiles of so many filters may have their reduction cut into parts, where there are few of them and
// many channels. A kernel adds the parts in order, and stores.
constexpr int kPartFilters = 64;

struct PixelBox {
  int columns = 1, rows = 1, images = 1;

  int pixels() const { return columns * rows * images; }
};

struct BoxesShape {
  TensorMath math = TensorMath::kTf32;
  GatherAxis rows_axis, columns_axis;

  BoxForm form = BoxForm::kPixels;
  int filters = 0;  // of a tile: 64, 128 or 256
  int pieces = 1;   // of 128 pixels, of a tile; their sums are computed together
  PixelBox box;     // of a tile; an image's pixels are one row of it where they lie so
  int64_t column_tiles = 1, row_tiles = 1, image_tiles = 1, filter_tiles = 1;
  int chunks = 0;         // of channels
  int parts = 1;          // of the reduction: as many chunks each, or fewer
  bool resident = false;  // filters stay, and stages have pixels only
  int stages = 0, stage_bytes = 0;
  // A stage's pixels; and what sums leave through, two of these in turn: 128 bytes of filters of
  // all of a tile's pixels.
  int pixel_bytes = 0;
  int filters_offset = 0, ring_offset = 0;  // in shared memory
  // The caller's filters can be read by boxes, if they start at a multiple of 16 bytes. Else they
  // are packed: [filter][tap][packed_channels].
  bool filters_in_place = false;
  // Else the multiplying warps store: where a box is one row, by pieces of so many values, up to 8
  // bytes; where all filters of all pixels, of 16 bits, follow each other and are a slice, by 16
  // bytes; and value by value where a box has several rows.
  bool boxed_target = true;
  int row_piece = 0;
  bool dense_target = false;
  int64_t packed_channels = 0, packed_bytes = 0;
  int grid = 1;
  // Blocks take the first tile that none has taken, see boxes_order.cuh: in the workspace it is
  // counted for each kind how many have been.
  bool in_turn = false;
  int64_t taken_offset = 0, sums_offset = 0, workspace_bytes = 0;
  int shared_bytes = 0;
  double microseconds = 0;

  int64_t taps() const { return rows_axis.taps * columns_axis.taps; }
  int64_t plane_pixels() const { return rows_axis.count * columns_axis.count; }
  int64_t tiles() const { return column_tiles * row_tiles * image_tiles * filter_tiles; }
  int64_t part_chunks() const { return ceil_div(chunks, parts); }
  // A part's sums of a tile, float32, as registers have them.
  int64_t sums_bytes() const { return int64_t{pieces} * kBoxPixels * filters * 4; }
  // A block whose filters stay takes tiles of these filters only.
  int64_t tile_kinds() const { return resident ? filter_tiles : 1; }
};

// How a problem's tensors can be moved, if at all.
std::optional<BoxForm> find_box_form(const ConvProblem& problem);

// What a shape shall be like, for tests; 0 or less: as is best.
struct BoxesWish {
  int filters = 0;
  int resident = -1;
  int pieces = 0;
  int in_turn = -1;
  int parts = 0;
};

// The best shape for a phase.
BoxesShape fit_boxes_shape(const ConvProblem& problem, const DeviceCaps& caps,
                           const GatherPhase& phase, const BoxesWish& wish = {});

}  // namespace convx
