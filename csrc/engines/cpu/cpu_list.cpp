// The CPU engines. Both are a matrix product over the taps, by the same drivers, and take every
// problem.
//
// cpu_gemm unfolds the image (im2col) one register-tile panel at a time, so the unfolded matrix
// never exists as a whole. Best if many target channels share the cost of unfolding.
//
// cpu_direct reads every tap from the padded image in place. Nothing is unfolded, but vectors that
// reach past the end of a row do unused work. Best for few channels, 1x1 kernels, and widths that
// are multiples of a vector; depthwise layers in channels_last have a driver of their own.
//
// Plan::tile is that of the driver (drivers.h).
#include "engines/cpu/driver/drivers.h"
#include "engines/engines.h"

namespace convx {
namespace {

template <EngineId kEngine>
Consideration consider(const ConvProblem& problem, const DeviceCaps& caps, const SearchLimits&) {
  if (kEngine == EngineId::kCpuDirect && is_channelwise(problem)) {
    return plan_channelwise(problem, caps);
  }
  const ConvProblem flat = flatten_pointwise(problem);
  Plan plan = flat.pass == Pass::kWeightGrad ? plan_weight(flat, caps, kEngine)
                                             : plan_gather(flat, caps, kEngine);
  plan.predicted_us = predict_cpu_us(flat, plan, caps);
  return plan;
}

}  // namespace

std::span<const Engine> cpu_engines() {
  static constexpr Engine kEngines[] = {
      {EngineId::kCpuGemm, "cpu_gemm", consider<EngineId::kCpuGemm>},
      {EngineId::kCpuDirect, "cpu_direct", consider<EngineId::kCpuDirect>},
  };
  return kEngines;
}

}  // namespace convx
