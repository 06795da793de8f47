// 1x1 layers whose tensors cuda_gemm multiplies as matrices, without building columns. Plain host
// code.
//
//     kPlanes         target[filter][pixel] = filters[filter][channel] * source[channel][pixel],
//                     one GEMM per image (NCHW)
//     kPixels         target[pixel][filter] = source[pixel][channel] * transposed filters, one GEMM
//                     for all images (channels_last)
//     kStridedPixels  kPixels with a source that is not dense, or of which not all pixels are read:
//                     pixels are copied together first, some at a time
//     kSideBySide     kPlanes with rows that are not aligned, where cuBLAS is slow (7x7 pixels in
//                     16 bits: 50 instead of 600 TFLOP/s): the planes of all images are copied to
//                     [channel][image, pixel], and the results back, where that is faster
//
// Weight gradients are [filter][channel] = target[pixel][filter]^T * source[pixel][channel], by
// kPlanes or kPixels. One product writes the whole of it where all pixels are one matrix and the
// reduction is not long; otherwise segments of pixels are multiplied on their own, and their
// products added. By kStridedPixels they are one product of all pixels, copied together at once.
//
// The bias is added before the sums are rounded. For pixels, cuBLASLt's epilogue adds it. For
// planes the epilogue's axis is the wrong one, so the GEMM starts from a matrix of bias values,
// shared by all images or by pieces of large ones. For kSideBySide the copy back adds it. Pixels of
// float64, for which there is no epilogue, are filled with the bias before the GEMM accumulates
// onto them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/gather_view.h"
#include "core/problem.h"

namespace convx {

enum class InPlaceForm : uint8_t { kNone, kPlanes, kPixels, kStridedPixels, kSideBySide };

bool uses_tensor_cores(const ConvProblem& problem);  // cuBLAS, in the problem's precision
bool adds_bias(const ConvProblem& problem);
int64_t target_pixels(const ConvProblem& problem);  // all images

inline constexpr int64_t kBlasTile = 128;  // rows and columns of cuBLAS's large tiles
// Such tiles of a 1x1 layer's weight gradient, of all groups.
int64_t count_gradient_tiles(const ConvProblem& problem);

const char* name_of(InPlaceForm form);
// Weight gradients by kStridedPixels may still need columns, see fit_in_place. Returns kPlanes
// where kSideBySide is possible too.
InPlaceForm find_in_place_form(const ConvProblem& problem);

// The filters as a matrix [target channel][source channel], or its transpose.
struct FilterMatrix {
  bool packed = false;  // true: they are no such matrix, and are copied first
  bool transposed = false;
  int64_t pitch = 0;
  int64_t group_stride = 0;
};
FilterMatrix find_filter_matrix(const ConvProblem& problem, const GatherTensors& view);

struct InPlaceShape {
  InPlaceForm form = InPlaceForm::kNone;
  FilterMatrix filters;
  int64_t source_pitch = 0, target_pitch = 0;  // from plane to plane, or from pixel to pixel
  int64_t bias_pixels = 0;                     // kPlanes: columns of the matrix of bias values
  // Pixels that are copied together at a time; for kSideBySide, those of whole images.
  int64_t chunk_pixels = 0;
  bool wide_results = false;  // kSideBySide: results are stored in the accumulation type
  bool is_whole = false;      // weight gradient: one product writes it
  bool asks_lt = false;       // true: cuBLASLt chooses the algorithm; false: cuBLAS does
  int lt_rank = 0;            // which of cuBLASLt's proposals is taken, see kMostLtProposals
  // Workspace, in order: packed filters, bias values, copied pixels, results, cuBLASLt's workspace.
  int64_t filter_bytes = 0, bias_bytes = 0, chunk_bytes = 0, result_bytes = 0, blas_bytes = 0;

  // The alignment of all three matrices' rows is the largest power of two that divides this
  // (elements).
  int64_t pitches() const { return filters.pitch | source_pitch | target_pitch; }
  bool has_aligned_lines(DType dtype) const { return pitches() * size_of(dtype) % 16 == 0; }
  int64_t workspace_bytes() const {
    return filter_bytes + bias_bytes + chunk_bytes + result_bytes + blas_bytes;
  }
};

// Constraints that variants put on the shape.
struct InPlaceWish {
  InPlaceForm form = InPlaceForm::kNone;  // kNone: the form with the smaller prediction
  // kSegments: of weight gradients. The others ask for a whole product.
  enum class Algorithm : uint8_t { kFitted, kCublas, kLt, kSegments };
  Algorithm algorithm = Algorithm::kFitted;
  int64_t blas_bytes = 0;  // workspace that cuBLASLt is offered
  int lt_rank = 0;         // which of its proposals
};
// Names of the variants that apply to the problem: "planes", "side_by_side", "segments", "cublas",
// and "lt_0", "lt_1" and "lt_32" for the workspace in MiB that cuBLASLt is offered; "lt_1_2" is its
// second proposal.
std::vector<const char*> list_wishes(const ConvProblem& problem);
std::optional<InPlaceWish> find_wish(const ConvProblem& problem, std::string_view name);

InPlaceShape fit_in_place(const ConvProblem& problem, const GatherTensors& view,
                          int64_t workspace_limit, const InPlaceWish& wish = {});

// Predicted microseconds of a launch on an H200; the device's rates, relative to an H200, scale
// memory traffic and products (in_place_cost.cpp).
double predict_in_place(const ConvProblem& problem, const GatherTensors& view,
                        const InPlaceShape& shape, double memory_rate, double product_rate);
// Predicted microseconds of a weight gradient that is one product.
double predict_whole_product(const ConvProblem& problem, const GatherTensors& view,
                             const InPlaceShape& shape, double memory_rate, double product_rate);

// The time of a product whose arithmetic and memory traffic overlap, the better the larger the
// exponent.
double overlap(double arithmetic, double memory, double exponent);

// Algorithms that cuBLASLt proposes for a product. LtExtras::rank is an index into the list of
// proposals (the last one, if the list is shorter), or kFewTiles.
inline constexpr int kMostLtProposals = 8;
inline constexpr int kFewTiles = -1;  // the choice of choose_few_tiles

// waves[i]: waves of tiles that proposal i needs for one product of the batch.
//
// With a short reduction, storing the results takes most of the time, and wide tiles store best.
// cuBLASLt's first proposal often has narrow tiles; a later one with far fewer tiles is faster.
size_t choose_few_tiles(const std::vector<float>& waves, int64_t batch);

}  // namespace convx
