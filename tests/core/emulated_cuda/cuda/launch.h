// In place of csrc's: emulated kernels are called by the tests.
#pragma once

#include <cstddef>

#include "core/problem.h"

namespace convx {

struct dim3 {
  unsigned x, y = 1;
};

struct LaunchSite {
  const ConvProblem* problem;
};

template <auto kKernel, typename... Args>
void launch_kernel(const LaunchSite&, dim3, int threads, size_t shared_bytes, const Args&...);
unsigned count_loop_blocks(int64_t items, int threads);

}  // namespace convx
