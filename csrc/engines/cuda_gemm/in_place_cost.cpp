// What products of tensors as they lie cost.
#include <algorithm>
#include <cmath>

#include "engines/cuda_gemm/gemm_in_place.h"
#include "engines/cuda_gemm/gemm_shape.h"

namespace convx {
namespace {

// How fast cuBLAS is on such matrices. Fitted to an H200 in November 2026.
struct ProductRates {
  double operations;       // per microsecond
  double short_reduction;  // a tile costs this many extra terms of the reduction
  double filter_tile;      // whole tiles of filters are computed,
  double channel_tile;     // and of channels
  double memory;           // bytes per microsecond; of very many also
  double far_memory = 0;   // this, if not 0
  double start_us;
  double overlap;  // of arithmetic and memory, if not wholly
  // Of pixels to which cuBLASLt adds a bias, and of the results for a short reduction: bytes per
  // microsecond.
  double epilogue_us = 0, epilogue_memory = 0;
  double few_pixels_share = 1;  // of planes of few pixels
  int64_t pixel_tile = 0;       // not 0: tiles are computed in rounds, as many as fit at once
  // Operations where lines do not begin at multiples of 16 bytes, but of 8, 4 or 2.
  double aligned8 = 0, aligned4 = 0, aligned2 = 0;
};
// Where all lines are aligned: 1,040 products by what is chosen for them, within 16% (rms), those
// of TF32 planes within 25%; weighed so that of 424 layers the faster engine is chosen.
constexpr ProductRates kHalfPixels{.operations = 905e6,
                                   .short_reduction = 191,
                                   .filter_tile = 64,
                                   .channel_tile = 64,
                                   .memory = 4.95e6,
                                   .far_memory = 11.8e6,
                                   .start_us = 2.9,
                                   .overlap = 4,
                                   .epilogue_us = 0.8,
                                   .epilogue_memory = 2.9e6};
constexpr ProductRates kHalfPlanes{.operations = 1200e6,
                                   .short_reduction = 167,
                                   .filter_tile = 32,
                                   .channel_tile = 64,
                                   .memory = 4.0e6,
                                   .start_us = 4.0,
                                   .overlap = 3};
constexpr ProductRates kTf32Pixels{.operations = 495e6,
                                   .short_reduction = 122,
                                   .filter_tile = 128,
                                   .channel_tile = 16,
                                   .memory = 4.83e6,
                                   .far_memory = 28.8e6,
                                   .start_us = 5.6,
                                   .overlap = 2,
                                   .pixel_tile = 128};
constexpr ProductRates kTf32Planes{.operations = 287e6,
                                   .short_reduction = 62,
                                   .filter_tile = 128,
                                   .channel_tile = 16,
                                   .memory = 4.0e6,
                                   .start_us = 4.3,
                                   .overlap = 4,
                                   .few_pixels_share = 1.3};
// By kernels that need no memory.
constexpr ProductRates kTf32NarrowPixels{.operations = 222e6,
                                         .short_reduction = 103,
                                         .filter_tile = 64,
                                         .channel_tile = 16,
                                         .memory = 5.5e6,
                                         .start_us = 3.3,
                                         .overlap = 3,
                                         .epilogue_us = 1.1};
constexpr ProductRates kTf32NarrowPlanes{.operations = 217e6,
                                         .short_reduction = 48,
                                         .filter_tile = 64,
                                         .channel_tile = 64,
                                         .memory = 3.6e6,
                                         .start_us = 3.0,
                                         .overlap = 6};
// Others: 53 layers in both layouts, within 22%.
constexpr ProductRates kHalfProducts{.operations = 900e6,
                                     .short_reduction = 150,
                                     .filter_tile = 64,
                                     .channel_tile = 1,
                                     .memory = 3.6e6,
                                     .start_us = 5,
                                     .overlap = 6,
                                     .aligned8 = 258e6,
                                     .aligned4 = 200e6,
                                     .aligned2 = 73e6};
constexpr ProductRates kTf32Products{.operations = 370e6,
                                     .short_reduction = 70,
                                     .filter_tile = 128,
                                     .channel_tile = 1,
                                     .memory = 3.6e6,
                                     .start_us = 6.8,
                                     .overlap = 6,
                                     .aligned8 = 195e6,
                                     .aligned4 = 91e6,
                                     .aligned2 = 91e6};
constexpr ProductRates kFloat32Products{.operations = 44e6,
                                        .short_reduction = 18,
                                        .filter_tile = 16,
                                        .channel_tile = 1,
                                        .memory = 2.8e6,
                                        .start_us = 5,
                                        .overlap = 6,
                                        .aligned8 = 42e6,
                                        .aligned4 = 31e6,
                                        .aligned2 = 31e6};
constexpr ProductRates kFloat64Products{.operations = 45e6,
                                        .short_reduction = 24,
                                        .filter_tile = 16,
                                        .channel_tile = 1,
                                        .memory = 2.8e6,
                                        .start_us = 5,
                                        .overlap = 6,
                                        .aligned8 = 45e6,
                                        .aligned4 = 45e6,
                                        .aligned2 = 45e6};
constexpr double kPixelTile = 64;         // of an image, where planes are multiplied
constexpr double kMultiprocessors = 132;  // of the H200
constexpr int64_t kFewPixels = 256;
constexpr double kNearBytes = 256e6;
// The epilogue costs nothing where tiles of filters are whole, and there are enough of them.
constexpr int64_t kWideTile = 64, kWideFilters = 512;
constexpr int64_t kNarrowTile = 112;        // nor where all filters are one tile
constexpr double kLongReduction = 512;      // more and more of it is hidden
constexpr double kLaunchUs = 2.5;           // another kernel before the product
constexpr double kPlaneLaunchUs = 1.8;      // one that copies planes
constexpr double kCopyBytesPerUs = 3.0e6;   // pixels copied together, read and written
constexpr double kPlaneBytesPerUs = 2.4e6;  // planes copied side by side, the same
constexpr double kFillBytesPerUs = 1.8e6;   // results filled with bias values, and read again
// Results that start from a matrix of bias values.
constexpr double kHalfBiasMatrixBytesPerUs = 9e6;
constexpr double kBiasMatrixBytesPerUs = 3e6;

const ProductRates& find_rates(const ConvProblem& p, const InPlaceShape& shape) {
  if (p.dtype == DType::kFloat64) return kFloat64Products;
  const bool half = size_of(p.dtype) == 2;
  if (!half && p.precision != Precision::kTf32) return kFloat32Products;
  if (shape.form == InPlaceForm::kSideBySide || !shape.has_aligned_lines(p.dtype)) {
    return half ? kHalfProducts : kTf32Products;
  }
  const bool planes = shape.form == InPlaceForm::kPlanes;
  if (half) return planes && p.N > 1 ? kHalfPlanes : kHalfPixels;  // one image's are no batch
  if (shape.asks_lt && shape.blas_bytes == 0) {
    return planes ? kTf32NarrowPlanes : kTf32NarrowPixels;
  }
  return planes ? kTf32Planes : kTf32Pixels;
}

// The share by which the last round of tiles is longer than they are many.
double count_rounds(const ProductRates& rates, double pixels, double filters) {
  if (rates.pixel_tile == 0) return 1;
  const double rounds = std::ceil(pixels / static_cast<double>(rates.pixel_tile)) *
                        (filters / rates.filter_tile) / kMultiprocessors;
  return rounds > 1 ? std::ceil(rounds) / rounds : 1;
}

double predict_memory(const ConvProblem& p, const ProductRates& rates) {
  const double bytes = count_bytes(p);
  const double far =
      rates.far_memory > 0 ? std::max(bytes - kNearBytes, 0.0) / rates.far_memory : 0;
  return bytes / rates.memory + far;
}

double rate_at(const ProductRates& rates, int64_t pitch_bytes) {
  if (pitch_bytes % 16 == 0) return rates.operations;
  if (pitch_bytes % 8 == 0) return rates.aligned8;
  return pitch_bytes % 4 == 0 ? rates.aligned4 : rates.aligned2;
}

// What a bias adds to a product, unless it is added when results are copied.
double predict_bias(const ConvProblem& p, const GatherTensors& view, const InPlaceShape& shape,
                    const ProductRates& rates, double memory_rate) {
  const bool planes = shape.form == InPlaceForm::kPlanes;
  const double results = static_cast<double>(size_of(p.dtype) * p.K * target_pixels(p));
  if (shape.bias_pixels > 0) {
    const bool cut = planes && shape.bias_pixels < p.H * p.W;
    const double calls = cut ? static_cast<double>(2 * p.N) : 1;
    const double rate = size_of(p.dtype) == 2 ? kHalfBiasMatrixBytesPerUs : kBiasMatrixBytesPerUs;
    return kLaunchUs * calls + results / (rate * memory_rate);
  }
  if (!shape.has_epilogue(p.dtype, view.target_channels)) {
    // Results are filled with it first.
    return kLaunchUs + results / (kFillBytesPerUs * memory_rate);
  }
  if (view.target_channels >= kWideFilters && view.target_channels % kWideTile == 0) return 0;
  if (rates.epilogue_memory == 0 || view.target_channels <= kNarrowTile) return rates.epilogue_us;
  const double hidden = 1 + static_cast<double>(view.source_channels) / kLongReduction;
  return rates.epilogue_us + results / (rates.epilogue_memory * memory_rate * hidden);
}

}  // namespace

double predict_in_place(const ConvProblem& p, const GatherTensors& view, const InPlaceShape& shape,
                        double memory_rate, double product_rate) {
  const ProductRates& rates = find_rates(p, shape);
  const bool planes = shape.form == InPlaceForm::kPlanes;
  const bool side_by_side = shape.form == InPlaceForm::kSideBySide;
  const double size = static_cast<double>(size_of(p.dtype));
  const auto pad = [](int64_t extent, double tile) {
    return std::ceil(static_cast<double>(extent) / tile) * tile;
  };
  const double pixels = planes ? static_cast<double>(p.N) * pad(p.H * p.W, kPixelTile)
                               : static_cast<double>(target_pixels(p));
  const double filters =
      static_cast<double>(p.groups) * pad(view.target_channels, rates.filter_tile);
  const double operations = 2 * pixels * filters * count_rounds(rates, pixels, filters) *
                            (pad(view.source_channels, rates.channel_tile) + rates.short_reduction);
  const double arithmetic =
      operations / (rate_at(rates, shape.pitches() * size_of(p.dtype)) * product_rate);
  const double memory = predict_memory(p, rates) / memory_rate;
  const bool few_pixels = planes && p.H * p.W <= kFewPixels;
  const double product =
      std::pow(std::pow(arithmetic, rates.overlap) + std::pow(memory, rates.overlap),
               1 / rates.overlap) *
      (few_pixels ? rates.few_pixels_share : 1);
  double around = rates.start_us + (shape.filters.packed ? kLaunchUs : 0);
  const double all_pixels = static_cast<double>(target_pixels(p));
  if (adds_bias(p) && !side_by_side) around += predict_bias(p, view, shape, rates, memory_rate);
  if (shape.chunk_pixels == 0) return around + product;
  const double chunks = std::ceil(all_pixels / static_cast<double>(shape.chunk_pixels));
  if (side_by_side) {
    const double moved =
        chunks * static_cast<double>(shape.chunk_bytes + shape.result_bytes) + count_bytes(p);
    around += 2 * kPlaneLaunchUs * chunks + moved / (kPlaneBytesPerUs * memory_rate);
  } else {
    const double copied = size * static_cast<double>(p.C) * all_pixels;
    around += (kLaunchUs + rates.start_us) * chunks + 2 * copied / (kCopyBytesPerUs * memory_rate);
  }
  return around + product;
}

}  // namespace convx
