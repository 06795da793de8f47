#include "engines/cuda_boxes/boxes_pad.h"
#include "core/arithmetic.h"
#include "core/gather_view.h"
#include "engines/cuda_boxes/boxes_shape.h"

namespace convx {
namespace {

constexpr double kLaunchMicroseconds = 2;
constexpr double kBytesPerMicrosecond = 3e6;  // read and written

}  // namespace

SourcePadding find_source_padding(const ConvProblem& problem) {
  const GatherTensors view = make_gather_tensors(problem);
  const int64_t channels = view.source_channels, size = size_of(problem.dtype);
  const bool together = channels == 1 || view.source_strides.c == 1;
  if (!together || find_box_form(problem)) return {};
  SourcePadding padding;
  padding.images = problem.N, padding.rows = view.source_h, padding.columns = view.source_w;
  padding.element_bytes = size;
  padding.pixel_bytes = channels * size;
  padding.padded_bytes = round_up(padding.pixel_bytes, 16);
  padding.bytes = padding.images * padding.rows * padding.columns * padding.padded_bytes;
  padding.from = view.source_strides;
  return padding;
}

ConvProblem with_padded_source(const ConvProblem& problem, const SourcePadding& padding) {
  if (padding.bytes == 0) return problem;
  ConvProblem padded = problem;
  const int64_t pitch = padding.padded_bytes / padding.element_bytes;
  (problem.pass == Pass::kForward ? padded.x_strides : padded.y_strides) = {
      padding.rows * padding.columns * pitch, 1, padding.columns * pitch, pitch};
  return padded;
}

double predict_padding(const SourcePadding& padding) {
  if (padding.bytes == 0) return 0;
  return kLaunchMicroseconds + 2 * static_cast<double>(padding.bytes) / kBytesPerMicrosecond;
}

}  // namespace convx
