// Kernels that return early, depending on a device-side flag that an earlier kernel has written.
// The host never waits for the flag.
#pragma once

namespace convx {

// True if the kernel must return at once: p.run_flag is set, and (*p.run_flag == 0) differs from
// p.run_if_zero. Kernels whose parameters have no run_flag always run.
template <typename Params>
__device__ __forceinline__ bool must_return(const Params& p) {
  if constexpr (requires { p.run_flag; }) {
    return p.run_flag != nullptr && (*p.run_flag == 0) != (p.run_if_zero != 0);
  } else {
    return false;
  }
}

}  // namespace convx
