// Launches the kernels of 1x1 layers that TMA boxes of rows feed: MMAs and the reduction.
#pragma once

#include "cuda/launch.h"
#include "cuda/tensor_map.h"
#include "engines/cuda/weight_grad/row_boxes_kernel.cuh"
#include "engines/cuda/weight_grad/wgrad_forms.h"
#include "engines/cuda/weight_grad/wgrad_reduce.cuh"

namespace convx {

// Rows of an NCHW tensor, in boxes of 128 bytes of 64 channels or filters.
template <OperandForm kForm>
TensorMap make_rows_map(const LaunchSite& site, const void* tensor, const Strides& strides,
                        int width, int height, int channels, int images) {
  constexpr int kBytes = sizeof(element_t<kForm>);
  return make_tensor_map(
      site,
      BoxedTensor{.base = tensor,
                  .extent = {width, height, channels, images},
                  .stride_bytes = {strides.h * kBytes, strides.c * kBytes, strides.n * kBytes},
                  .box = {kBoxRowBytes / kBytes, 1, kBoxRows, 1},
                  .step = {1, 1, 1, 1},
                  .swizzle_bytes = kBoxRowBytes,
                  .value = kForm == OperandForm::kTf32 ? BoxValue::kTf32 : BoxValue::kTwoBytes});
}

template <OperandForm kForm>
void run_row_boxes(const LaunchSite& site, const WgradGeometry& g, WgradCall call) {
  set_stages(g, call, 0);
  WgradMaps maps{};
  maps.input =
      make_rows_map<kForm>(site, call.x, g.x_strides, g.width, g.height, g.channels, g.images);
  maps.gradient = make_rows_map<kForm>(site, call.y, g.y_strides, g.out_width, g.out_height,
                                       g.filters, g.images);
  const dim3 grid(static_cast<unsigned>(g.slice_blocks() * g.slices));
  const int threads = 128 * g.block_filter_tiles * g.row_tiles.channel_sets + 32;
  const auto launch = [&]<int kColumns>() {
    launch_clusters<row_boxes_kernel<kForm, kColumns>>(site, grid, g.writes_result ? g.slices : 1,
                                                       threads, static_cast<size_t>(g.shared_bytes),
                                                       g, call, maps);
  };
  static_assert(std::size(kBoxColumns) == 2);
  g.columns == kBoxColumns[0] ? launch.template operator()<kBoxColumns[0]>()
                              : launch.template operator()<kBoxColumns[1]>();
  if (!g.writes_result) launch_wgrad_reduce<kForm>(site, g, call);
}

}  // namespace convx
