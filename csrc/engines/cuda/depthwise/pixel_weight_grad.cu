// Launches the tiled weight gradients, and those that keep rows of taps in registers.
#include "cuda/launch.h"
#include "cuda/launch_listed.h"
#include "cuda/tensor_map.h"
#include "device/convert.cuh"
#include "engines/cuda/depthwise/pixel_weight_grad_kernel.cuh"
#include "engines/cuda/depthwise/row_weight_grad_kernel.cuh"

namespace convx {
namespace {

// The maps of tensors that are copied as boxes; not set otherwise.
PixelGradMaps make_pixel_grad_maps(const LaunchSite& site, const PixelWeightGradParams& p) {
  PixelGradMaps maps{};
  if (!p.uses_boxes) return maps;
  const DepthwiseTensors& t = p.t;
  const int64_t element = size_of(site.problem->dtype);
  const BoxValue value = element == 2 ? BoxValue::kTwoBytes : BoxValue::kFourBytes;
  maps.source = make_tensor_map(
      site, BoxedTensor{
                .base = t.source,
                .extent = {t.channels, t.source_width, t.source_height, t.images},
                .stride_bytes = {t.source_w * element, t.source_h * element, t.source_n * element},
                .box = {p.chunk, p.row_pixels, 1, 1},
                .step = {1, t.column.period, 1, 1},
                .swizzle_bytes = 0,
                .value = value});
  maps.target = make_tensor_map(
      site, BoxedTensor{
                .base = t.target,
                .extent = {t.channels, t.column.count, t.row.count, t.images},
                .stride_bytes = {t.target_w * element, t.target_h * element, t.target_n * element},
                .box = {p.chunk, p.tile_columns, 1, 1},
                .step = {1, t.column.lanes, 1, 1},
                .swizzle_bytes = 0,
                .value = value});
  return maps;
}

void launch_tiles(const LaunchSite& site, const PixelWeightGradFit& fit, const Buffers& buffers) {
  const PixelWeightGradParams params = make_pixel_weight_grad_params(*site.problem, fit, buffers);
  const PixelGradMaps maps = make_pixel_grad_maps(site, params);
  visit_float_type(site.problem->dtype, [&](auto zero) {
    using T = decltype(zero);
    launch_listed<kPixelGradCores>(site, kPixelGradCores[fit.core], [&]<PixelGradCore kCore>() {
      launch_kernel<pixel_weight_grad_kernel<T, kCore.taps, kCore.stride>>(
          site, fit.blocks, fit.threads, fit.shared_bytes, params, maps);
    });
  });
}

void launch_rows(const LaunchSite& site, const RowWeightGradFit& fit,
                 const RowWeightGradParams& params) {
  visit_float_type(site.problem->dtype, [&](auto zero) {
    using T = decltype(zero);
    launch_listed<kRowGradCores>(site, kRowGradCores[fit.core], [&]<RowGradCore kCore>() {
      launch_kernel<row_weight_grad_kernel<T, kCore.taps, kCore.stride>>(
          site, fit.blocks, fit.threads, fit.shared_bytes, params);
    });
  });
}

}  // namespace

void launch_weight_grad(const LaunchSite& site, const PixelWeightGradFit& fit,
                        const Buffers& buffers) {
  if (const auto rows = make_row_weight_grad_params(*site.problem, fit.rows, buffers)) {
    launch_rows(site, fit.rows, *rows);
    if (fit.rows.splits > 1) add_partial_sums(site, fit.rows.splits, buffers);
  } else {
    launch_tiles(site, fit, buffers);
    add_partial_sums(site, fit.splits, buffers);
  }
}

}  // namespace convx
