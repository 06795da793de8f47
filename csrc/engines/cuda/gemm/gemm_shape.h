// Cuts a problem into column matrices that stay in L2. Plain host code.
//
// The column matrix is built from whole rows of the source image, not pixel by pixel:
//
//     col  [group][stored row t][c][column tap][image of chunk][column]
//
// Output row b reads the stored rows t = b * per_output to b * per_output + taps - 1, which are
// contiguous. Its operand [row tap, c, column tap][pixels] is therefore only a start address:
// output rows are a strided batch of GEMMs whose operands overlap, and the column matrix is R times
// smaller than that of im2col.
#pragma once

#include <cstdint>
#include <vector>

#include "core/device_caps.h"
#include "core/plan.h"
#include "core/problem.h"
#include "engines/cuda/gemm/gemm_in_place.h"
#include "planning/gather_axis.h"

namespace convx {

struct LaunchSite;

// The source row that each stored row holds. For a chunk that begins with output row b0, stored row
// t of a lane is
//
//     source row (u / unit) * outer_step + (u % unit) * inner_step + lane * source_step + offset0
//
// with u = b0 * per_output + t.
struct StoredRows {
  int64_t lanes = 1;
  int64_t unit = 1;
  int64_t outer_step = 1;
  int64_t inner_step = 0;
  int64_t per_output = 1;
  int64_t taps = 1;

  int64_t count(int64_t outputs) const { return (outputs - 1) * per_output + taps; }
};

// Chooses how the rows of a phase are stored, and rearranges the axis into lanes accordingly. Rows
// are shared if neighbouring output rows read the same source rows in the same order.
StoredRows store_rows(const AxisPhase& phase, GatherAxis& axis);

// One chunk: images x rows x columns of the target pixels of a phase.
struct GemmChunk {
  int64_t images = 1, rows = 1, columns = 1;
  int64_t column_bytes = 0;   // the column matrix
  int64_t staging_bytes = 0;  // results (or y) that cannot be used in place
  int64_t partial_bytes = 0;  // weight gradient: one product per output row
  int64_t workspace_bytes() const { return column_bytes + staging_bytes + partial_bytes; }
};

// The sizes that a chunk is chosen for.
struct GemmExtents {
  int64_t images;           // N
  int64_t rows, columns;    // pixels of one lane
  int64_t source_channels;  // all groups together
  int64_t target_channels;  // all groups together
  int64_t column_taps;
  bool in_place;          // true: a chunk of one image needs no staging of results or y
  int64_t product_bytes;  // weight gradient: bytes of one product; else 0
};

// The chunk for a budget in bytes. images is 0 if none fits.
GemmChunk fit_gemm_chunk(const GemmExtents& extents, const StoredRows& rows, const ConvProblem& p,
                         int64_t budget, int sm_count);

// Elements from one row of the column or staging matrix to the next. cuBLAS is much faster if rows
// start at multiples of 16 bytes.
constexpr int64_t pad_pixels(int64_t pixels) { return (pixels + 7) / 8 * 8; }

// Alignment of the pieces of the workspace.
constexpr int64_t kGemmAlignment = 256;
int64_t align_bytes(int64_t bytes);

// True for 1x1 layers with stride 1, no padding and contiguous planes: x itself is the column
// matrix.
bool is_pointwise(const ConvProblem& problem);

// Bytes in use for the whole launch: packed weights, or the sum of the weight gradient.
int64_t resident_bytes(const ConvProblem& problem);

// True if the GEMM can write (or read, for the weight gradient) a row of the tensor in place: in
// NCHW, and in channels_last.
bool is_row_in_place(const Strides& strides, int64_t column_step, int64_t columns);
bool is_pixel_in_place(const Strides& strides, int64_t channels);

// A phase of the rows, and how its source rows are stored.
struct GemmRows {
  GatherAxis axis;
  StoredRows stored;
};

// The phases of a problem, and chunks that fit into the workspace.
struct GemmShape {
  static constexpr EngineId kEngines[] = {EngineId::kCudaGemm};

  bool fits = true;
  GatherView view;  // the forward pass's, also for the weight gradient
  std::vector<GemmRows> rows;
  std::vector<GatherAxis> columns;
  int64_t budget = 0;  // bytes of the workspace without the resident ones
  int sm_count = 0;
  // [phase of rows][phase of columns]. Empty for pointwise problems, and for problems with so many
  // phases that plans would get large: their chunks are computed again at launch.
  std::vector<GemmChunk> chunks;

  InPlaceShape in_place;
  int64_t segment = 0;  // 1x1 weight gradient: pixels that one product reduces over

  // For the plan and its cost model.
  GemmChunk chunk;  // chunk of the first phase
  int64_t workspace_bytes = 0;
  double column_bytes = 0;  // written over the whole launch
  double staged_bytes = 0;
  double summed_bytes = 0;   // weight gradient: products that are added to the sum one by one
  double calls = 0;          // GEMM launches
  double partial_bytes = 0;  // 1x1 weight gradient: products that are added afterwards
  // Waves of cuBLAS' tiles over the whole launch, and the same weighted with the terms of their
  // reductions.
  double waves = 0, wave_terms = 0;

  void describe(Text& out) const;
};
GemmShape fit_gemm_shape(const ConvProblem& problem, int64_t workspace_limit, int sm_count,
                         const InPlaceWish& wish = {});

// The chunk for the given phases of rows and columns of a fitted shape.
GemmChunk find_gemm_chunk(const GemmShape& shape, const ConvProblem& problem,
                          const GemmExtents& extents, size_t row, size_t column);

// The extents of one phase, for fit_gemm_chunk.
GemmExtents make_extents(const ConvProblem& problem, const GatherView& view, const GatherAxis& row,
                         const GatherAxis& column);

// Forward passes and input gradients of 1x1 layers without a column matrix (gemm_in_place.h).
void launch_gemm_in_place(const LaunchSite& site, void* blas, const GemmShape& shape,
                          const Buffers& buffers);
// All weight gradients.
void launch_gemm_weight_grad(const LaunchSite& site, void* blas, const GemmShape& shape,
                             const Buffers& buffers);

}  // namespace convx
