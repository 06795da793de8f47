#include "engines/cuda/cuda_engines.h"
#include "engines/engines.h"

namespace convx {

std::span<const Engine> cuda_engines() {
  static const Engine engines[] = {
      cuda_pixels_engine(),   cuda_lines_engine(),     cuda_boxes_engine(),
      cuda_mma_engine(),      cuda_pointwise_engine(), cuda_grouped_engine(),
      cuda_diagonal_engine(), cuda_depthwise_engine(), cuda_bands_engine(),
      cuda_phases_engine(),   cuda_col2im_engine(),    cuda_weight_grad_engine(),
      cuda_gemm_engine(),     cuda_direct_engine()};
  return engines;
}

}  // namespace convx
