#include "engines/cuda_bands/cuda_bands_plan.h"
#include "engines/cuda_boxes/cuda_boxes_plan.h"
#include "engines/cuda_col2im/cuda_col2im_plan.h"
#include "engines/cuda_depthwise/cuda_depthwise_plan.h"
#include "engines/cuda_diagonal/cuda_diagonal_plan.h"
#include "engines/cuda_direct/cuda_direct_plan.h"
#include "engines/cuda_gemm/cuda_gemm_plan.h"
#include "engines/cuda_grouped/cuda_grouped_plan.h"
#include "engines/cuda_lines/cuda_lines_plan.h"
#include "engines/cuda_mma/cuda_mma_plan.h"
#include "engines/cuda_phases/cuda_phases_plan.h"
#include "engines/cuda_pixels/cuda_pixels_plan.h"
#include "engines/cuda_pointwise/cuda_pointwise_plan.h"
#include "engines/cuda_weight_grad/cuda_weight_grad_plan.h"
#include "engines/engine_list.h"

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
