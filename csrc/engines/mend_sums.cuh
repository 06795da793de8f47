// Products with zeros that stand for nothing, where a zero times an infinity is NaN.
#pragma once

namespace convx {

// Replaces sums that are NaN by what add says, of each by its index. Sums are in registers, and
// stay there where none is.
template <int kCount, typename Add>
__device__ __forceinline__ void mend_sums(float (&sums)[kCount], const Add& add) {
  float total = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) total += sums[i];
  if (total == total) return;  // else it may be infinities of both signs, too
  float all[kCount];           // in memory, so that a loop can go over them
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
