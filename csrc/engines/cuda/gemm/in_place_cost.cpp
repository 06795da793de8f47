// Cost model of 1x1 layers that cuBLAS multiplies in place.
#include <algorithm>
#include <cmath>
#include <limits>

#include "engines/cuda/gemm/gemm_in_place.h"
#include "engines/cuda/gemm/gemm_shape.h"
#include "planning/device_rates.h"

namespace convx {
namespace {

// Speed of cuBLAS on such matrices, on an H200 in November 2026.
struct ProductRates {
  double operations;  // per microsecond
  double operands;    // bytes per microsecond that tiles read, mostly from L2
  double tile_us;     // start and end of a tile
  double last_round;  // 0: an incomplete last wave costs its share; 1: it costs a whole wave
  double start_us;
  double overlap;  // exponent that combines arithmetic and memory time; larger: more overlap
  // Bytes per microsecond, read and written, for tensors that stay in L2 (near) and for others
  // (far).
  double near_read, near_write, far_read, far_write;
  // Bias in cuBLASLt's epilogue: fixed time, and bytes of results per microsecond.
  double epilogue_us = 0, epilogue_memory = 0;
  // Factor on arithmetic where rows are aligned to 4 or 2 bytes only.
  double aligned4 = 1, aligned2 = 1;
  double end_terms = 0;  // cost of a tile's end, in terms of the reduction
};
// Fitted to the chosen algorithms of 1,465 products, most of which belong to no particular network.
// The rms error for aligned rows is 13% for pixels and 18% for planes in 16 bits, 10% and 13% in
// TF32. Where several sets of rates fitted about as well, the one that chooses engines best was
// kept. far_write of 16-bit pixels and far_read of TF32 ones follow 11 products of 200 MB to 4 GB
// (2026-11-19).
constexpr ProductRates kHalfPixels{.operations = 1090e6,
                                   .operands = 42e6,
                                   .tile_us = 0.55,
                                   .last_round = 0,
                                   .start_us = 2.4,
                                   .overlap = 4,
                                   .near_read = 7.2e6,
                                   .near_write = 3.1e6,
                                   .far_read = 4.8e6,
                                   .far_write = 3.25e6,
                                   .epilogue_us = 0.3,
                                   .epilogue_memory = 3e6};
constexpr ProductRates kHalfPlanes{.operations = 774e6,
                                   .operands = 300e6,
                                   .tile_us = 0.61,
                                   .last_round = 0.21,
                                   .start_us = 2.45,
                                   .overlap = 2.75,
                                   .near_read = 5.7e6,
                                   .near_write = 3.2e6,
                                   .far_read = 4.65e6,
                                   .far_write = 3.4e6};
constexpr ProductRates kTf32Pixels{.operations = 553e6,
                                   .operands = 36.5e6,
                                   .tile_us = 1.24,
                                   .last_round = 0.5,
                                   .start_us = 4,
                                   .overlap = 3.4,
                                   .near_read = 6.5e6,
                                   .near_write = 2e6,
                                   .far_read = 4.55e6,
                                   .far_write = 3.35e6,
                                   .epilogue_us = 0.2};
constexpr ProductRates kTf32Planes{.operations = 724e6,
                                   .operands = 9.1e6,
                                   .tile_us = 2.7,
                                   .last_round = 0.27,
                                   .start_us = 1.7,
                                   .overlap = 2.35,
                                   .near_read = 5.9e6,
                                   .near_write = 2.95e6,
                                   .far_read = 4.8e6,
                                   .far_write = 3.55e6};
// TF32 kernels that need no workspace.
constexpr ProductRates kTf32NarrowPixels{.operations = 451e6,
                                         .operands = 7e6,
                                         .tile_us = 1.56,
                                         .last_round = 0.55,
                                         .start_us = 1.95,
                                         .overlap = 3.1,
                                         .near_read = 12e6,
                                         .near_write = 2.5e6,
                                         .far_read = 3.5e6,
                                         .far_write = 2.95e6,
                                         .epilogue_us = 0.2};
constexpr ProductRates kTf32NarrowPlanes{.operations = 466e6,
                                         .operands = 10.3e6,
                                         .tile_us = 1.22,
                                         .last_round = 0.68,
                                         .start_us = 2.2,
                                         .overlap = 2.3,
                                         .near_read = 5.9e6,
                                         .near_write = 2.55e6,
                                         .far_read = 4.8e6,
                                         .far_write = 3.15e6};
// Rows that are not aligned: 72 products in 16 bits within 17%, 56 in TF32 within 13%.
constexpr ProductRates kHalfProducts{.operations = 538e6,
                                     .operands = 4.4e6,
                                     .tile_us = 1.8,
                                     .last_round = 0,
                                     .start_us = 2.1,
                                     .overlap = 1.5,
                                     .near_read = 4.0e6,
                                     .near_write = 2.0e6,
                                     .far_read = 4.8e6,
                                     .far_write = 3.0e6,
                                     .aligned4 = 1.07,
                                     .aligned2 = 2.26};
constexpr ProductRates kTf32Products{.operations = 152e6,
                                     .operands = 8.8e6,
                                     .tile_us = 1.9,
                                     .last_round = 0.15,
                                     .start_us = 1.9,
                                     .overlap = 1.5,
                                     .near_read = 4.0e6,
                                     .near_write = 3.6e6,
                                     .far_read = 4.5e6,
                                     .far_write = 3.0e6,
                                     .aligned4 = 1.13,
                                     .aligned2 = 1.13};
// Kernels on the FMA units, with any alignment.
constexpr ProductRates kFloat32Products{.operations = 44e6,
                                        .operands = 300e6,
                                        .tile_us = 0,
                                        .last_round = 0.5,
                                        .start_us = 5,
                                        .overlap = 6,
                                        .near_read = 2.8e6,
                                        .near_write = 2.8e6,
                                        .far_read = 2.8e6,
                                        .far_write = 2.8e6,
                                        .aligned4 = 1.4,
                                        .aligned2 = 1.4,
                                        .end_terms = 18};
constexpr ProductRates kFloat64Products{.operations = 45e6,
                                        .operands = 300e6,
                                        .tile_us = 0,
                                        .last_round = 0.5,
                                        .start_us = 5,
                                        .overlap = 6,
                                        .near_read = 2.8e6,
                                        .near_write = 2.8e6,
                                        .far_read = 2.8e6,
                                        .far_write = 2.8e6,
                                        .end_terms = 24};
constexpr double kMultiprocessors = 132;  // the H200's
constexpr double kFewestProducts = 32;    // a tile with fewer filters takes as long
constexpr double kReductionStep = 32;     // terms of a reduction come in steps of this many
constexpr double kSplitTerms = 128;       // fewest terms of a split-K slice
constexpr double kSplitUs = 1.5;          // adding split-K slices
// Adding a bias to 16-bit results takes a quarter of the time if all filters fit in one tile or
// there are at least kWideFilters of them, and no time if the latter fill whole tiles.
constexpr int64_t kNarrowTile = 64, kWideFilters = 512;
constexpr double kQuickEpilogue = 4;
constexpr double kLaunchUs = 2.5;  // another kernel before the product
// A kernel that copies planes, and the gap before the next one. With 1.8 us, 24 layers at 7 x 7 in
// bf16 took 4.8 us longer than predicted, and other engines 1.5 to 2 (H200, 2026-11-19).
constexpr double kPlaneLaunchUs = 3.3;
constexpr double kCopyBytesPerUs = 3.0e6;  // pixels that are copied together, read and written
// Planes that are copied side by side, read and written.
constexpr double kPlaneBytesPerUs = 2.4e6;
constexpr double kFillBytesPerUs = 1.8e6;  // results that are filled with the bias, and read again
// Results that start from a matrix of bias values.
constexpr double kBiasLaunchUs = 2;
constexpr double kBiasMatrixBytesPerUs = 6e6;
constexpr double kTransposedTf32 = 1.7;  // weight gradients of pixels: factor on arithmetic
// The further time of these kernels, if they move so many bytes or more: 40 weight gradients in
// channels_last that take 10 to 60 us (2026-11-18).
constexpr double kTransposedTf32Us = 4, kTransposedTf32Bytes = 4e6;
// The further time of 16-bit weight gradients with long reductions: 14 layers of 401,408 to 802,816
// pixels take 0.5 to 25 us more than the rates say, 12 in the median (2026-11-19).
constexpr double kLongReductionUs = 10;
constexpr int64_t kLongReduction = int64_t{1} << 18;

const ProductRates& find_rates(const ConvProblem& p, const InPlaceShape& shape) {
  if (p.dtype == DType::kFloat64) return kFloat64Products;
  const bool half = size_of(p.dtype) == 2;
  if (!half && p.precision != Precision::kTf32) return kFloat32Products;
  if (!shape.has_aligned_lines(p.dtype)) return half ? kHalfProducts : kTf32Products;
  const bool planes = shape.form == InPlaceForm::kPlanes || shape.form == InPlaceForm::kSideBySide;
  // Planes of a single image are no batch.
  if (half) return planes && p.N > 1 ? kHalfPlanes : kHalfPixels;
  if (shape.asks_lt && shape.blas_bytes == 0) {
    return planes ? kTf32NarrowPlanes : kTf32NarrowPixels;
  }
  return planes ? kTf32Planes : kTf32Pixels;
}

// A batch of products [filter][channel] x [channel][pixel].
struct ProductSize {
  double batch, filters, channels, pixels;
  double element_bytes;
  bool whole_pixels;  // true: rows are aligned pixels, not planes
};

// Microseconds with tiles of the given size. share: factor on the time of a term of the reduction.
double predict_tiles(const ProductRates& rates, const ProductSize& size, double share,
                     double tile_filters, double tile_pixels) {
  const double tiles =
      size.batch * std::ceil(size.filters / tile_filters) * std::ceil(size.pixels / tile_pixels);
  // Time of a multiprocessor for one term of the reduction.
  const double term_us =
      kMultiprocessors * share *
      (2 * std::max(tile_filters, kFewestProducts) * tile_pixels / rates.operations +
       (tile_filters + tile_pixels) * size.element_bytes / rates.operands);
  const auto predict_tile = [&](double terms) {
    const double whole_steps = std::ceil(terms / kReductionStep) * kReductionStep;
    return rates.tile_us + (whole_steps + rates.end_terms) * term_us;
  };
  const double rounds = tiles / kMultiprocessors;
  const double waited =
      rounds > 1 ? rates.last_round * std::ceil(rounds) + (1 - rates.last_round) * rounds : 1;
  const double whole = waited * predict_tile(size.channels);
  // If few multiprocessors would have work, cuBLAS splits the reduction; it does not split batches.
  const double slices = std::min(std::floor(1 / rounds), std::floor(size.channels / kSplitTerms));
  if (size.batch > 1 || slices < 2) return whole;
  return std::min(whole, predict_tile(size.channels / slices) + kSplitUs);
}

// Microseconds with the best tile: cuBLAS has many, and chooses well.
double predict_products(const ProductRates& rates, const ProductSize& size, double share) {
  constexpr double kMostValues = 256 * 128;  // per tile
  double best = std::numeric_limits<double>::infinity();
  for (const double filters : {16, 32, 64, 128, 256}) {
    for (const double pixels : {64, 128, 256}) {
      if (filters * pixels > kMostValues) continue;
      best = std::min(best, predict_tiles(rates, size, share, filters, pixels));
    }
  }
  return best;
}

// Bytes of memory traffic for one pixel.
double count_pixel_bytes(const ProductSize& size, double channels) {
  const double bytes = channels * size.element_bytes;
  return size.whole_pixels ? bytes * find_sector_share(bytes) : bytes;
}

// Reads and writes every tensor once.
double predict_memory(const ProductRates& rates, const ProductSize& size) {
  const double pixels = size.batch * size.pixels;
  const double read = pixels * count_pixel_bytes(size, size.channels) +
                      size.element_bytes * size.channels * size.filters;
  const double written = pixels * count_pixel_bytes(size, size.filters);
  const double near = find_near_share(read + written);
  return near * (read / rates.near_read + written / rates.near_write) +
         (1 - near) * (read / rates.far_read + written / rates.far_write);
}

double find_share(const ProductRates& rates, int64_t pitch_bytes) {
  if (pitch_bytes % 8 == 0) return 1;
  return pitch_bytes % 4 == 0 ? rates.aligned4 : rates.aligned2;
}

// Time that a bias adds, unless it is added when results are copied.
double predict_bias(const ConvProblem& p, const GatherTensors& view, const InPlaceShape& shape,
                    const ProductRates& rates, double memory_rate) {
  const double results = static_cast<double>(size_of(p.dtype) * p.K * target_pixels(p));
  if (shape.form == InPlaceForm::kPlanes) {
    const bool cut = shape.bias_pixels < p.H * p.W;
    const double calls = cut ? static_cast<double>(2 * p.N) : 1;
    return kBiasLaunchUs * calls + results / (kBiasMatrixBytesPerUs * memory_rate);
  }
  if (p.dtype == DType::kFloat64) {  // results are filled with the bias first
    return kLaunchUs + results / (kFillBytesPerUs * memory_rate);
  }
  const int64_t filters = view.target_channels;
  const bool wide = filters >= kWideFilters;
  if (rates.epilogue_memory == 0 || (wide && filters % kNarrowTile == 0)) return rates.epilogue_us;
  const bool quick = wide || filters <= kNarrowTile;
  const double rate = rates.epilogue_memory * (quick ? kQuickEpilogue : 1);
  return rates.epilogue_us + results / (rate * memory_rate);
}

// Pixels that are copied together, some at a time; none if chunk_pixels is 0.
double predict_copies(const ConvProblem& p, const InPlaceShape& shape, double memory_rate) {
  if (shape.chunk_pixels == 0) return 0;
  const double pixels = static_cast<double>(target_pixels(p));
  const double chunks = std::ceil(pixels / static_cast<double>(shape.chunk_pixels));
  const double copied = static_cast<double>(size_of(p.dtype) * p.C) * pixels;
  return kLaunchUs * chunks + 2 * copied / (kCopyBytesPerUs * memory_rate);
}

}  // namespace

double overlap(double arithmetic, double memory, double exponent) {
  return std::pow(std::pow(arithmetic, exponent) + std::pow(memory, exponent), 1 / exponent);
}

double predict_whole_product(const ConvProblem& p, const GatherTensors& view,
                             const InPlaceShape& shape, double memory_rate, double product_rate) {
  const ProductRates& rates = find_rates(p, shape);
  const ProductSize size{
      static_cast<double>(p.groups),         static_cast<double>(view.target_channels),
      static_cast<double>(target_pixels(p)), static_cast<double>(view.source_channels),
      static_cast<double>(size_of(p.dtype)), false};
  // TF32 has no MMAs whose operands lie [pixel][channel]: these kernels transpose.
  const bool transposes = size_of(p.dtype) == 4 && shape.form != InPlaceForm::kPlanes;
  const double share = find_share(rates, shape.pitches() * size_of(p.dtype)) / product_rate *
                       (transposes ? kTransposedTf32 : 1);
  const double arithmetic = predict_products(rates, size, share);
  const double near = find_near_share(count_bytes(p));
  const double memory =
      count_bytes(p) * (near / rates.near_read + (1 - near) / rates.far_read) / memory_rate;
  double around =
      transposes ? kTransposedTf32Us * std::min(1.0, count_bytes(p) / kTransposedTf32Bytes) : 0;
  if (size_of(p.dtype) == 2 && target_pixels(p) > kLongReduction) around += kLongReductionUs;
  return rates.start_us + around + overlap(arithmetic, memory, rates.overlap) +
         predict_copies(p, shape, memory_rate);
}

double predict_in_place(const ConvProblem& p, const GatherTensors& view, const InPlaceShape& shape,
                        double memory_rate, double product_rate) {
  const ProductRates& rates = find_rates(p, shape);
  const bool planes = shape.form == InPlaceForm::kPlanes;
  const bool side_by_side = shape.form == InPlaceForm::kSideBySide;
  const double element_bytes = static_cast<double>(size_of(p.dtype));
  const double all_pixels = static_cast<double>(target_pixels(p));
  const double images = planes ? static_cast<double>(p.N) : 1;
  const bool whole_pixels =
      !planes && !side_by_side && uses_tensor_cores(p) && shape.has_aligned_lines(p.dtype);
  const ProductSize size{images * static_cast<double>(p.groups),
                         static_cast<double>(view.target_channels),
                         static_cast<double>(view.source_channels),
                         all_pixels / images,
                         element_bytes,
                         whole_pixels};
  const double share = find_share(rates, shape.pitches() * size_of(p.dtype)) / product_rate;
  const double arithmetic = predict_products(rates, size, share);
  const double memory = predict_memory(rates, size) / memory_rate;
  const double product = overlap(arithmetic, memory, rates.overlap);
  double around = rates.start_us + (shape.filters.packed ? kLaunchUs : 0);
  if (adds_bias(p) && !side_by_side) around += predict_bias(p, view, shape, rates, memory_rate);
  if (shape.chunk_pixels == 0) return around + product;
  const double chunks = std::ceil(all_pixels / static_cast<double>(shape.chunk_pixels));
  if (side_by_side) {
    const double moved =
        chunks * static_cast<double>(shape.chunk_bytes + shape.result_bytes) + count_bytes(p);
    around += 2 * kPlaneLaunchUs * chunks + moved / (kPlaneBytesPerUs * memory_rate);
  } else {
    around += rates.start_us * chunks + predict_copies(p, shape, memory_rate);
  }
  return around + product;
}

}  // namespace convx
