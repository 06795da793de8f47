// How cuda_gemm cuts a problem into column matrices that stay in the L2 cache. Plain host code.
//
// The column matrix is built row by row of the source image, not pixel by pixel:
//     col  [group][stored row t][c][column tap][image of chunk][lattice column]
// An output row b reads the taps t = b*per_output ... + taps - 1, which lie one after the other,
// so for it the matrix [row tap, c, column tap][pixels] is just a start address: output rows are a
// strided batch of GEMMs whose right-hand matrices overlap, and the column matrix is R times
// smaller than im2col's.
#pragma once

#include <cstdint>
#include <vector>

#include "core/device_caps.h"
#include "core/problem.h"
#include "engines/cuda_gemm/gemm_in_place.h"
#include "engines/gather_axis.h"

namespace convx {

// Which source row each stored row holds. For output block b0, stored row t of a lane is
//     source row (u / unit)*outer_step + (u % unit)*inner_step + lane*source_step + offset0
// with u = b0*per_output + t.
struct StoredRows {
  int64_t lanes = 1;
  int64_t unit = 1;
  int64_t outer_step = 1;
  int64_t inner_step = 0;
  int64_t per_output = 1;
  int64_t taps = 1;

  int64_t count(int64_t outputs) const { return (outputs - 1) * per_output + taps; }
};

// Rearranges axis to the lanes it is stored in: sharing rows where taps of neighbouring output
// rows meet the same source rows in the same order.
StoredRows store_rows(const AxisPhase& phase, GatherAxis& axis);

// One chunk: images x rows x columns of the target lattice.
struct GemmChunk {
  int64_t images = 1, rows = 1, columns = 1;
  int64_t column_bytes = 0;   // the column matrix
  int64_t staging_bytes = 0;  // results (or y) that cannot be used in place
  int64_t partial_bytes = 0;  // weight gradient: one product per output row
  int64_t workspace_bytes() const { return column_bytes + staging_bytes + partial_bytes; }
};

// What a chunk is made for.
struct GemmExtents {
  int64_t images;           // N
  int64_t rows, columns;    // lattice points of one lane
  int64_t source_channels;  // all groups
  int64_t target_channels;  // all groups
  int64_t column_taps;
  bool in_place;          // results or y need no staging when a chunk is one image
  int64_t product_bytes;  // weight gradient: bytes of one product; else 0
};

// The chunk for a budget in bytes; images = 0 if none fits.
GemmChunk fit_gemm_chunk(const GemmExtents& extents, const StoredRows& rows, const ConvProblem& p,
                         int64_t budget, int sm_count);

// Elements from one line of the column or staging matrix to the next: cuBLAS is much faster on
// lines that start on 16-byte boundaries.
constexpr int64_t pad_pixels(int64_t pixels) { return (pixels + 7) / 8 * 8; }

// Workspace pieces start on multiples of this.
constexpr int64_t kGemmAlignment = 256;
int64_t align_bytes(int64_t bytes);

// 1x1, stride 1, no padding, rows stored without gaps: x itself is the column matrix.
bool is_pointwise(const ConvProblem& problem);

// Bytes that stay in use for the whole launch: packed weights, or the sum of the weight gradient.
int64_t resident_bytes(const ConvProblem& problem);

// Whether the GEMM can write (or read, weight gradient) a lattice row of the tensor in place.
bool is_row_in_place(const Strides& strides, int64_t column_step, int64_t columns);
bool is_pixel_in_place(const Strides& strides, int64_t channels);

// A phase of the height, and how its rows are stored.
struct GemmRows {
  GatherAxis axis;
  StoredRows stored;
};

// The problem's phases, and the chunks that fit the largest of them into the workspace:
// Plan::shape.
struct GemmShape {
  bool fits = true;
  GatherView view;  // of the forward pass, for the weight gradient too
  std::vector<GemmRows> rows;
  std::vector<GatherAxis> columns;
  int64_t budget = 0;  // bytes of the workspace that are not resident
  int sm_count = 0;
  // [phase of the height][phase of the width]; empty for pointwise problems, and where there are so
  // many phases that plans would get large: those are fitted again.
  std::vector<GemmChunk> chunks;

  InPlaceShape in_place;
  int64_t segment = 0;  // pixels that a product of a pointwise weight gradient reduces over

  // For the plan and its cost.
  GemmChunk chunk;  // of the first phase
  int64_t workspace_bytes = 0;
  double column_bytes = 0;  // written over the whole launch
  double staged_bytes = 0;
  double calls = 0;  // GEMM launches
};
GemmShape fit_gemm_shape(const ConvProblem& problem, int64_t workspace_limit, int sm_count,
                         const InPlaceWish& wish = {});

// The chunk for phases row and column of a fitted shape, given their extents.
GemmChunk find_gemm_chunk(const GemmShape& shape, const ConvProblem& problem,
                          const GemmExtents& extents, size_t row, size_t column);

// The extents of one phase, as fit_gemm_chunk wants them.
GemmExtents make_extents(const ConvProblem& problem, const GatherView& view, const GatherAxis& row,
                         const GatherAxis& column);

}  // namespace convx
