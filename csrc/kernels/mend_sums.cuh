// Kernels that multiply padding zeros get NaN where the other operand is infinite, which the
// definition does not have. This recomputes such accumulators.
#pragma once

namespace convx {

// Replaces every accumulator that is NaN by add(index). If none is, the accumulators stay in
// registers.
template <int kCount, typename Add>
__device__ __forceinline__ void mend_sums(float (&sums)[kCount], const Add& add) {
  float total = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) total += sums[i];
  if (total == total) return;  // a NaN total may also come from infinities of both signs
  float all[kCount];           // in local memory, so that a loop can index it
#pragma unroll
  for (int i = 0; i < kCount; ++i) all[i] = sums[i];
#pragma unroll 1
  for (int i = 0; i < kCount; ++i) {
    if (all[i] != all[i]) all[i] = add(i);
  }
#pragma unroll
  for (int i = 0; i < kCount; ++i) sums[i] = all[i];
}

}  // namespace convx
