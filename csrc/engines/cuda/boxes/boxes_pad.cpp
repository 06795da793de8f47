#include "engines/cuda/boxes/boxes_pad.h"

#include "core/arithmetic.h"
#include "core/gather_view.h"
#include "engines/cuda/boxes/boxes_shape.h"

namespace convx {
namespace {

constexpr double kLaunchMicroseconds = 2;
constexpr double kBytesPerMicrosecond = 3e6;  // device memory, read and written

}  // namespace

CopiedPixels find_source_padding(const ConvProblem& problem) {
  const GatherTensors view = make_gather_tensors(problem);
  const int64_t channels = view.source_channels, size = size_of(problem.dtype);
  const bool together = channels == 1 || view.source_strides.c == 1;
  if (!together || find_box_form(problem)) return {};
  const Strides& from = view.source_strides;
  return {.element_bytes = size,
          .pixel_bytes = channels * size,
          .padded_bytes = round_up(channels * size, 16),
          .rows = view.source_h,
          .columns = view.source_w,
          .n = from.n,
          .h = from.h,
          .w = from.w,
          .count = problem.N * view.source_h * view.source_w};
}

ConvProblem with_padded_source(const ConvProblem& problem, const CopiedPixels& padding) {
  if (padding.count == 0) return problem;
  ConvProblem padded = problem;
  const int64_t pitch = padding.padded_bytes / padding.element_bytes;
  (problem.pass == Pass::kForward ? padded.x_strides : padded.y_strides) = {
      padding.rows * padding.columns * pitch, 1, padding.columns * pitch, pitch};
  return padded;
}

double predict_padding(const CopiedPixels& padding) {
  if (padding.count == 0) return 0;
  return kLaunchMicroseconds + 2 * static_cast<double>(padding.bytes()) / kBytesPerMicrosecond;
}

}  // namespace convx
