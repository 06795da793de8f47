// GatherAxis (planning/gather_axis.h) in 32 bits, as a kernel parameter. Plain data.
#pragma once

#include "planning/gather_axis.h"

namespace convx {

struct CudaAxis {
  int count;  // outputs
  int taps, tap0, tap_step;
  int source_step, offset0, offset_step;
  int lanes, classes, period;
  int class_taps, longer_classes;  // the first longer_classes classes have one tap more

  int most_class_taps() const { return class_taps + (longer_classes > 0 ? 1 : 0); }

  // Source positions from the first to the last that `outputs` neighbouring outputs read.
  int64_t count_span(int64_t outputs) const {
    return (outputs - 1) * source_step + int64_t{taps - 1} * offset_step + 1;
  }

#ifdef __CUDACC__
  __device__ int count_taps(int index) const { return class_taps + (index < longer_classes); }
#endif
};

inline CudaAxis make_cuda_axis(const GatherAxis& axis) {
  const auto narrow = [](int64_t value) { return static_cast<int>(value); };
  CudaAxis a{};
  a.count = narrow(axis.count);
  a.taps = narrow(axis.taps), a.tap0 = narrow(axis.tap0), a.tap_step = narrow(axis.tap_step);
  a.source_step = narrow(axis.source_step);
  a.offset0 = narrow(axis.offset0), a.offset_step = narrow(axis.offset_step);
  a.lanes = narrow(axis.lanes), a.classes = narrow(axis.classes), a.period = narrow(axis.period);
  a.class_taps = a.taps / a.classes, a.longer_classes = a.taps % a.classes;
  return a;
}

}  // namespace convx
