// Kernels that return early, depending on a device-side flag that an earlier kernel has written.
// The host never waits for the flag.
#pragma once

namespace convx {

// True if the kernel must return at once: p.gate is set, and (*p.gate == 0) differs from
// p.runs_at_zero. Kernels whose parameters have no gate always run.
template <typename Params>
__device__ __forceinline__ bool is_shut(const Params& p) {
  if constexpr (requires { p.gate; }) {
    return p.gate != nullptr && (*p.gate == 0) != (p.runs_at_zero != 0);
  } else {
    return false;
  }
}

}  // namespace convx
