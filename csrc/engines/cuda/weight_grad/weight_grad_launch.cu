// Launches cuda_weight_grad. The kernels whose operands reach the tensor cores as they are stored,
// or rounded by TMA, are compiled here, those of split and scaled float32 in wgrad_float32.cu.
#include <cstdint>
#include <utility>

#include "cuda/launch_listed.h"
#include "engines/cuda/cuda_engines.h"
#include "engines/cuda/weight_grad/wgrad_call.h"
#include "engines/cuda/weight_grad/wgrad_fit.h"
#include "engines/cuda/weight_grad/wgrad_launch.cuh"

namespace convx {

extern template void run_wgrad<OperandForm::kScaledFp16>(const LaunchSite&, const WgradGeometry&,
                                                         WgradCall);
extern template void run_wgrad<OperandForm::kScaledFp16x2>(const LaunchSite&, const WgradGeometry&,
                                                           WgradCall);
extern template void run_wgrad<OperandForm::kBf16x2>(const LaunchSite&, const WgradGeometry&,
                                                     WgradCall);
extern template void run_wgrad<OperandForm::kBf16x3>(const LaunchSite&, const WgradGeometry&,
                                                     WgradCall);

namespace {

void run(const LaunchSite& site, const WgradFit& fit, const WgradCall& call) {
  launch_listed<kOperandForms>(
      site, fit.form, [&]<OperandForm kForm>() { run_wgrad<kForm>(site, fit.geometry, call); });
}

// Whether the kernels can read the tensors at their addresses.
bool can_read(const WgradGeometry& g, const Buffers& buffers) {
  const auto fits = [&](const void* tensor) {
    return reinterpret_cast<uintptr_t>(tensor) % g.alignment() == 0;
  };
  return fits(buffers.x) && fits(buffers.y);
}

// The workspace: scales, partial sums, packed X', packed dY'.
WgradCall make_call(const WgradFit& fit, const Buffers& buffers) {
  WgradCall call{};
  call.x = buffers.x, call.y = buffers.y, call.w = buffers.w;
  if (fit.is_transposed) std::swap(call.x, call.y);
  char* const memory = static_cast<char*>(buffers.workspace);
  const int components = count_components(fit.form);
  call.partials = reinterpret_cast<float*>(memory + kScaleBytes);
  call.packed_x = memory + kScaleBytes + fit.geometry.partial_bytes();
  call.packed_y = call.packed_x + fit.geometry.input_bytes(components);
  return call;
}

}  // namespace

void launch_cuda_weight_grad(const LaunchSite& site, const Plan& plan, const Buffers& buffers) {
  const auto& planned = geometry_of<WgradPlan>(plan);
  const bool exact_can_read = can_read(planned.exact.geometry, buffers);
  const WgradFit& exact_fit =
      planned.misaligned && !exact_can_read ? *planned.misaligned : planned.exact;
  WgradCall exact = make_call(exact_fit, buffers);
  if (planned.scaled && can_read(planned.scaled->geometry, buffers)) {
    WgradCall scaled = make_call(*planned.scaled, buffers);
    scaled.scales = static_cast<HalfScales*>(buffers.workspace);
    scaled.run_flag = exact.run_flag = &scaled.scales->unfit;
    scaled.run_if_zero = true;
    run(site, *planned.scaled, scaled);
  }
  run(site, exact_fit, exact);
}

}  // namespace convx
