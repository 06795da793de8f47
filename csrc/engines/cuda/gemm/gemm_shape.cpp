#include "engines/cuda/gemm/gemm_shape.h"

#include <algorithm>

#include "planning/dense_pixels.h"

namespace convx {
namespace {

// A chunk's column matrix must stay in a 50 MB L2 beside the results. Chosen on an H200 (60 MB);
// docs/engines/cuda_gemm.md describes the chunks.
constexpr int64_t kColumnBudget = int64_t{30} << 20;
// Used where chunks of that size would leave multiprocessors idle: leaving L2 is cheaper.
constexpr int64_t kLargeColumnBudget = int64_t{128} << 20;
// Products of the weight gradient that have not been summed yet.
constexpr int64_t kPartialBudget = int64_t{48} << 20;
// Results to which the bias is added in place, while they are still in L2 after the GEMM.
constexpr int64_t kBiasBudget = int64_t{20} << 20;
// GEMMs narrower than this waste tiles, so several images are put side by side.
constexpr int64_t kWantedPixels = 512;
constexpr int64_t kMinColumns = 32;
// 1x1 weight gradient: most pixels that one product reduces over, and fewest, where there are too
// few products for all multiprocessors.
constexpr int64_t kMostSegmentPixels = 8192;
constexpr int64_t kFewestSegmentPixels = 1024;
// Most pixels of a segment on tensor cores in channels_last. A block of cuBLAS reads a long segment
// at the memory's full rate: kb87pw in TF32 takes 2,979 us in segments of 8,192 pixels and 2,780 in
// these. Where all values are positive, the tensor cores' sums lose so much that the error
// is 4.8e-4, half of cuDNN's (H200, 2026-11-19).
constexpr int64_t kMostTensorSegmentPixels = 65536;
// Pairs of phases whose chunks are stored in the plan.
constexpr size_t kMaxChunks = 64;

// Splits into equal parts: 64 rows in chunks of at most 37 become 2 x 32.
int64_t balance(int64_t total, int64_t most) { return ceil_div(total, ceil_div(total, most)); }

}  // namespace

int64_t align_bytes(int64_t bytes) { return ceil_div(bytes, kGemmAlignment) * kGemmAlignment; }

StoredRows store_rows(const AxisPhase& phase, GatherAxis& axis) {
  axis = make_gather_axis(phase, true);
  StoredRows rows;
  rows.taps = std::max<int64_t>(axis.taps, 1);
  const bool slides = axis.taps > axis.classes;
  if (slides && axis.classes == 1 && (axis.lanes == 1 || axis.count_per_lane() >= 16)) {
    rows.lanes = axis.lanes;
    rows.outer_step = axis.period;
    return rows;
  }
  if (slides && axis.lanes == 1) {
    rows.outer_step = axis.offset_step;
    rows.per_output = axis.classes;
    return rows;
  }
  axis = make_gather_axis(phase, false);
  rows.unit = rows.per_output = rows.taps;
  rows.outer_step = axis.source_step;
  rows.inner_step = axis.offset_step;
  return rows;
}

// cuBLAS requires a pitch that is not smaller than a row; strides of axes with one element may be.
bool is_row_in_place(const Strides& strides, int64_t column_step, int64_t columns) {
  return strides.w == 1 && column_step == 1 && strides.c >= columns;
}

bool is_pixel_in_place(const Strides& strides, int64_t channels) {
  return strides.c == 1 && strides.w >= channels;
}

bool is_pointwise(const ConvProblem& p) {
  return is_one_to_one(p) && p.x_strides.w == 1 && p.x_strides.h == p.W && p.y_strides.w == 1 &&
         p.y_strides.h == p.W && p.x_strides.c >= p.H * p.W && p.y_strides.c >= p.H * p.W;
}

int64_t resident_bytes(const ConvProblem& p) {
  const int64_t elements = p.K * p.channels_per_group() * p.taps();
  const bool sums = p.pass == Pass::kWeightGrad;
  return align_bytes(elements * (sums ? accumulate_bytes(p.dtype) : size_of(p.dtype)));
}

GemmExtents make_extents(const ConvProblem& p, const GatherView& view, const GatherAxis& row,
                         const GatherAxis& column) {
  GemmExtents e{};
  e.images = p.N;
  e.rows = row.count_per_lane();
  e.columns = column.count;
  e.source_channels = view.source_channels * p.groups;
  e.target_channels = view.target_channels * p.groups;
  e.column_taps = std::max<int64_t>(column.taps, 1);
  const int64_t step = column.target_step;
  e.in_place = is_row_in_place(view.target_strides, step, e.columns) ||
               is_pixel_in_place(view.target_strides, e.target_channels);
  if (p.pass == Pass::kWeightGrad) {
    e.product_bytes = p.K * p.channels_per_group() * p.taps() * accumulate_bytes(p.dtype);
  } else if (p.epilogue.has_bias && size_of(p.dtype) == 2) {
    e.in_place = false;  // the bias is added before the sum is rounded to 16 bits
  }
  return e;
}

GemmChunk fit_gemm_chunk(const GemmExtents& e, const StoredRows& rows, const ConvProblem& p,
                         int64_t budget, int sm_count) {
  const bool weight_grad = p.pass == Pass::kWeightGrad;
  const int64_t staged_size = weight_grad ? size_of(p.dtype) : accumulate_bytes(p.dtype);
  GemmChunk chunk;
  chunk.columns = e.columns;
  if (e.columns < kWantedPixels / 2) {
    const int64_t most =
        std::clamp<int64_t>(ceil_div(kWantedPixels, e.columns), 1, std::max<int64_t>(e.images, 1));
    chunk.images = balance(std::max<int64_t>(e.images, 1), most);
  }
  auto measure = [&](int64_t count) {
    const int64_t pixels = pad_pixels(chunk.images * chunk.columns);
    chunk.rows = count;
    chunk.column_bytes = align_bytes(rows.count(count) * e.source_channels * e.column_taps *
                                     pixels * size_of(p.dtype));
    const bool staged = !e.in_place || chunk.images > 1;
    chunk.staging_bytes =
        staged ? align_bytes(count * e.target_channels * pixels * staged_size) : 0;
    // A single product is accumulated straight onto the sum.
    chunk.partial_bytes = weight_grad && count > 1 ? align_bytes(count * e.product_bytes) : 0;
    return chunk.workspace_bytes() <= budget;
  };
  while (!measure(1)) {
    if (chunk.images > 1) {
      chunk.images = ceil_div(chunk.images, 2);
    } else if (chunk.columns > kMinColumns) {
      chunk.columns = ceil_div(chunk.columns, 2);
    } else {
      chunk.images = 0;
      return chunk;
    }
  }
  const int64_t result_row_bytes =
      chunk.images * chunk.columns * e.target_channels * size_of(p.dtype);
  // The most rows whose columns stay within the given size.
  auto count_rows = [&](int64_t column_budget) {
    int64_t low = 1;
    int64_t high = e.rows;
    while (low < high) {
      const int64_t middle = (low + high + 1) / 2;
      const bool fits = measure(middle) && chunk.column_bytes <= column_budget &&
                        chunk.partial_bytes <= kPartialBudget &&
                        (!p.epilogue.has_bias || middle * result_row_bytes <= kBiasBudget);
      (fits ? low : high) = fits ? middle : middle - 1;
    }
    return low;
  };
  // A GEMM has some 128 x 128 tiles per output row. Whole waves of them leave no multiprocessor
  // idle.
  const int64_t tiles = ceil_div(chunk.images * chunk.columns, 128) *
                        ceil_div(e.target_channels, 128 * p.groups) * p.groups;
  int64_t most = count_rows(kColumnBudget);
  if (most * tiles < sm_count) most = count_rows(kLargeColumnBudget);
  const int64_t quarter_wave = std::max(sm_count / 4, 1);
  if (chunk.images == 1 && most >= quarter_wave && most < e.rows) {
    measure(most / quarter_wave * quarter_wave);
  } else {
    measure(balance(e.rows, most));
  }
  return chunk;
}

// Segments of all pixels of a 1x1 weight gradient in channels_last: so many that their tiles fill
// the GPU twice, or a few times more often where segments are long. Their lengths are rounded down,
// so that the product of the rest is short.
static int64_t count_segments(const ConvProblem& p, int sm_count) {
  const int64_t pixels = p.N * p.H * p.W, tiles = count_gradient_tiles(p);
  const int64_t fewest =
      ceil_div(pixels, uses_tensor_cores(p) ? kMostTensorSegmentPixels : kMostSegmentPixels);
  const int64_t sms = std::max(sm_count, 1);
  const int64_t waves = std::max<int64_t>(2, ceil_div(fewest * tiles, sms));
  const int64_t wanted = std::max(fewest, waves * sms / tiles);
  return std::clamp<int64_t>(pixels / kFewestSegmentPixels, 1, wanted);
}

// 1x1 weight gradient: apart from the resident sum, memory is needed only for products that wait to
// be summed, and only if more than one of them fits.
static void fit_segments(GemmShape& shape, const ConvProblem& p) {
  shape.fits = shape.budget >= 0;
  if (shape.in_place.is_whole) {
    shape.segment = target_pixels(p);
    shape.budget = 0;
    shape.workspace_bytes = shape.in_place.chunk_bytes + shape.in_place.blas_bytes;
    shape.calls = 1;
    return;
  }
  const int64_t product = p.K * p.channels_per_group() * accumulate_bytes(p.dtype);
  int64_t segments = 0;
  if (shape.in_place.form == InPlaceForm::kPixels) {  // segments span all images
    const int64_t pixels = p.N * p.H * p.W;
    shape.segment = pixels / count_segments(p, shape.sm_count);
    segments = pixels / shape.segment;
    // A lone segment leaves multiprocessors idle, and takes as long as two calls.
    shape.calls = pixels % shape.segment == 0 && segments > 1 ? 1 : 2;
  } else {
    shape.segment = std::min(p.H * p.W, kMostSegmentPixels);
    segments = std::max(p.H * p.W / kMostSegmentPixels, p.N);
    shape.calls = static_cast<double>(p.H * p.W > kMostSegmentPixels ? 2 * p.N : p.groups);
  }
  const int64_t count = std::min(segments, std::min(shape.budget, kPartialBudget) / product);
  if (segments > 1) {
    shape.partial_bytes = static_cast<double>(segments * product);
    shape.calls += static_cast<double>(ceil_div(segments, std::max<int64_t>(count, 1)) - 1);
  }
  shape.budget = count > 1 ? align_bytes(count * product) : 0;
  shape.workspace_bytes = resident_bytes(p) + shape.budget;
}

// Adds the waves of the tiles of so many chunks. The products of a chunk's rows, or of its groups,
// are one batch.
static void count_waves(GemmShape& shape, const ConvProblem& p, const GemmChunk& chunk,
                        int64_t taps, double chunks) {
  const bool is_weight_grad = p.pass == Pass::kWeightGrad;
  const int64_t columns = chunk.images * chunk.columns;
  const int64_t channels = shape.view.source_channels * std::max<int64_t>(taps, 1);
  const int64_t tiles = ceil_div(shape.view.target_channels, kBlasTile) *
                        ceil_div(is_weight_grad ? channels : columns, kBlasTile);
  const int64_t calls = std::min(p.groups, chunk.rows);
  const int64_t call_tiles = ceil_div(p.groups * chunk.rows, calls) * tiles;
  const double waves =
      chunks * static_cast<double>(calls * ceil_div(call_tiles, std::max(shape.sm_count, 1)));
  shape.waves += waves;
  shape.wave_terms += waves * static_cast<double>(is_weight_grad ? columns : channels);
}

static void fit_phases(GemmShape& shape, const ConvProblem& problem) {
  const size_t pairs = shape.rows.size() * shape.columns.size();
  int64_t largest = 0;
  for (const GemmRows& row : shape.rows) {
    for (const GatherAxis& column : shape.columns) {
      const GemmExtents extents = make_extents(problem, shape.view, row.axis, column);
      const GemmChunk chunk =
          fit_gemm_chunk(extents, row.stored, problem, shape.budget, shape.sm_count);
      if (chunk.images == 0) shape.fits = false;
      if (!shape.fits) return;
      if (largest == 0) shape.chunk = chunk;
      if (pairs <= kMaxChunks) shape.chunks.push_back(chunk);
      largest = std::max(largest, chunk.workspace_bytes());
      const double chunks = static_cast<double>(
          row.stored.lanes * ceil_div(extents.rows, chunk.rows) *
          ceil_div(extents.columns, chunk.columns) * ceil_div(extents.images, chunk.images));
      shape.column_bytes += chunks * static_cast<double>(chunk.column_bytes);
      shape.staged_bytes += chunks * static_cast<double>(chunk.staging_bytes + chunk.partial_bytes);
      shape.calls += chunks * static_cast<double>(std::min(problem.groups, chunk.rows));
      count_waves(shape, problem, chunk, row.axis.taps * column.taps, chunks);
      if (problem.pass == Pass::kWeightGrad && chunk.partial_bytes == 0) {
        shape.summed_bytes += chunks * static_cast<double>(extents.product_bytes);
      }
    }
  }
  shape.budget = largest;
  shape.workspace_bytes = resident_bytes(problem) + largest;
}

GemmShape fit_gemm_shape(const ConvProblem& problem, int64_t workspace_limit, int sm_count,
                         const InPlaceWish& wish) {
  ConvProblem viewed = problem;
  if (viewed.pass == Pass::kWeightGrad) viewed.pass = Pass::kForward;
  GemmShape shape;
  shape.view = make_gather_view(viewed);
  shape.budget = workspace_limit - resident_bytes(problem);
  shape.sm_count = sm_count;
  for (const AxisPhase& phase : shape.view.rows) {
    GemmRows& row = shape.rows.emplace_back();
    row.stored = store_rows(phase, row.axis);
  }
  for (const AxisPhase& phase : shape.view.columns) {
    shape.columns.push_back(make_gather_axis(phase, false));
  }
  shape.in_place = fit_in_place(problem, shape.view, workspace_limit, wish);
  if (shape.in_place.form == InPlaceForm::kNone) {
    fit_phases(shape, problem);
  } else if (problem.pass == Pass::kWeightGrad) {
    shape.chunk = {problem.N, problem.H, problem.W};
    fit_segments(shape, problem);
  } else {
    shape.chunk = {problem.N, problem.P, problem.Q};
    shape.workspace_bytes = shape.in_place.workspace_bytes();
    shape.fits = shape.workspace_bytes <= workspace_limit;
  }
  return shape;
}

GemmChunk find_gemm_chunk(const GemmShape& shape, const ConvProblem& problem,
                          const GemmExtents& extents, size_t row, size_t column) {
  if (!shape.chunks.empty()) return shape.chunks[row * shape.columns.size() + column];
  return fit_gemm_chunk(extents, shape.rows[row].stored, problem, shape.budget, shape.sm_count);
}

}  // namespace convx
