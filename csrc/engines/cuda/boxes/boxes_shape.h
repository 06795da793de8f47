// Geometry of convolution by TMA boxes.
//
// A tile is a box of target pixels, [images][rows][columns] with up to 128 pixels, by 64, 128, 192
// or 256 filters; or two such boxes by 64 or 128 filters. For channels_last tensors, a flat tile
// may take the place of the box: 128 consecutive pixels of the target's rows and images. TMA brings
// for each tap and each chunk of channels one stage:
//
//     pixels  [box][128 pixels][128 bytes of channels]   the source pixels that the tap reads
//     filters [filters][128 bytes of channels]           the filters of the tap
//
// and the tensor cores accumulate [pixel][filter]. If all filters of a tile fit in shared memory,
// they are loaded once per block. The tensor map applies the stride, fills pixels outside of the
// image and channels and filters past the last one with zeros, and drops stores outside of the
// target.
//
// Where the target's extents are not multiples of a box's, boxes reach outside of it: 100 x 168
// pixels are 136 boxes of 3 x 42, but 131.25 times 128 pixels. Flat tiles leave only the end of the
// last one empty. They need a target whose pixels are equally spaced in memory over all rows and
// images: it is described as one row, of which a tile is a box of 1 x 1 x 128 pixels. Only the
// source keeps its rows and images. TMA reads it in im2col mode, from the tile's first pixel on,
// and goes on to the next row or image where the target does; a tap is an offset of the whole copy.
// The planner takes flat tiles where they are less work than boxes.
//
// 16-bit filters may also be read with the filters contiguous instead of the channels: a
// channels_last weight is [k][tap][c], and in an input gradient c counts the filters. A stage then
// has [filters / 64][64 channels][128 bytes of filters], an N-major operand.
//
// The phases of a strided input gradient share a launch, up to kMaxBoxPhases of them. A tile
// belongs to one phase, which has its own taps and its own tensor map of the target. Phases with
// most taps come first, so that the shortest tiles fill the gaps at the end.
//
// NCHW tensors are supported for 1x1 layers. Consumers transpose a stage as they load fragments
// into registers, and transpose back in the epilogue. There are three forms of stages:
//
//     lines   [line][channel][128 bytes of pixels]   planes of whole 16-byte units: a line is 128
//                                                    bytes of a plane, a tile is 128 pixels
//     images  [image][channel][plane]                small planes such as 7 x 7: a tile is the
//                                                    images that fit in 128 or 256 pixels
//     spans   [channel][span of 16-byte units]       all other planes, such as 17 x 17: a tile is
//                                                    128 pixels of an image, at any alignment
//
// Planes of the last two forms have no TMA boxes. Images are bulk copies, possible because the
// planes of a chunk of channels are contiguous and whole units; past the last channel such a stage
// holds old values, which the fragment loader replaces by zeros. Spans are copied by four producer
// warps, unit by unit, and their epilogue stores whole units, and smaller pieces at both ends.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/arithmetic.h"
#include "core/device_caps.h"
#include "core/gather_view.h"
#include "core/problem.h"
#include "planning/gather_axis.h"
#include "planning/tensor_math.h"

namespace convx {

inline constexpr int kBoxPixels = 128;     // pixels of a tile or a piece, 64 per warpgroup
inline constexpr int kBoxLineBytes = 128;  // bytes of channels per pixel or filter in a stage
inline constexpr int kBoxWords = kBoxLineBytes / 2;  // 16-bit words
inline constexpr int kBoxFilters = 64;    // filters per TMA box; a tile has up to four boxes
inline constexpr int kBoxPieceBytes = 8;  // largest piece of a pixel that a thread stores at once
inline constexpr int kBoxThreads = 384;   // two consumer warpgroups and the producer warpgroup
inline constexpr int kBoxMultipliers = 256;
inline constexpr int kSpanWarps = 4;  // producer warps for spans
inline constexpr int kMaxBoxStages = 8;
inline constexpr int kBoxBarrierBytes = 1024;  // mbarriers and tile indices, padded
inline constexpr int kBoxBiasBytes = 1024;     // bias of a tile's filters, float32
// Alignment of everything that wgmma reads. Dynamic shared memory is aligned to 16 bytes only.
inline constexpr int kBoxAlignment = 1024;

// BoxForm::kLines: pixels per line, and lines per tile.
constexpr int line_pixels(TensorMath math) { return kBoxLineBytes / operand_bytes(math); }
constexpr int tile_lines(TensorMath math) { return kBoxPixels / line_pixels(math); }

constexpr int box_chunk(TensorMath math) { return kBoxLineBytes / operand_bytes(math); }

// BoxForm::kSpans: bytes from one channel to the next in a stage, and from one filter to the next
// in an epilogue buffer. The padding reduces bank conflicts.
constexpr int span_pitch(TensorMath math) {
  return kBoxPixels * operand_bytes(math) + (operand_bytes(math) == 4 ? 32 : 16);
}
constexpr int stored_span_pitch(TensorMath math) { return kBoxPixels * operand_bytes(math) + 16; }

// The layout of the tensors, and the piece that is copied at once.
enum class BoxForm : uint8_t {
  kPixels,  // channels_last: a box of pixels
  kLines,   // NCHW: 128 bytes of the planes of a chunk of channels
  kImages,  // NCHW: the whole planes of a chunk of channels
  kPairs,   // kImages in 16 bits with an even plane: two neighbours are one word
  kSpans,   // NCHW: the 16-byte units that contain a tile's 128 pixels
};
constexpr bool has_whole_planes(BoxForm form) {
  return form == BoxForm::kImages || form == BoxForm::kPairs;
}

// True if TMA reads and stores the tensors through tensor maps.
constexpr bool has_maps(BoxForm form) {
  return form == BoxForm::kPixels || form == BoxForm::kLines;
}

// channels_last tiles of two pieces: a piece is a box of its own, and each consumer warpgroup
// computes and stores one of them. Otherwise each warpgroup has 64 pixels of every piece.
constexpr bool has_own_pieces(BoxForm form, int pieces) {
  return form == BoxForm::kPixels && pieces == 2;
}

// The tiles that kernels are compiled for: pieces of 128 pixels, and filters. The planner chooses
// from these lists, smaller tiles behind larger ones, and boxes_launch.cuh instantiates them. Whole
// planes have only the kernels that pay off: one piece by 64 filters does not amortize the loading
// of fragments, and pairs have larger planes. The accumulators of two pieces by 128 filters fill
// the registers.
struct BoxTileSize {
  int pieces, filters;

  bool operator==(const BoxTileSize&) const = default;
};
inline constexpr BoxTileSize kPixelBoxTiles[] = {{1, 256}, {1, 192}, {1, 128},
                                                 {1, 64},  {2, 128}, {2, 64}};
inline constexpr BoxTileSize kPlaneBoxTiles[] = {{1, 256}, {1, 128}, {1, 64}};  // lines and spans
inline constexpr BoxTileSize kImageBoxTiles[] = {{1, 256}, {1, 128}, {2, 128}, {2, 64}};
inline constexpr BoxTileSize kTf32ImageBoxTiles[] = {{1, 128}, {2, 128}, {2, 64}};
inline constexpr BoxTileSize kPairBoxTiles[] = {{2, 128}, {2, 64}};
inline constexpr int kMostBoxPieces = 2;

template <TensorMath kMath, BoxForm kForm>
constexpr const auto& box_tiles() {
  if constexpr (kForm == BoxForm::kPixels) {
    return kPixelBoxTiles;
  } else if constexpr (kForm == BoxForm::kPairs) {
    return kPairBoxTiles;
  } else if constexpr (kForm != BoxForm::kImages) {
    return kPlaneBoxTiles;
  } else if constexpr (kMath == TensorMath::kTf32) {
    return kTf32ImageBoxTiles;
  } else {
    return kImageBoxTiles;
  }
}

// Operand formats with kernels.
constexpr bool is_box_math(TensorMath math) {
  return math == TensorMath::kTf32 || math == TensorMath::kBFloat16 || math == TensorMath::kFloat16;
}

// Calls visit.operator()<kForm>() for the form, if there are kernels for the format.
template <TensorMath kMath, typename Visit>
decltype(auto) visit_box_form(BoxForm form, const Visit& visit) {
  if (form == BoxForm::kLines) return visit.template operator()<BoxForm::kLines>();
  if (form == BoxForm::kImages) return visit.template operator()<BoxForm::kImages>();
  if (form == BoxForm::kSpans) return visit.template operator()<BoxForm::kSpans>();
  if constexpr (operand_bytes(kMath) == 2) {
    if (form == BoxForm::kPairs) return visit.template operator()<BoxForm::kPairs>();
  }
  return visit.template operator()<BoxForm::kPixels>();
}

// True if there are kernels that read filters as BoxFilters::kColumns. wgmma takes N-major operands
// of 16 bits only.
constexpr bool takes_filter_columns(TensorMath math) { return operand_bytes(math) == 2; }

// Blocks that can share a multiprocessor, given their registers. If two do, one stores while the
// other multiplies.
constexpr int most_boxes_per_sm(int filters, int pieces) { return filters * pieces == 64 ? 2 : 1; }

// Most filters of a tile whose reduction can be split (split-K). The planner splits long reductions
// where there are few tiles, or those of the tiles that would not fill the last wave; a second
// kernel adds the slices in order and runs the epilogue.
constexpr int most_split_filters(BoxForm form) { return form == BoxForm::kPixels ? 256 : 64; }

// Phases of one launch. Each takes 224 bytes of kernel parameters.
inline constexpr int kMaxBoxPhases = 4;

// With own pieces, warpgroup 1 starts a tile when warpgroup 0 has issued the MMAs of this many
// stages of it. So one stores while the other multiplies.
inline constexpr int kBoxLead = 2;

struct PixelBox {
  int columns = 1, rows = 1, images = 1;

  int pixels() const { return columns * rows * images; }
};

// One phase of a launch, and its tiles in an image.
struct BoxPhase : GatherPhase {
  int64_t column_tiles = 1, row_tiles = 1;

  int64_t pixels() const { return rows.count * columns.count; }
  int64_t image_tiles() const { return column_tiles * row_tiles; }
};

// Where the caller's filters are read from.
enum class BoxFilters : uint8_t {
  kPacked,   // from a copy, [filter][tap][packed_channels]
  kInPlace,  // a tensor map reads the caller's tensor, whose channels are contiguous
  kColumns,  // the same, but the filters are contiguous (16 bits only)
};

class Text;

struct BoxesShape {
  TensorMath math = TensorMath::kTf32;
  std::vector<BoxPhase> phases;  // by descending number of taps; one where form is not kPixels

  BoxForm form = BoxForm::kPixels;
  int filters = 0;  // per tile: 64, 128, 192 or 256
  int pieces = 1;   // per tile, 128 pixels each, which share the filters
  PixelBox box;     // a tile's pixels; one row of it where an image's pixels are contiguous
  // If not 0, tiles are flat: the distance, in elements, between neighbouring pixels of the target,
  // which is one image with one row of all pixels. box and the numbers of tiles are those of that
  // image; the phase keeps the rows and columns of the problem.
  int64_t flat_pitch = 0;
  int64_t image_tiles = 1, filter_tiles = 1;
  int chunks = 0;  // chunks of channels
  int parts = 1;   // split-K slices of a tile; the last one may have fewer steps
  // If parts > 1: tiles whose reductions are not split, a multiple of the grid. Only the others,
  // which would not fill the last wave, are split; all of them are if it is 0.
  int64_t whole_tiles = 0;
  bool resident = false;  // filters are loaded once per block; stages hold pixels only
  int stages = 0, stage_bytes = 0;
  int pixel_bytes = 0;    // bytes of a stage's pixels
  int staging_bytes = 0;  // bytes of each of the two epilogue buffers, see boxes_store.cuh
  int filters_offset = 0, ring_offset = 0;  // byte offsets in shared memory
  // Filters that do not start at a multiple of 16 bytes are packed in any case.
  BoxFilters filter_order = BoxFilters::kPacked;
  // If true, TMA stores the target. If false, the consumer warps store it: in pieces of row_piece
  // values (up to 8 bytes) where a box is one row; in 16-byte units (dense_target) where the 16-bit
  // filters of all pixels are contiguous and fit in one slice; value by value otherwise.
  bool boxed_target = true;
  int row_piece = 0;
  bool dense_target = false;
  int64_t packed_channels = 0, packed_bytes = 0;
  int grid = 1;
  // If true, a block takes the next tile that no other block has taken (TileOrder). The
  // workspace has one counter per tile kind.
  bool in_turn = false;
  int64_t taken_offset = 0, sums_offset = 0, workspace_bytes = 0;
  int shared_bytes = 0;
  double microseconds = 0;

  // Taps of all phases.
  int64_t taps() const {
    int64_t taps = 0;
    for (const BoxPhase& phase : phases) taps += phase.taps();
    return taps;
  }
  // NCHW: pixels of a plane.
  int64_t plane_pixels() const { return phases[0].pixels(); }
  // Boxes of pixels of a tile: a piece of whole planes is not a box of its own.
  int tile_boxes() const { return has_own_pieces(form, pieces) ? pieces : 1; }
  int64_t phase_tiles(const BoxPhase& phase) const {
    return ceil_div(phase.image_tiles() * image_tiles, int64_t{tile_boxes()}) * filter_tiles;
  }
  int64_t tiles() const {
    int64_t tiles = 0;
    for (const BoxPhase& phase : phases) tiles += phase_tiles(phase);
    return tiles;
  }
  // Steps of the reduction, each one chunk of one tap; those of the phase with most taps.
  int64_t steps() const { return phases[0].taps() * chunks; }
  // Tiles whose reductions are split: those from whole_tiles on.
  int64_t split_tiles() const { return parts > 1 ? tiles() - whole_tiles : 0; }
  // Work items: whole tiles, and split-K slices of the others.
  int64_t items() const { return tiles() + split_tiles() * (parts - 1); }
  // Steps of a split-K slice.
  int64_t part_steps() const { return ceil_div(steps(), parts); }
  // True if kBoxLead applies. The ring then holds stages of at most two tiles, so that warpgroup 0
  // cannot be two tiles ahead.
  bool is_staggered() const {
    return tile_boxes() > 1 && phases.back().taps() * chunks - (parts - 1) * part_steps() >= stages;
  }
  // Bytes of one split-K slice of a tile: float32 accumulators in register order.
  int64_t sums_bytes() const { return int64_t{pieces} * kBoxPixels * filters * 4; }
  // With resident filters a block takes only tiles with its own filters, so there is one kind of
  // tile per filter tile.
  int64_t tile_kinds() const { return resident ? filter_tiles : 1; }

  void describe(Text& out) const;
};

// The form in which a problem's tensors can be copied, if there is one.
std::optional<BoxForm> find_box_form(const ConvProblem& problem);

// Constraints for tests and variants. The planner chooses filters, pieces and parts that are 0, and
// resident, in_turn and flat if they are -1.
struct BoxesWish {
  int filters = 0;
  int resident = -1;
  int pieces = 0;
  int in_turn = -1;
  int parts = 0;
  int flat = -1;
};

// Predicted microseconds of a launch (boxes_cost.cpp). blocks: blocks per multiprocessor.
double predict_boxes(const ConvProblem& problem, const GatherTensors& view, const DeviceCaps& caps,
                     const BoxesShape& shape, int blocks);

// Without a search, a time that no plan of channels_last pixels is predicted to beat.
double bound_pixel_boxes(const ConvProblem& problem, const DeviceCaps& caps);

// The phases of a problem, by launch.
std::vector<std::vector<BoxPhase>> find_box_phases(const ConvProblem& problem);

// The shape with the smallest prediction for one launch; filters is 0 if the wish cannot be met.
BoxesShape fit_boxes_shape(const ConvProblem& problem, const DeviceCaps& caps,
                           const std::vector<BoxPhase>& phases, const BoxesWish& wish = {});

}  // namespace convx
