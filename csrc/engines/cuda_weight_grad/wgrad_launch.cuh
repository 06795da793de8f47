// Launches the kernels of one operand form: packing, MMAs and the reduction, round by round.
#pragma once

#include <algorithm>

#include "cuda/launch.h"
#include "engines/cuda_weight_grad/measure_scales.cuh"
#include "engines/cuda_weight_grad/pack_positions.cuh"
#include "engines/cuda_weight_grad/wgrad_forms.h"
#include "engines/cuda_weight_grad/wgrad_kernel.cuh"
#include "engines/cuda_weight_grad/wgrad_reduce.cuh"

namespace convx {

template <OperandForm kForm>
struct ComponentType {
  using type = __nv_bfloat16;
};
template <>
struct ComponentType<OperandForm::kFloat16> {
  using type = __half;
};
template <>
struct ComponentType<OperandForm::kScaledFp16> {
  using type = __half;
};
template <>
struct ComponentType<OperandForm::kScaledFp16x2> {
  using type = __half;
};

template <typename T, OperandForm kForm, PackedSide kSide>
void pack_side(const LaunchSite& site, const WgradGeometry& g, const WgradCall& call) {
  constexpr bool kIsInput = kSide == PackedSide::kInput;
  constexpr int kComponents = count_components(kForm);
  const Strides& strides = kIsInput ? g.x_strides : g.y_strides;
  const bool channels_adjacent = strides.c == 1 && strides.w != 1;
  const auto is_aligned = [](int64_t elements) { return elements * sizeof(T) % 16 == 0; };
  const auto address = reinterpret_cast<uintptr_t>(kIsInput ? call.x : call.y);
  const auto is_even = [](int64_t elements) { return elements % 2 == 0; };
  const bool is_vector = channels_adjacent
                             ? address % 16 == 0 && is_aligned(strides.n) &&
                                   is_aligned(strides.h) && is_aligned(strides.w)
                             : address % (2 * sizeof(T)) == 0 && strides.w == 1 &&
                                   is_even(strides.n) && is_even(strides.c) && is_even(strides.h);
  const int64_t bytes = kIsInput ? g.input_bytes(1) : g.gradient_bytes(1);
  const int64_t blocks = std::min<int64_t>(bytes / kPackedBlockBytes, kPackBlocks);
  launch_early<pack_positions_kernel<T, kForm, kSide>>(
      site, dim3(static_cast<unsigned>(blocks)), kPackThreads,
      1024 + kComponents * kPackedBlockBytes, g, call, channels_adjacent, is_vector);
}

template <OperandForm kForm, int kColumns>
void launch_mmas(const LaunchSite& site, const WgradGeometry& g, const WgradCall& call) {
  using Value = typename ComponentType<kForm>::type;
  const dim3 grid(static_cast<unsigned>(g.tiles() * g.slices));
  launch_early<wgrad_kernel<Value, count_components(kForm), kColumns>>(
      site, grid, 128 * g.consumers() + 32, static_cast<size_t>(g.shared_bytes), g, call);
}

// Calls the kernel for the geometry's number of columns.
template <OperandForm kForm>
void multiply_positions(const LaunchSite& site, const WgradGeometry& g, const WgradCall& call) {
  if constexpr (count_components(kForm) == 1) {
    if (g.columns == 256) return launch_mmas<kForm, 256>(site, g, call);
    if (g.columns == 224) return launch_mmas<kForm, 224>(site, g, call);
    if (g.columns == 160) return launch_mmas<kForm, 160>(site, g, call);
    if (g.columns == 192) return launch_mmas<kForm, 192>(site, g, call);
  }
  if (g.columns == 128) return launch_mmas<kForm, 128>(site, g, call);
  if (g.columns == 96) return launch_mmas<kForm, 96>(site, g, call);
  if (g.columns == 64) return launch_mmas<kForm, 64>(site, g, call);
  throw_launch_error(site, "choosing a kernel", "no such number of columns");
}

template <typename T, OperandForm kForm>
void run_wgrad(const LaunchSite& site, const WgradGeometry& g, WgradCall call) {
  if constexpr (is_scaled(kForm)) {
    launch_early<measure_scales_kernel<WgradGeometry>>(
        site, dim3(2), kMeasureThreads, kMeasureThreads / 32 * sizeof(Measure), g, call);
  }
  for (int64_t first = 0; first < g.stages_total; first += g.round_stages) {
    call.first_stage = first;
    call.stages = std::min(g.round_stages, g.stages_total - first);
    call.adds_to_partials = first > 0;
    pack_side<T, kForm, PackedSide::kInput>(site, g, call);
    pack_side<T, kForm, PackedSide::kGradient>(site, g, call);
    multiply_positions<kForm>(site, g, call);
  }
  launch_wgrad_reduce<T, kForm>(site, g, call);
}

}  // namespace convx
