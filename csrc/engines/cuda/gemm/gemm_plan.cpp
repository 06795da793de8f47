#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/text.h"
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/gemm/gemm_shape.h"
#include "planning/device_rates.h"
#include "planning/refusals.h"
#include "planning/separate_pass.h"

namespace convx {
namespace {

// Fitted on an H200 in November 2026 to the 23 shapes of the benchmark. Rates are operations per
// microsecond of cuBLAS on reductions that are long enough to hide a tile's start and end.
constexpr double kFloat32Rate = 46e6;
constexpr double kTf32Rate = 250e6;
constexpr double kHalfRate = 450e6;
// The share of these rates that GEMMs on columns reach in the forward pass.
constexpr double kColumnRate = 0.6;
constexpr double kColumnShortReduction = 150;
constexpr double kFloat64Rate = 45e6;
constexpr double kReferenceSms = 132;
constexpr double kShortReduction = 24;  // terms of the reduction that a tile's start and end cost
constexpr double kFilterTile = 32;      // cuBLAS computes whole tiles of filters
constexpr double kColumnTile = 128;     // whole tiles of columns, in the weight gradient
constexpr double kBytesPerUs = 3.4e6;   // device memory
constexpr double kColumnBytesPerUs = 2.7e6;  // columns that stay in L2, written
constexpr double kBiasBytesPerUs = 1.1e6;    // results to which a separate pass adds the bias
constexpr double kCallUs = 4;                // a GEMM and the kernels around it
constexpr double kPlanUs = 10;               // fixed cost of a launch

double pad_ratio(double extent, double tile) { return std::ceil(extent / tile) * tile / extent; }

// Factor by which the GEMMs do more work than the convolution needs.
double count_waste(const ConvProblem& p, const GemmShape& shape) {
  const double taps = static_cast<double>(p.taps());
  const double filters = static_cast<double>(p.filters_per_group());
  const double channels = static_cast<double>(p.channels_per_group());
  switch (p.pass) {
    case Pass::kForward:
      return pad_ratio(filters, kFilterTile) * (1 + kShortReduction / (channels * taps));
    case Pass::kInputGrad:
      return pad_ratio(channels, kFilterTile) *
             (1 +
              kShortReduction * static_cast<double>(p.stride.h * p.stride.w) / (filters * taps));
    case Pass::kWeightGrad:
      break;
  }
  const double pixels =
      std::max(1.0, static_cast<double>(shape.chunk.images * shape.chunk.columns));
  return pad_ratio(filters, kFilterTile) * pad_ratio(channels * taps, kColumnTile) *
         (1 + kShortReduction / pixels);
}

double rate_of(const ConvProblem& p) {
  if (!uses_tensor_cores(p)) return p.dtype == DType::kFloat64 ? kFloat64Rate : kFloat32Rate;
  const double rate = p.dtype == DType::kFloat32 ? kTf32Rate : kHalfRate;
  if (p.pass != Pass::kForward) return rate;
  const double reduction = static_cast<double>(p.channels_per_group() * p.taps());
  return rate * kColumnRate / (1 + kColumnShortReduction / reduction);
}

// All but whether the columns fit.
std::string refuse(const ConvProblem& p) {
  if (std::string error = refuse_large_extents(p); !error.empty()) return error;
  constexpr int64_t kMaxPitch = std::numeric_limits<int>::max();
  for (const Strides* strides : {&p.x_strides, &p.y_strides}) {
    if (std::max({strides->c, strides->h, strides->w}) > kMaxPitch) {
      return "a tensor's stride is above cuBLAS' 32-bit leading dimension";
    }
  }
  if (is_pointwise(p) && p.H * p.W > kMaxPitch) return "an image has more than 2^31 pixels";
  if (p.channels_per_group() * p.taps() > kMaxExtent) return "the reduction is above 2^29";
  return "";
}

// A wave of cuBLAS' tiles, fitted to 39 gradients of real layers on an H200 (2026-11-18), which
// took up to 12 times as long as arithmetic and memory explain: a row of few pixels fills a small
// part of a tile, and one product for each output row leaves multiprocessors idle.
constexpr double kWaveUs = 4;
constexpr double kTileOperations = 2.0 * 128 * 128;  // for a term of the reduction

double predict_waves(const ConvProblem& p, const GemmShape& shape, double product_rate) {
  const double rate = p.dtype == DType::kFloat32 ? kTf32Rate : kHalfRate;
  const double tile_rate = rate * product_rate / std::max(shape.sm_count, 1);
  return shape.waves * kWaveUs + shape.wave_terms * kTileOperations / tile_rate;
}

// Predicted microseconds of layers with a column matrix, and of weight gradients.
double predict_columns(const ConvProblem& problem, const GemmShape& shape, const DeviceCaps& caps,
                       double memory_rate, double product_rate) {
  const double arithmetic =
      count_flops(problem) * count_waste(problem, shape) / (rate_of(problem) * product_rate);
  const double memory = count_bytes(problem) / (kBytesPerUs * memory_rate);
  const double columns =
      (shape.column_bytes + 2 * shape.staged_bytes) / (kColumnBytesPerUs * memory_rate);
  const double results = static_cast<double>(problem.N * problem.K * problem.P * problem.Q) *
                         static_cast<double>(size_of(problem.dtype));
  const double bias =
      adds_bias(problem) && shape.staged_bytes == 0 ? results / (kBiasBytesPerUs * memory_rate) : 0;
  const double sums = 2 * shape.summed_bytes / (kBytesPerUs * memory_rate);
  const bool is_fitted = caps.wgmma && uses_tensor_cores(problem);
  const double waves = is_fitted ? predict_waves(problem, shape, product_rate) : 0;
  return kPlanUs + std::max({arithmetic, memory, waves}) + columns + sums + bias +
         kCallUs * std::max(shape.calls, 1.0);
}

// Segments of 1x1 weight gradients on the tensor cores, fitted to 100 layers on an H200 (rms error
// 20%, mostly from cuBLAS's choice of kernels).
constexpr double kSegmentCallUs = 5;  // a batch of products, and what adds and writes them
// A call in NCHW: 64 filters and channels at 56 x 56, 64 images, take 9 us more than memory does
// in bf16 and 13 in TF32; four layers of 4 times as many elements of dW take 6 to 8 (2026-11-18).
constexpr double kPlaneCallUs = 6.5;
constexpr double kSegmentHalfRate = 640e6, kSegmentTf32Rate = 250e6;
constexpr double kUnalignedShare = 0.23;    // of these rates, for rows that are not aligned
constexpr double kPlaneBytesPerUs = 4.0e6;  // tensors in NCHW, from device memory
// Tensors in channels_last, fitted to layers of 0.5 to 16.8 million pixels: most within 5% (H200,
// 2026-11-19). Arithmetic hides memory, but not all of it.
constexpr double kPixelTf32BytesPerUs = 4.65e6, kPixelHalfBytesPerUs = 3.9e6;
constexpr double kSegmentOverlap = 4;
constexpr double kPartialBytesPerUs = 3.2e6;  // products, written and read again
// Partial sums of 16-bit layers: n32c512h28w28 k128 takes 15.8 us, with 8 MB of them (2026-11-19).
constexpr double kHalfPartialBytesPerUs = 6e6;
// What filters, and channels, are padded to; in channels_last to the wide tile if they are more
// than the other one: n32c192h130w130 k320 in TF32 takes 674 us, predicted as 318 without that.
constexpr double kSegmentTile = 64, kWideSegmentTile = kBlasTile;
constexpr double kIdleExponent = 0.7;  // 1: idle multiprocessors cost all of their time

double predict_segments(const ConvProblem& p, const GemmShape& shape, double memory_rate,
                        double product_rate) {
  const double filters = static_cast<double>(p.filters_per_group());
  const double channels = static_cast<double>(p.channels_per_group());
  const double pixels = static_cast<double>(target_pixels(p));
  const double segments = std::max(1.0, pixels / static_cast<double>(shape.segment));
  const double tiles = segments * static_cast<double>(count_gradient_tiles(p));
  const double busy = std::min(1.0, tiles / kReferenceSms);
  const double rate = (size_of(p.dtype) == 2 ? kSegmentHalfRate : kSegmentTf32Rate) *
                      (shape.in_place.has_aligned_lines(p.dtype) ? 1 : kUnalignedShare);
  const bool planes = shape.in_place.form == InPlaceForm::kPlanes;
  const auto pad = [&](double extent) {
    return pad_ratio(extent, planes || extent <= kSegmentTile ? kSegmentTile : kWideSegmentTile);
  };
  const double waste = pad(filters) * pad(channels);
  const double arithmetic =
      count_flops(p) * waste / (rate * product_rate * std::pow(busy, kIdleExponent));
  const double partial_rate = size_of(p.dtype) == 2 ? kHalfPartialBytesPerUs : kPartialBytesPerUs;
  const double partials = 2 * shape.partial_bytes / (partial_rate * memory_rate);
  if (planes) {
    const double memory = count_bytes(p) / (kPlaneBytesPerUs * memory_rate);
    return kPlaneCallUs * shape.calls + std::max(arithmetic, memory) + partials;
  }
  const double pixel_rate = size_of(p.dtype) == 2 ? kPixelHalfBytesPerUs : kPixelTf32BytesPerUs;
  const double memory = count_bytes(p) / (pixel_rate * memory_rate);
  const double products = overlap(arithmetic, memory, kSegmentOverlap);
  return kSegmentCallUs * shape.calls + products + partials;
}

// wgmma multiplies TF32 only where the reduction is innermost. Input gradients of 1x1 layers in
// channels_last have filters that lie the other way: on an H200, 12 of them take as long as
// forward's rates say where memory limits them, and 1.5 times as long where the MMAs do. Of that
// time 139 layers of networks take a share that depends on the channels: less with more target
// channels than 64, if the product is so small that it needs no workspace, or has many channels.
// Shares are relative to the predictions of cuda_boxes: without them, the choice between both
// engines loses 3.8%, and 76% at most; with them 1.5%, and 16% at most (2026-11-19).
constexpr double kTransposedFilters = 1.5;
constexpr double kNarrowShare = 1.05, kSmallOrDeepShare = 0.88;
constexpr int64_t kNarrowTargets = 64, kDeepChannels = 900;

bool transposes_filters(const ConvProblem& p, const GemmShape& shape, const DeviceCaps& caps) {
  return caps.wgmma && p.pass == Pass::kInputGrad && p.dtype == DType::kFloat32 &&
         uses_tensor_cores(p) && shape.in_place.form != InPlaceForm::kPlanes;
}

double transposed_share(const GemmShape& shape) {
  const int64_t targets = shape.view.target_channels, sources = shape.view.source_channels;
  if (targets <= kNarrowTargets) return kNarrowShare;
  const bool needs_workspace = !shape.in_place.asks_lt || shape.in_place.blas_bytes > 0;
  const bool is_deep = std::max(targets, sources) >= kDeepChannels;
  return needs_workspace && !is_deep ? 1 : kSmallOrDeepShare;
}

double predict(const ConvProblem& p, const GemmShape& shape, const DeviceCaps& caps,
               double memory_rate, double product_rate) {
  const bool is_weight_grad = p.pass == Pass::kWeightGrad;
  if (shape.in_place.is_whole) {
    return predict_whole_product(p, shape.view, shape.in_place, memory_rate, product_rate);
  }
  if (shape.in_place.form == InPlaceForm::kNone || (is_weight_grad && !uses_tensor_cores(p))) {
    return predict_columns(p, shape, caps, memory_rate, product_rate);
  }
  if (is_weight_grad) return predict_segments(p, shape, memory_rate, product_rate);
  if (!transposes_filters(p, shape, caps)) {
    return predict_in_place(p, shape.view, shape.in_place, memory_rate, product_rate);
  }
  return transposed_share(shape) * predict_in_place(p, shape.view, shape.in_place, memory_rate,
                                                    product_rate / kTransposedFilters);
}

Plan make_plan(const ConvProblem& problem, const DeviceCaps& caps, GemmShape shape) {
  Plan plan;
  plan.engine = EngineId::kCudaGemm;
  plan.tile = {shape.chunk.rows, shape.chunk.images * shape.chunk.columns, shape.chunk.images};
  plan.workspace_bytes = shape.workspace_bytes;
  const DeviceRates rates = rates_of(caps);
  const double products = std::max(caps.sm_count, 1) / kReferenceSms *
                          (uses_tensor_cores(problem) ? rates.tensor : rates.multiply);
  plan.predicted_us = predict(problem, shape, caps, rates.memory, products);
  plan.geometry = make_geometry(std::move(shape));
  return plan;
}

Consideration consider(const ConvProblem& problem, const DeviceCaps& caps, const SearchLimits&) {
  if (std::string why = refuse(problem); !why.empty()) return Refusal{why};
  GemmShape shape = fit_gemm_shape(problem, caps.workspace_limit, caps.sm_count);
  if (!shape.fits) return Refusal{"the smallest column matrix does not fit the workspace limit"};
  return make_plan(problem, caps, std::move(shape));
}

std::vector<const char*> variants(const ConvProblem& problem, const DeviceCaps&) {
  return list_wishes(problem);
}

std::optional<Plan> plan_variant(const ConvProblem& problem, const DeviceCaps& caps,
                                 std::string_view variant) {
  const std::optional<InPlaceWish> wish = find_wish(problem, variant);
  if (!wish) return std::nullopt;
  GemmShape shape = fit_gemm_shape(problem, caps.workspace_limit, caps.sm_count, *wish);
  if (!shape.fits) return std::nullopt;
  return make_plan(problem, caps, std::move(shape));
}

}  // namespace

void GemmShape::describe(Text& out) const {
  if (in_place.form == InPlaceForm::kNone) {
    out << "columns of " << chunk.images << " x " << chunk.rows << " x " << chunk.columns
        << " pixels (images x rows x columns), about " << std::llround(calls) << " GEMMs";
    return;
  }
  out << "in place as " << name_of(in_place.form);
  if (in_place.chunk_pixels > 0) out << ", " << in_place.chunk_pixels << " pixels at a time";
  if (in_place.filters.packed) out << ", packed filters";
  if (in_place.is_whole) {
    out << ", one product";
  } else if (segment > 0) {
    out << ", segments of " << segment << " pixels";
  }
  out << (in_place.asks_lt ? ", cuBLASLt" : ", cuBLAS");
  if (!in_place.asks_lt) return;
  if (in_place.blas_bytes > 0) out << " with " << (in_place.blas_bytes >> 20) << " MiB";
  if (in_place.lt_rank == kFewTiles) {
    out << ", the proposal of fewest tiles";
  } else if (in_place.lt_rank > 0) {
    out << ", proposal " << in_place.lt_rank + 1;
  }
}

Engine cuda_gemm_engine() {
  return {.id = EngineId::kCudaGemm,
          .name = "cuda_gemm",
          .consider = consider,
          .separate_pass_us = separate_pass_us,
          .variants = variants,
          .plan_variant = plan_variant};
}

}  // namespace convx
