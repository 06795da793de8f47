// 1x1 layers that cuda_gemm multiplies without building columns: their tensors are matrices as they
// lie. Forward pass and input gradient. Plain host code.
//
//   kPlanes         target[filter][pixel] = filters[filter][channel] * source[channel][pixel], a
//                   product per image
//   kPixels         target[pixel][filter] = source[pixel][channel] * filters[filter][channel]
//                   transposed, one product of all images
//   kStridedPixels  the same where the source's pixels are not all read, or not dense: they are
//                   copied together first, some at a time
//   kSideBySide     planes whose lines begin anywhere keep cuBLAS from its fast kernels (7x7 pixels
//                   of 16 bits: 50 instead of 600 TFLOP/s), so those of all images are copied side
//                   by side, [channel][image, pixel], and results back, where that pays
//
// A bias is added before sums are rounded: to pixels by cuBLASLt's epilogue, which adds along the
// other axis than planes would need. Those get a matrix of bias values to start from, one for all
// images, or for pieces of large ones; or it is added when results are copied. Pixels of float64,
// for which there is no epilogue, are filled with it, and products are added.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/gather_view.h"
#include "core/problem.h"

namespace convx {

enum class InPlaceForm : uint8_t { kNone, kPlanes, kPixels, kStridedPixels, kSideBySide };

bool uses_tensor_cores(const ConvProblem& problem);  // cuBLAS, in this precision
bool adds_bias(const ConvProblem& problem);
int64_t target_pixels(const ConvProblem& problem);  // of all images

const char* name_of(InPlaceForm form);
// Weight gradients have the first two of them. What could lie side by side is kPlanes here.
InPlaceForm find_in_place_form(const ConvProblem& problem);

// Where the filters lie as a matrix of [target channel][source channel], or transposed.
struct FilterMatrix {
  bool packed = false;  // they do not: they are copied
  bool transposed = false;
  int64_t pitch = 0;
  int64_t group_stride = 0;
};
FilterMatrix find_filter_matrix(const ConvProblem& problem, const GatherTensors& view);

struct InPlaceShape {
  InPlaceForm form = InPlaceForm::kNone;
  FilterMatrix filters;
  int64_t source_pitch = 0, target_pitch = 0;  // from plane to plane, or from pixel to pixel
  int64_t bias_pixels = 0;                     // of planes: of the matrix of bias values
  // That are copied together at a time; side by side, those of some images.
  int64_t chunk_pixels = 0;
  bool wide_results = false;  // side by side: in the accumulation type
  bool asks_lt = false;       // cuBLASLt chooses the algorithm, not cuBLAS
  int lt_rank = 0;            // and it is this one of its proposals, see lt_proposals.h
  // The workspace: packed filters, bias values, pixels, results, what cuBLASLt wants.
  int64_t filter_bytes = 0, bias_bytes = 0, chunk_bytes = 0, result_bytes = 0, blas_bytes = 0;

  // Lines of all three matrices begin at multiples of what divides this, in elements.
  int64_t pitches() const { return filters.pitch | source_pitch | target_pitch; }
  bool has_aligned_lines(DType dtype) const { return pitches() * size_of(dtype) % 16 == 0; }
  int64_t workspace_bytes() const {
    return filter_bytes + bias_bytes + chunk_bytes + result_bytes + blas_bytes;
  }
};

// What a measurement may want to be other than it was fitted.
struct InPlaceWish {
  InPlaceForm form = InPlaceForm::kNone;  // none: the one that is predicted to be faster
  enum class Algorithm : uint8_t { kFitted, kCublas, kLt } algorithm = Algorithm::kFitted;
  int64_t blas_bytes = 0;  // that cuBLASLt is offered
  int lt_rank = 0;         // of its proposals
};
// By name, those that there are for the problem: "planes", "side_by_side", "cublas", and "lt_0",
// "lt_1" and "lt_32" for what cuBLASLt is offered, in MiB; "lt_1_2" is its second proposal.
std::vector<const char*> list_wishes(const ConvProblem& problem);
std::optional<InPlaceWish> find_wish(const ConvProblem& problem, std::string_view name);

InPlaceShape fit_in_place(const ConvProblem& problem, const GatherTensors& view,
                          int64_t workspace_limit, const InPlaceWish& wish = {});

// Of a launch, in microseconds on an H200, memory and products scaled by the rates of the device:
// in_place_cost.cpp.
double predict_in_place(const ConvProblem& problem, const GatherTensors& view,
                        const InPlaceShape& shape, double memory_rate, double product_rate);

}  // namespace convx
