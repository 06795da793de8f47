#include "engines/cuda_boxes/boxes_shape.h"

#include <algorithm>
#include <cmath>

#include "core/arithmetic.h"
#include "engines/box_tensors.h"
#include "engines/cuda_staging.h"
#include "engines/dense_pixels.h"
#include "engines/device_rates.h"

namespace convx {
namespace {

// Cycles of a multiprocessor, fitted to 780 timings on an H200 of 16 bits, and to 490 of TF32: all
// tiles of 59 layers of 1x1 and of a dozen of 3x3 kernels, within 13 and 11% (rms); what is chosen
// by them is 3 and 1% slower than the best.
constexpr double kBoxClockGhz = 1.7;
// Times what the tensor cores take by their data sheet.
constexpr double kProductRate = 0.80;
constexpr double kLineProductRate = 1.0;
constexpr double kStageCycles = 195;  // waiting for a stage, and giving it back
constexpr double kTileCycles = 665;   // starting and draining a tile's products
constexpr double kSliceCycles = 600;  // storing 128 bytes of filters of a tile
constexpr double kTf32SliceCycles = 530;
// The same by the multiplying warps, which other blocks wait for: value by value; along a row, of
// 16 bits by pieces or by values, and of TF32; by units of 16 bytes.
constexpr double kValueSliceCycles = 3500;
constexpr double kRowSliceCycles = 1700, kRowValueSliceCycles = 2300, kTf32RowSliceCycles = 1350;
constexpr double kUnitSliceCycles = 1000;
// Of the copy engine: for a box, for each of its lines, and for lines that end within 128 bytes.
constexpr double kBoxCycles = 49;
constexpr double kLineCycles = 2.1;
constexpr double kPartPixelCycles = 6.8;
constexpr double kPartFilterCycles = 12.3;
constexpr double kPartStoreCycles = 2.9;
constexpr double kResidentLineCycles = 3.5;  // of filters that stay
// Bytes per cycle: of device memory, and of pixels that other filters have read before, from L2.
constexpr double kMemoryBytes = 18.2;
constexpr double kTf32MemoryBytes = 19;
constexpr double kTurnMemoryBytes = 20.4;  // of 16 bits, where blocks take tiles in turn
constexpr double kCacheBytes = 83;
constexpr double kLaunchCycles = 4070;
constexpr double kTurnCycles = 1700;  // a kernel before it, which clears what is counted
constexpr int64_t kManyTiles = 32;    // of a block, for which that pays
// NCHW takes such a share of it, and some microseconds more.
struct FormCost {
  double share, microseconds;
};
constexpr FormCost kLineCost{0.96, 0.8};
constexpr FormCost kImageCost{1, 0.3}, kTf32ImageCost{0.9, 2};
// Whole planes are read value by value, so many cycles for a piece of a stage. That overlaps with
// its products, if not wholly. Fitted to 150 timings of 25 layers.
constexpr double kFragmentCycles = 330, kPairFragmentCycles = 150, kTf32FragmentCycles = 300;
constexpr double kFragmentOverlap = 1.5;
constexpr double kImageLatencyCycles = 4000;  // from a stage that is free to the same one full
constexpr double kPackMicroseconds = 2.3;
constexpr double kPackBytesPerUs = 0.83e6;

constexpr int64_t kReservedBytes = 1024;  // of each block's shared memory, by the system

class Fitter {
 public:
  Fitter(const ConvProblem& problem, const DeviceCaps& caps, const GatherPhase& phase)
      : problem_(problem), caps_(caps), view_(make_gather_tensors(problem)) {
    shape_.math = tensor_math(problem);
    shape_.rows_axis = phase.rows;
    shape_.columns_axis = phase.columns;
    shape_.chunks = static_cast<int>(ceil_div(view_.source_channels, box_chunk(shape_.math)));
    // A problem's only pixel may have lost its pitch, which says nothing.
    shape_.form = find_box_form(problem).value_or(BoxForm::kPixels);
    shape_.boxed_target =
        shape_.form != BoxForm::kPixels ||
        has_boxes(view_.target_strides, view_.target_channels, size_of(problem.dtype));
    const bool one_row = problem.N == 1 && phase.rows.count == 1;
    const int64_t pixel_pitch = phase.columns.target_step * view_.target_strides.w;
    if (one_row) {
      const int64_t size = size_of(problem.dtype);
      shape_.row_piece = std::min(fit_unit(size, pixel_pitch, view_.target_channels),
                                  kBoxPieceBytes / static_cast<int>(size));
    }
    shape_.dense_target = !shape_.boxed_target && !is_tf32() && one_row &&
                          pixel_pitch == view_.target_channels &&
                          view_.target_channels <= box_chunk(shape_.math);
    find_filters();
  }

  BoxesShape fit(const BoxesWish& wish) const {
    BoxesShape best;
    for (int pieces = fewest_tile_pieces(shape_.form); pieces <= most_tile_pieces(shape_.form);
         ++pieces) {
      if (wish.pieces > 0 && pieces != wish.pieces) continue;
      BoxesShape shape = shape_;
      shape.pieces = pieces;
      if (find_tiles(shape)) take_best(shape, wish, best);
    }
    return best;
  }

 private:
  // Of all tiles of so many pixels.
  void take_best(const BoxesShape& tiles, const BoxesWish& wish, BoxesShape& best) const {
    const int fewest = fewest_tile_filters(tiles.form, tiles.pieces);
    const int most = most_tile_filters(tiles.form, tiles.math, tiles.pieces);
    for (int filters = fewest; filters <= most; filters *= 2) {
      const bool too_many = filters > fewest && filters / 2 >= view_.target_channels;
      if (wish.filters > 0 ? filters != wish.filters : too_many) continue;
      for (const bool resident : {true, false}) {
        if (wish.resident >= 0 && resident != (wish.resident > 0)) continue;
        for (int blocks = most_boxes_per_sm(filters, tiles.pieces); blocks > 0; --blocks) {
          BoxesShape shape = tiles;
          shape.filters = filters;
          shape.resident = resident;
          shape.filter_tiles = ceil_div(view_.target_channels, filters);
          if (!place_in_shared_memory(shape, blocks)) continue;
          find_grid(shape, blocks);
          shape.in_turn =
              wish.in_turn >= 0 ? wish.in_turn > 0 : shape.tiles() >= kManyTiles * shape.grid;
          shape.microseconds = predict_microseconds(shape, blocks);
          if (best.filters == 0 || shape.microseconds < best.microseconds) best = shape;
        }
      }
    }
  }

  void find_filters() {
    const GatherAxis &rows = shape_.rows_axis, &columns = shape_.columns_axis;
    const int64_t unit = 16 / size_of(problem_.dtype);
    const auto lies_well = [&](int64_t taps, int64_t step, int64_t stride) {
      return taps == 1 || (step > 0 && stride % unit == 0);
    };
    const int64_t first_tap =
        rows.tap0 * problem_.w_strides.h + columns.tap0 * problem_.w_strides.w;
    shape_.filters_in_place = view_.weight_source_stride == 1 &&
                              view_.weight_target_stride % unit == 0 && first_tap % unit == 0 &&
                              lies_well(rows.taps, rows.tap_step, problem_.w_strides.h) &&
                              lies_well(columns.taps, columns.tap_step, problem_.w_strides.w);
    shape_.packed_channels = round_up(view_.source_channels, unit);
    // Also where they may be in place: that depends on where they start.
    shape_.packed_bytes =
        view_.target_channels * count_taps() * shape_.packed_channels * size_of(problem_.dtype);
    constexpr auto kCountBytes = static_cast<int64_t>(sizeof(int));
    shape_.taken_offset = round_up(shape_.packed_bytes, kCountBytes);
    shape_.workspace_bytes =
        shape_.taken_offset + kCountBytes * ceil_div(view_.target_channels, kBoxFilters);
  }

  int64_t count_taps() const { return shape_.rows_axis.taps * shape_.columns_axis.taps; }

  // False if a tile of so many pieces is too small, or larger than it has to be.
  bool find_tiles(BoxesShape& shape) const {
    if (has_whole_planes(shape.form)) return gather_images(shape);
    if (shape.form == BoxForm::kLines) {
      cut_lines(shape);
    } else {
      choose_box(shape);
    }
    shape.pixel_bytes = kBoxPixels * kBoxLineBytes;
    return true;
  }

  // The fewest tiles; of those the widest box.
  void choose_box(BoxesShape& shape) const {
    const int64_t columns = shape_.columns_axis.count, rows = shape_.rows_axis.count;
    const auto most = [](int64_t count, int64_t room, int64_t step) {
      return std::min({count, room, (kMaxBoxSpan - 1) / step + 1});
    };
    int64_t fewest = 0;
    for (int64_t wide = most(columns, kBoxPixels, shape_.columns_axis.source_step); wide > 0;
         --wide) {
      for (int64_t high = most(rows, kBoxPixels / wide, shape_.rows_axis.source_step); high > 0;
           --high) {
        const int64_t deep = std::min(problem_.N, kBoxPixels / (wide * high));
        const int64_t tiles[] = {ceil_div(columns, wide), ceil_div(rows, high),
                                 ceil_div(problem_.N, deep)};
        const int64_t all = tiles[0] * tiles[1] * tiles[2];
        if (fewest > 0 && all >= fewest) continue;
        fewest = all;
        shape.box = {static_cast<int>(wide), static_cast<int>(high), static_cast<int>(deep)};
        shape.column_tiles = tiles[0], shape.row_tiles = tiles[1], shape.image_tiles = tiles[2];
      }
    }
  }

  int64_t count_plane_pixels() const { return shape_.rows_axis.count * shape_.columns_axis.count; }

  void cut_lines(BoxesShape& shape) const {
    const int64_t lines = problem_.N * ceil_div(count_plane_pixels(), line_pixels(shape.math));
    shape.box = {kBoxPixels, 1, 1};
    shape.column_tiles = ceil_div(lines, tile_lines(shape.math));
  }

  bool gather_images(BoxesShape& shape) const {
    const int64_t plane = count_plane_pixels();
    const int64_t images = std::min(problem_.N, shape.pieces * kBoxPixels / plane);
    const bool has_fewer = shape.pieces > fewest_tile_pieces(shape.form);
    if (images == 0 || (has_fewer && images * plane <= (shape.pieces - 1) * kBoxPixels)) {
      return false;
    }
    shape.box = {static_cast<int>(plane), 1, static_cast<int>(images)};
    shape.image_tiles = ceil_div(problem_.N, images);
    shape.pixel_bytes = static_cast<int>(round_up(images * plane * kBoxLineBytes, kBoxAlignment));
    return true;
  }

  // For so many blocks of a multiprocessor; false if less than two stages fit.
  bool place_in_shared_memory(BoxesShape& shape, int blocks) const {
    const int64_t all = (caps_.shared_bytes_per_block + kReservedBytes) / blocks - kReservedBytes;
    const int64_t filter_bytes = int64_t{shape.filters} * kBoxLineBytes;
    const int64_t resident = shape.resident ? count_taps() * shape.chunks * filter_bytes : 0;
    const int64_t offset = kBoxBarrierBytes + kBoxBiasBytes + 2 * shape.pixel_bytes;
    const int64_t stage_bytes = shape.pixel_bytes + (shape.resident ? 0 : filter_bytes);
    const int64_t room = all - kBoxAlignment - offset - resident;
    if (room < 2 * stage_bytes) return false;
    shape.filters_offset = static_cast<int>(offset);
    shape.ring_offset = static_cast<int>(offset + resident);
    shape.stage_bytes = static_cast<int>(stage_bytes);
    shape.stages = static_cast<int>(std::min<int64_t>(room / stage_bytes, kMaxBoxStages));
    shape.shared_bytes =
        static_cast<int>(kBoxAlignment + shape.ring_offset + shape.stages * stage_bytes);
    return true;
  }

  // Blocks keep their filters if the grid is a multiple of all filter tiles.
  void find_grid(BoxesShape& shape, int blocks) const {
    const int64_t slots = int64_t{std::max(1, caps_.sm_count)} * blocks;
    const int64_t pixel_tiles = shape.tiles() / shape.filter_tiles;
    const int64_t grid =
        shape.resident
            ? shape.filter_tiles * std::clamp<int64_t>(slots / shape.filter_tiles, 1, pixel_tiles)
            : std::min(slots, shape.tiles());
    shape.grid = static_cast<int>(grid);
  }

  bool is_tf32() const { return shape_.math == TensorMath::kTf32; }

  // What the copy engine takes for a tile.
  double count_copy_cycles(const BoxesShape& shape) const {
    if (shape.form != BoxForm::kPixels) return count_plane_copy_cycles(shape);
    const int64_t channel_bytes = view_.source_channels * operand_bytes(shape.math);
    const auto stages = static_cast<double>(count_taps() * shape.chunks);
    const double part_stages =
        channel_bytes % kBoxLineBytes == 0 ? 0 : static_cast<double>(count_taps());
    const double whole_stages = stages - part_stages;
    const int64_t of_tile = ceil_div(view_.target_channels, shape.filter_tiles);  // on average
    const auto boxes = static_cast<double>(shape.resident ? 0 : ceil_div(of_tile, kBoxFilters));
    const double pixels = shape.box.pixels(), filters = boxes * kBoxFilters;
    const double loads = stages * (1 + boxes) * kBoxCycles +
                         whole_stages * (pixels + filters) * kLineCycles +
                         part_stages * (pixels * kPartPixelCycles + filters * kPartFilterCycles);
    const int64_t stored = of_tile * size_of(problem_.dtype);
    const auto slices = static_cast<double>(ceil_div(stored, kBoxLineBytes));
    const double part_slices = stored % kBoxLineBytes == 0 ? 0 : 1;
    return loads + slices * kBoxCycles +
           pixels * ((slices - part_slices) * kLineCycles + part_slices * kPartStoreCycles);
  }

  // What a tile's pixels of NCHW are copied by, in a stage or a slice.
  struct PlaneCopies {
    int64_t boxes;
    double channel_cycles;  // of all of them, for each channel
    double missing_cycles;  // the same for channels of a chunk that there are not
  };
  PlaneCopies find_plane_copies(const BoxesShape& shape) const {
    const int64_t plane_bytes = count_plane_pixels() * operand_bytes(shape.math);
    if (has_whole_planes(shape.form)) {
      const double lines = static_cast<double>(shape.box.images * plane_bytes) / kBoxLineBytes;
      return {shape.box.images, lines * kLineCycles, 0};
    }
    // One in so many lines ends with its plane.
    const double part = plane_bytes % kBoxLineBytes == 0
                            ? 0
                            : 1 / static_cast<double>(ceil_div(plane_bytes, kBoxLineBytes));
    const int64_t lines = tile_lines(shape.math);
    const auto each = static_cast<double>(lines);
    return {lines, each * (kLineCycles + part * (kPartPixelCycles - kLineCycles)),
            each * kPartPixelCycles};
  }

  // The same of planes, whose lines are pixels.
  double count_plane_copy_cycles(const BoxesShape& shape) const {
    const int64_t filters = ceil_div(view_.target_channels, shape.filter_tiles);  // on average
    const int64_t filter_boxes = shape.resident ? 0 : ceil_div(filters, kBoxFilters);
    const PlaneCopies copies = find_plane_copies(shape);
    const int64_t missing = shape.chunks * box_chunk(shape.math) - view_.source_channels;
    const double loads =
        static_cast<double>(shape.chunks * (copies.boxes + filter_boxes)) * kBoxCycles +
        static_cast<double>(view_.source_channels) * copies.channel_cycles +
        static_cast<double>(missing) * copies.missing_cycles +
        static_cast<double>(shape.chunks * filter_boxes * kBoxFilters) * kLineCycles;
    const int64_t slices = ceil_div(filters * size_of(problem_.dtype), kBoxLineBytes);
    return loads + static_cast<double>(slices * copies.boxes) * kBoxCycles +
           static_cast<double>(filters) * copies.channel_cycles;
  }

  FormCost find_form_cost() const {
    switch (shape_.form) {
      case BoxForm::kPixels:
        break;
      case BoxForm::kLines:
        return kLineCost;
      case BoxForm::kImages:
      case BoxForm::kPairs:
        return is_tf32() ? kTf32ImageCost : kImageCost;
    }
    return {1, 0};
  }

  // Of a stage's products for one piece, by both warpgroups: 32 bytes of channels at a time.
  double count_piece_cycles(const BoxesShape& shape) const {
    const double products = kBoxLineBytes / 32 * static_cast<double>(shape.filters);
    if (!has_whole_planes(shape.form)) {
      return products * (shape.form == BoxForm::kLines ? kLineProductRate : kProductRate);
    }
    const double reads = is_tf32()                       ? kTf32FragmentCycles
                         : shape.form == BoxForm::kPairs ? kPairFragmentCycles
                                                         : kFragmentCycles;
    return std::pow(std::pow(products, kFragmentOverlap) + std::pow(reads, kFragmentOverlap),
                    1 / kFragmentOverlap);
  }

  // Of a slice that the copy engine does not store.
  double count_store_cycles() const {
    if (shape_.dense_target) return kUnitSliceCycles;
    if (shape_.row_piece == 0) return kValueSliceCycles;
    if (is_tf32()) return kTf32RowSliceCycles;
    return shape_.row_piece > 1 ? kRowSliceCycles : kRowValueSliceCycles;
  }

  double predict_microseconds(const BoxesShape& shape, int blocks) const {
    const auto stages = static_cast<double>(count_taps() * shape.chunks);
    const double products = stages * shape.pieces * count_piece_cycles(shape);
    const int64_t filters = std::min<int64_t>(shape.filters, view_.target_channels);
    const auto slices =
        static_cast<double>(ceil_div(filters * size_of(problem_.dtype), kBoxLineBytes));
    const double slice = is_tf32() ? kTf32SliceCycles : kSliceCycles;
    const double ends = kTileCycles + stages * kStageCycles +
                        (shape.boxed_target ? slices * shape.pieces * slice : 0);
    const double values = shape.boxed_target ? 0 : slices * shape.pieces * count_store_cycles();
    // Blocks that share a multiprocessor share its units, but wait by themselves.
    const int64_t sms = std::max(1, caps_.sm_count);
    const int64_t sharing = ceil_div(shape.grid, sms);
    const double waiting =
        has_whole_planes(shape.form)
            ? stages * kImageLatencyCycles / static_cast<double>(shape.stages * sharing)
            : 0;
    const double tile =
        std::max({products + values + ends / blocks, count_copy_cycles(shape), waiting});
    const double work = static_cast<double>(ceil_div(shape.tiles(), shape.grid) * sharing) * tile;
    const double memory =
        (count_moved_bytes() / (is_tf32()       ? kTf32MemoryBytes
                                : shape.in_turn ? kTurnMemoryBytes
                                                : kMemoryBytes) +
         static_cast<double>(shape.filter_tiles - 1) * count_tap_bytes() / kCacheBytes) /
        static_cast<double>(sms);
    const double resident =
        shape.resident ? stages * blocks * (kBoxCycles + kResidentLineCycles * shape.filters) : 0;
    // Work and memory wait for each other, the more the closer they are.
    const double both = std::cbrt(work * work * work + memory * memory * memory);
    const double packing =
        shape.filters_in_place
            ? 0
            : kPackMicroseconds + static_cast<double>(shape.packed_bytes) / kPackBytesPerUs;
    const double start = kLaunchCycles + (shape.in_turn ? kTurnCycles : 0);
    const double pixels = (start + resident + both) / (kBoxClockGhz * 1e3);
    const FormCost cost = find_form_cost();
    return cost.share * pixels + cost.microseconds + packing;
  }

  // Each pixel that some tap sees, once; filters and results. Several taps hide what parts of
  // sectors take.
  double count_moved_bytes() const {
    const auto seen = [](const GatherAxis& axis, int64_t extent) {
      return std::min(extent, axis.count * std::min(axis.source_step, axis.taps));
    };
    const GatherAxis &rows = shape_.rows_axis, &columns = shape_.columns_axis;
    const bool single = shape_.form == BoxForm::kPixels && count_taps() == 1;
    const auto count = [&](int64_t pixels, int64_t channels) {
      const auto bytes = static_cast<double>(channels * size_of(problem_.dtype));
      return static_cast<double>(pixels) * bytes * (single ? find_sector_share(bytes) : 1);
    };
    const int64_t source = problem_.N * seen(rows, view_.source_h) * seen(columns, view_.source_w);
    const int64_t target = problem_.N * rows.count * columns.count;
    const int64_t filters = view_.source_channels * view_.target_channels * count_taps();
    return count(source, view_.source_channels) + count(target, view_.target_channels) +
           static_cast<double>(filters * size_of(problem_.dtype));
  }
  // Pixels that one tap sees.
  double count_tap_bytes() const {
    return static_cast<double>(problem_.N * shape_.rows_axis.count * shape_.columns_axis.count *
                               view_.source_channels * size_of(problem_.dtype));
  }

  const ConvProblem& problem_;
  const DeviceCaps& caps_;
  const GatherTensors view_;
  BoxesShape shape_;  // what all candidates share
};

// Lines of 128 bytes have boxes.
bool has_lines(const ConvProblem& p) {
  const int64_t unit = 16 / size_of(p.dtype), plane = p.H * p.W;
  const auto lies_well = [&](const Strides& s) {
    return has_plane_units(s, p.H, p.W, unit) && s.c >= plane && s.n >= s.c;
  };
  return is_one_to_one(p) && lies_well(p.x_strides) && lies_well(p.y_strides);
}

// All planes of an image follow each other, and those of so many channels are whole units of 16
// bytes. Of an axis with one element the stride says nothing.
bool has_images(const ConvProblem& p) {
  const int64_t unit = 16 / size_of(p.dtype), plane = p.H * p.W;
  const auto lies_well = [&](const Strides& s, int64_t channels) {
    return channels % unit == 0 && (p.W == 1 || s.w == 1) && (p.H == 1 || s.h == p.W) &&
           s.c == plane && (p.N == 1 || (s.n % unit == 0 && s.n >= channels * plane));
  };
  return is_one_to_one(p) && plane <= most_tile_pieces(BoxForm::kImages) * kBoxPixels &&
         lies_well(p.x_strides, p.C) && lies_well(p.y_strides, p.K);
}

}  // namespace

std::optional<BoxForm> find_box_form(const ConvProblem& p) {
  const int64_t bytes = size_of(p.dtype);
  const GatherTensors view = make_gather_tensors(p);
  if (has_boxes(view.source_strides, view.source_channels, bytes) &&
      (view.target_channels == 1 || view.target_strides.c == 1)) {
    return BoxForm::kPixels;
  }
  if (has_lines(p)) return BoxForm::kLines;
  if (has_images(p)) {
    return bytes == 2 && p.H * p.W % 2 == 0 ? BoxForm::kPairs : BoxForm::kImages;
  }
  return std::nullopt;
}

BoxesShape fit_boxes_shape(const ConvProblem& problem, const DeviceCaps& caps,
                           const GatherPhase& phase, const BoxesWish& wish) {
  return Fitter(problem, caps, phase).fit(wish);
}

}  // namespace convx
