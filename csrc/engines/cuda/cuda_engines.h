// The CUDA engines: what each adds to the list (cuda_list.cpp), and what launches a plan of it
// (launch_cuda.cpp). The planning half of an engine lies in <engine>_plan.cpp, the launching half
// in <engine>_launch.cu, or in <engine>_kernel.cu behind the only kernel.
#pragma once

#include "core/engine.h"
#include "core/plan.h"

namespace convx {

struct LaunchSite;

// Multiplies cuBLAS's way: column matrices that are built in chunks which stay in L2, or the
// tensors themselves (1x1). Takes every problem.
// Plan::tile: m output rows, n pixels along a row (images side by side), k images per chunk.
Engine cuda_gemm_engine();
void launch_cuda_gemm(const LaunchSite& site, const Plan& plan, const Buffers& buffers);

// Sums with FFMA from tiles in shared memory, gathered from the image. Takes every problem.
// Plan::tile: m filters and n pixels (or columns of the weight gradient) per block; k is the index
// of the compiled tile.
Engine cuda_direct_engine();
void launch_cuda_direct(const LaunchSite& site, const Plan& plan, const Buffers& buffers);

// Flattens the padded image, so that a tap is a shifted start address of one wgmma operand
// (window_shape.h).
// Plan::tile: m filters and n positions per block, k channels per stage.
Engine cuda_lines_engine();
void launch_cuda_lines(const LaunchSite& site, const Plan& plan, const Buffers& buffers);

// Fetches a TMA box of pixels per tap and channel chunk for wgmma (boxes_shape.h).
// Plan::tile: m pixels and n filters per block, k channels per stage.
Engine cuda_boxes_engine();
void launch_cuda_boxes(const LaunchSite& site, const Plan& plan, const Buffers& buffers);

// Gathers pixels from shared memory into registers as rows of wgmma: stems, strides, odd shapes.
Engine cuda_pixels_engine();
void launch_cuda_pixels(const LaunchSite& site, const Plan& plan, const Buffers& buffers);

// Does the same with mma.sync, which GPUs from sm_80 on have.
Engine cuda_mma_engine();
void launch_cuda_mma(const LaunchSite& site, const Plan& plan, const Buffers& buffers);

// Keeps all filters of a 1x1 layer in shared memory and reads every pixel once.
// Plan::tile: pixels of a tile, filters of a block, channels of a chunk.
Engine cuda_pointwise_engine();
void launch_cuda_pointwise(const LaunchSite& site, const Plan& plan, const Buffers& buffers);

// Computes several small groups per block with FFMA, in one pass over memory.
// Plan::tile: output rows, output columns and groups (in channels_last: filters) of a block.
Engine cuda_grouped_engine();
void launch_cuda_grouped(const LaunchSite& site, const Plan& plan, const Buffers& buffers);

// Makes block-diagonal matrices of small groups' filters for the tensor cores, in channels_last.
// Plan::tile: output rows, output columns and channels of a block.
Engine cuda_diagonal_engine();
void launch_cuda_diagonal(const LaunchSite& site, const Plan& plan, const Buffers& buffers);

// Computes depthwise layers with FFMA, in one pass over memory.
// Plan::tile: output rows, output columns, and planes (NCHW) or channels (channels_last) of a
// block.
Engine cuda_depthwise_engine();
void launch_cuda_depthwise(const LaunchSite& site, const Plan& plan, const Buffers& buffers);

// Makes a band matrix of each row of taps of a large depthwise kernel for the tensor cores.
// Plan::tile: output rows of a block (over all its images), output columns, and the source columns
// that a band spans.
Engine cuda_bands_engine();
void launch_cuda_bands(const LaunchSite& site, const Plan& plan, const Buffers& buffers);

// Computes strided input gradients as convolutions with stride 1, which other engines run
// (phases_shape.h).
Engine cuda_phases_engine();
void launch_cuda_phases(const LaunchSite& site, const Plan& plan, const Buffers& buffers);

// Multiplies the input gradients of layers with few channels tap by tap, and adds the products
// where they overlap (col2im_geometry.h).
Engine cuda_col2im_engine();
void launch_cuda_col2im(const LaunchSite& site, const Plan& plan, const Buffers& buffers);

// Computes weight gradients with wgmma, reduced over pixels: a tap is a shift of a tile
// (wgrad_geometry.h).
Engine cuda_weight_grad_engine();
void launch_cuda_weight_grad(const LaunchSite& site, const Plan& plan, const Buffers& buffers);

}  // namespace convx
