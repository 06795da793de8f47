// The cost of a pass of its own for residual and activation (kernels/separate_pass.h).
#pragma once

#include "planning/device_rates.h"

namespace convx {

// It reads and writes y, and reads the residual: a launch and the bandwidth of copies (H200).
inline double separate_pass_us(const ConvProblem& problem, const DeviceCaps& caps) {
  constexpr double kLaunchMicroseconds = 3, kBytesPerMicrosecond = 3.6e6;
  const double tensors = problem.epilogue.has_residual ? 3 : 2;
  const double bytes = tensors * static_cast<double>(size_of(problem.dtype)) *
                       static_cast<double>(problem.N * problem.K * problem.P * problem.Q);
  return kLaunchMicroseconds + bytes / (kBytesPerMicrosecond * rates_of(caps).memory);
}

// The time of that pass behind an engine whose kernels apply a ReLU themselves: 0 for a ReLU.
inline double pass_us_unless_relu(const ConvProblem& problem, const DeviceCaps& caps) {
  return find_lowest(problem.epilogue) ? 0 : separate_pass_us(problem, caps);
}

}  // namespace convx
