#include "engines/cuda/boxes/boxes_shape.h"

#include <algorithm>
#include <cmath>

#include "core/arithmetic.h"
#include "core/engine.h"
#include "kernels/pack_filters.h"
#include "planning/device_rates.h"

namespace convx {
namespace {

// Cycles of a multiprocessor, fitted on an H200 to 780 timings in 16 bits and 490 in TF32: all
// tiles of 59 layers of 1x1 kernels and of a dozen of 3x3 kernels. The rms error is 13% and 11%;
// the tile that the model picks is 3% and 1% slower than the best.
constexpr double kBoxClockGhz = 1.7;
// MMA time relative to the data sheet, for tiles of one box and of two boxes. Fitted with the
// split-K constants to 487 timings of 16 channels_last layers on an H200: the rms error is 9%, and
// the best prediction among the tiles that were timed is 1% slower than the fastest on average.
constexpr double kProductRate = 0.875, kPairProductRate = 0.975;
constexpr double kTf32ProductRate = 0.85, kTf32PairProductRate = 1.0;
constexpr double kLineProductRate = 1.0;
constexpr double kStageCycles = 195;  // waiting for a stage and releasing it
constexpr double kTileCycles = 665;   // starting and draining a tile's MMAs
constexpr double kSliceCycles = 600;  // storing 128 bytes of filters of a tile by TMA
constexpr double kTf32SliceCycles = 530;
// Share of the epilogue that the other warpgroup's MMAs do not hide (BoxesShape::is_staggered). By
// count, not by measurement: a lead of two stages is as long as half of the epilogue.
constexpr double kStaggeredShare = 0.5;
// Storing a slice by the consumer warps, which stall other blocks meanwhile: value by value; along
// a row, in 16 bits by pieces or by values, and in TF32; by 16-byte units.
constexpr double kValueSliceCycles = 3500;
constexpr double kRowSliceCycles = 1700, kRowValueSliceCycles = 2300, kTf32RowSliceCycles = 1350;
constexpr double kUnitSliceCycles = 1000;
// TMA: per box, per row of 128 bytes, and per row that ends within the 128 bytes.
constexpr double kBoxCycles = 49;
constexpr double kLineCycles = 2.1;
constexpr double kPartPixelCycles = 6.8;
constexpr double kPartFilterCycles = 12.3;
constexpr double kPartStoreCycles = 2.9;
constexpr double kResidentLineCycles = 3.5;  // per row of resident filters
// Bytes per cycle from device memory, and from L2 for pixels that other filter tiles have read.
constexpr double kMemoryBytes = 18.2;
constexpr double kTf32MemoryBytes = 19;
constexpr double kTurnMemoryBytes = 20.4;  // 16 bits, with the atomic tile counter
constexpr double kCacheBytes = 83;
// Source bytes that a multiprocessor reads per cycle for all taps together, mostly from L2. Fitted
// to two 3x3 layers of 64 channels and 64 filters, at 56x56 and 200x336 pixels, which have little
// to multiply per byte.
constexpr double kTapBytes = 31;
constexpr double kLaunchCycles = 4070;
// The latency of a lone tile: fetching the tensor maps, filling the first stage and draining the
// last store. The work of other tiles hides it. Fitted to 15 timings of small 1x1 layers (7.6 to
// 13.8 us).
constexpr double kLatencyCycles = 8000;
constexpr double kTurnCycles = 1700;  // the kernel that resets the counters
// NCHW forms: the prediction is multiplied by `share`, and `microseconds` are added.
struct FormCost {
  double share, microseconds;
};
constexpr FormCost kLineCost{0.96, 0.8};
constexpr FormCost kImageCost{1, 0.05}, kTf32ImageCost{0.75, 0.9};
// Cycles to load the fragments of one piece of a stage of whole planes. Fitted to 150 timings of 25
// layers in 16 bits and to 25 timings of 13 layers in TF32.
constexpr double kFragmentCycles = 330, kPairFragmentCycles = 150, kTf32FragmentCycles = 380;
constexpr double kImageLatencyCycles = 4000;  // from the release of a stage until it is full again
// Spans: cycles of the four producer warps per stage, and of the consumers per fragment load and
// per epilogue slice. Fitted to 78 timings of 16 layers; the rms error is 8% in 16 bits and 6% in
// TF32.
constexpr double kSpanStageCycles = 890;
constexpr double kSpanFragmentCycles = 540, kTf32SpanFragmentCycles = 610;
constexpr double kSpanSliceCycles = 1200, kTf32SpanSliceCycles = 1050;
constexpr FormCost kSpanCost{1.03, 0.05}, kTf32SpanCost{0.9, 0.25};
// Split-K: the kernel that adds slices, with its launch; per slice that a block adds, and per slice
// that a multiprocessor has, both for 64 filters. Fitted with kProductRate.
constexpr double kPartsCycles = 3490, kPartCycles = 1130, kPartSumsCycles = 2940;

class Predictor {
 public:
  Predictor(const ConvProblem& problem, const GatherTensors& view, const DeviceCaps& caps,
            const BoxesShape& shape, int blocks)
      : problem_(problem), view_(view), caps_(caps), shape_(shape), blocks_(blocks) {}

  double predict() const {
    const int64_t sms = std::max(1, caps_.sm_count);
    const double work = count_work_cycles();
    const double memory = (count_moved_bytes() / (is_tf32()        ? kTf32MemoryBytes
                                                  : shape_.in_turn ? kTurnMemoryBytes
                                                                   : kMemoryBytes) +
                           count_cached_bytes() / kCacheBytes) /
                          static_cast<double>(sms);
    const double resident = shape_.resident
                                ? static_cast<double>(shape_.taps() * shape_.chunks) * blocks_ *
                                      (kBoxCycles + kResidentLineCycles * shape_.filters)
                                : 0;
    // Work, memory traffic and latency overlap; they delay each other most when they take equally
    // long.
    const auto cube = [](double value) { return value * value * value; };
    const double both = std::max(std::cbrt(cube(work) + cube(memory) + cube(kLatencyCycles)),
                                 count_tap_bytes() / kTapBytes / static_cast<double>(sms));
    const double packing = shape_.filter_order == BoxFilters::kPacked
                               ? predict_packing(static_cast<double>(shape_.packed_bytes))
                               : 0;
    const double start = kLaunchCycles + (shape_.in_turn ? kTurnCycles : 0);
    const double adding = shape_.parts > 1 ? count_adding_cycles() : 0;
    const FormCost cost = find_form_cost();
    const double cycles = cost.share * (start + resident + both) + adding;
    return cycles / (kBoxClockGhz * 1e3) + cost.microseconds + packing;
  }

 private:
  bool is_tf32() const { return shape_.math == TensorMath::kTf32; }
  bool is_spans() const { return shape_.form == BoxForm::kSpans; }
  // Stages of a tile, or of one split-K slice if parts > 1.
  double count_stages(const GatherPhase& phase, int parts) const {
    return static_cast<double>(parts > 1 ? shape_.part_steps() : phase.taps() * shape_.chunks);
  }

  // Cycles of the block with the most work. Block 0 takes every grid-th tile from the first one on,
  // and phases with most taps come first, so it is this one.
  double count_work_cycles() const {
    const int64_t sharing = ceil_div(shape_.grid, std::max(1, caps_.sm_count));
    int64_t tiles = 0;
    double cycles = 0;
    const auto add_items = [&](const BoxPhase& phase, int64_t count, int parts) {
      const int64_t earlier = ceil_div(tiles, shape_.grid);
      tiles += count;
      cycles += static_cast<double>(ceil_div(tiles, shape_.grid) - earlier) *
                count_tile_cycles(phase, sharing, parts);
    };
    for (const BoxPhase& phase : shape_.phases) {
      add_items(phase, shape_.phase_tiles(phase) - shape_.split_tiles(), 1);
    }
    if (shape_.parts > 1) {
      add_items(shape_.phases[0], shape_.split_tiles() * shape_.parts, shape_.parts);
    }
    return cycles * static_cast<double>(sharing);
  }

  // Cycles of a tile, or of one split-K slice if parts > 1.
  double count_tile_cycles(const GatherPhase& phase, int64_t sharing, int parts) const {
    const double stages = count_stages(phase, parts);
    const double products = stages * shape_.pieces * count_piece_cycles();
    const int64_t filters = std::min<int64_t>(shape_.filters, view_.target_channels);
    const auto slices =
        static_cast<double>(ceil_div(filters * size_of(problem_.dtype), kBoxLineBytes));
    const double slice = (is_tf32() ? kTf32SliceCycles : kSliceCycles) *
                         (shape_.is_staggered() ? kStaggeredShare : 1);
    const double ends = kTileCycles + stages * kStageCycles +
                        (shape_.boxed_target ? slices * shape_.pieces * slice : 0);
    // Half of the cost of storing spans depends on the filters that exist, half on whole slices.
    const double part = static_cast<double>(filters * size_of(problem_.dtype)) / kBoxLineBytes;
    const double stored = is_spans() ? (slices + part) / 2 : slices * shape_.pieces;
    const double values = shape_.boxed_target || parts > 1 ? 0 : stored * count_store_cycles();
    // Blocks that share a multiprocessor share its units, but their waiting times overlap.
    const double waiting = !has_maps(shape_.form) ? stages * kImageLatencyCycles /
                                                        static_cast<double>(shape_.stages * sharing)
                                                  : 0;
    return std::max({products + values + ends / blocks_, count_copy_cycles(phase, parts), waiting});
  }

  double count_adding_cycles() const {
    const auto of_tile = static_cast<double>(shape_.parts * shape_.pieces);
    const double of_block = of_tile * box_chunk(shape_.math) / kBoxFilters;
    const double boxes = shape_.filters / static_cast<double>(kBoxFilters);
    const double of_sm =
        static_cast<double>(shape_.split_tiles()) * of_tile * boxes / std::max(1, caps_.sm_count);
    return kPartsCycles + of_block * kPartCycles + of_sm * kPartSumsCycles;
  }

  // Cycles of TMA (or of the producer warps) per tile or slice.
  double count_copy_cycles(const GatherPhase& phase, int parts) const {
    if (is_spans()) return count_stages(phase, parts) * kSpanStageCycles;
    if (shape_.form != BoxForm::kPixels) return count_plane_copy_cycles(parts);
    const int64_t channel_bytes = view_.source_channels * operand_bytes(shape_.math);
    const double stages = count_stages(phase, parts);
    const double part_stages = channel_bytes % kBoxLineBytes == 0
                                   ? 0
                                   : static_cast<double>(ceil_div(phase.taps(), int64_t{parts}));
    const double whole_stages = stages - part_stages;
    const int64_t of_tile = ceil_div(view_.target_channels, shape_.filter_tiles);  // on average
    const auto boxes = static_cast<double>(shape_.resident ? 0 : ceil_div(of_tile, kBoxFilters));
    const int pixel_boxes = shape_.tile_boxes();
    const double pixels = pixel_boxes * shape_.box.pixels(), filters = boxes * kBoxFilters;
    const double loads = stages * (pixel_boxes + boxes) * kBoxCycles +
                         whole_stages * (pixels + filters) * kLineCycles +
                         part_stages * (pixels * kPartPixelCycles + filters * kPartFilterCycles);
    const int64_t stored = of_tile * size_of(problem_.dtype);
    const auto slices = static_cast<double>(ceil_div(stored, kBoxLineBytes));
    const double part_slices = stored % kBoxLineBytes == 0 ? 0 : 1;
    return loads + slices * pixel_boxes * kBoxCycles +
           pixels * ((slices - part_slices) * kLineCycles + part_slices * kPartStoreCycles);
  }

  // The copies of a tile's NCHW pixels, in a stage or a slice.
  struct PlaneCopies {
    int64_t boxes;
    double channel_cycles;  // all boxes together, per channel
    double missing_cycles;  // the same for the missing channels of the last chunk
  };
  PlaneCopies find_plane_copies() const {
    const int64_t plane_bytes = shape_.plane_pixels() * operand_bytes(shape_.math);
    if (has_whole_planes(shape_.form)) {
      const double lines = static_cast<double>(shape_.box.images * plane_bytes) / kBoxLineBytes;
      return {shape_.box.images, lines * kLineCycles, 0};
    }
    // The last line of each plane is incomplete.
    const double part = plane_bytes % kBoxLineBytes == 0
                            ? 0
                            : 1 / static_cast<double>(ceil_div(plane_bytes, kBoxLineBytes));
    const int64_t lines = tile_lines(shape_.math);
    const auto each = static_cast<double>(lines);
    return {lines, each * (kLineCycles + part * (kPartPixelCycles - kLineCycles)),
            each * kPartPixelCycles};
  }

  // TMA cycles per tile for NCHW, where the rows of a box are pixels of one channel.
  double count_plane_copy_cycles(int parts) const {
    const int64_t filters = ceil_div(view_.target_channels, shape_.filter_tiles);  // on average
    const int64_t filter_boxes = shape_.resident ? 0 : ceil_div(filters, kBoxFilters);
    const PlaneCopies copies = find_plane_copies();
    const int64_t missing = shape_.chunks * box_chunk(shape_.math) - view_.source_channels;
    const double loads =
        static_cast<double>(shape_.chunks * (copies.boxes + filter_boxes)) * kBoxCycles +
        static_cast<double>(view_.source_channels) * copies.channel_cycles +
        static_cast<double>(missing) * copies.missing_cycles +
        static_cast<double>(shape_.chunks * filter_boxes * kBoxFilters) * kLineCycles;
    const int64_t slices = ceil_div(filters * size_of(problem_.dtype), kBoxLineBytes);
    return loads / parts + static_cast<double>(slices * copies.boxes) * kBoxCycles +
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
      case BoxForm::kSpans:
        return is_tf32() ? kTf32SpanCost : kSpanCost;
    }
    return {1, 0};
  }

  // MMA cycles of a stage for one piece, both warpgroups together, in steps of 32 bytes of
  // channels.
  double count_piece_cycles() const {
    const double products = kBoxLineBytes / 32 * static_cast<double>(shape_.filters);
    if (has_maps(shape_.form)) {
      return products * find_product_rate();
    }
    // Loading overlaps with the MMAs in part: a norm with the exponent 3/2.
    const auto raise = [](double cycles) { return cycles * std::sqrt(cycles); };
    const double both = raise(products) + raise(count_fragment_cycles());
    return std::cbrt(both * both);
  }
  double find_product_rate() const {
    if (shape_.form == BoxForm::kLines) return kLineProductRate;
    const bool has_pair = shape_.pieces > 1;
    if (is_tf32()) return has_pair ? kTf32PairProductRate : kTf32ProductRate;
    return has_pair ? kPairProductRate : kProductRate;
  }
  double count_fragment_cycles() const {
    if (is_spans()) return is_tf32() ? kTf32SpanFragmentCycles : kSpanFragmentCycles;
    if (is_tf32()) return kTf32FragmentCycles;
    return shape_.form == BoxForm::kPairs ? kPairFragmentCycles : kFragmentCycles;
  }

  // Cycles of a slice that the consumer warps store.
  double count_store_cycles() const {
    if (is_spans()) return is_tf32() ? kTf32SpanSliceCycles : kSpanSliceCycles;
    if (shape_.dense_target) return kUnitSliceCycles;
    if (shape_.row_piece == 0) return kValueSliceCycles;
    if (is_tf32()) return kTf32RowSliceCycles;
    return shape_.row_piece > 1 ? kRowSliceCycles : kRowValueSliceCycles;
  }

  // Device memory traffic: each source pixel that some tap reads, once, plus filters and results.
  // Several taps hide the cost of incomplete sectors.
  double count_moved_bytes() const {
    const auto seen = [](const GatherAxis& axis, int64_t extent) {
      return std::min(extent, axis.count * std::min(axis.source_step, axis.taps));
    };
    const bool single = shape_.form == BoxForm::kPixels && shape_.taps() == 1;
    const auto count = [&](int64_t pixels, int64_t channels) {
      const auto bytes = static_cast<double>(channels * size_of(problem_.dtype));
      return static_cast<double>(problem_.N * pixels) * bytes *
             (single ? find_sector_share(bytes) : 1);
    };
    int64_t source = 0, target = 0;
    for (const BoxPhase& phase : shape_.phases) {
      source =
          std::max(source, seen(phase.rows, view_.source_h) * seen(phase.columns, view_.source_w));
      target += phase.pixels();
    }
    const int64_t filters = view_.source_channels * view_.target_channels * shape_.taps();
    return count(source, view_.source_channels) + count(target, view_.target_channels) +
           static_cast<double>(filters * size_of(problem_.dtype));
  }
  // Source bytes that the taps read, each for every filter tile.
  double count_tap_bytes() const {
    int64_t pixels = 0;
    for (const BoxPhase& phase : shape_.phases) pixels += phase.pixels() * phase.taps();
    return static_cast<double>(problem_.N * pixels * shape_.filter_tiles * view_.source_channels *
                               size_of(problem_.dtype));
  }
  // Source bytes that one tap reads, for every filter tile and phase but one.
  double count_cached_bytes() const {
    int64_t pixels = 0;
    for (const BoxPhase& phase : shape_.phases) {
      pixels += phase.taps() > 0 ? phase.pixels() * shape_.filter_tiles : 0;
    }
    pixels -= shape_.phases[0].taps() > 0 ? shape_.phases[0].pixels() : 0;
    return static_cast<double>(problem_.N * pixels * view_.source_channels *
                               size_of(problem_.dtype));
  }

  const ConvProblem& problem_;
  const GatherTensors& view_;
  const DeviceCaps& caps_;
  const BoxesShape& shape_;
  const int blocks_;
};

}  // namespace

double predict_boxes(const ConvProblem& problem, const GatherTensors& view, const DeviceCaps& caps,
                     const BoxesShape& shape, int blocks) {
  return Predictor(problem, view, caps, shape, blocks).predict();
}

double bound_pixel_boxes(const ConvProblem& problem, const DeviceCaps& caps) {
  const GatherTensors view = make_gather_tensors(problem);
  const int64_t channel_bytes = view.source_channels * operand_bytes(tensor_math(problem));
  const auto chunks = static_cast<double>(ceil_div(channel_bytes, kBoxLineBytes));
  const auto filters = static_cast<double>(problem.K * problem.channels_per_group());
  const double pixel_taps = count_gather_products(problem) / std::max(filters, 1.0);
  const auto targets = static_cast<double>(view.target_channels);
  // Cycles of a stage of 128 pixels: the MMAs, and its share of waiting for stages. A stage of 256
  // filters waits as long as one of 128 filters and 256 pixels; blocks of 64 filters come in pairs.
  const double rate = std::min(kProductRate, kTf32ProductRate);
  const double stage = kBoxLineBytes / 32 * targets * rate +
                       kStageCycles * std::max(0.5, targets / (4 * kBoxFilters));
  const double work = pixel_taps / kBoxPixels * chunks * stage;
  const double element = static_cast<double>(size_of(problem.dtype));
  const double read = pixel_taps * static_cast<double>(view.source_channels) * element / kTapBytes;
  const double target = static_cast<double>(problem.N * view.target_h * view.target_w) * targets;
  const double stored = target * element / kTurnMemoryBytes;
  const double cycles = kLaunchCycles + std::max({work, read, stored}) / std::max(1, caps.sm_count);
  return kBoundFactor * cycles / (kBoxClockGhz * 1e3);
}

}  // namespace convx
