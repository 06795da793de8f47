// Kernels that run or not by what kernels before them found, without asking the host.
#pragma once

namespace convx {

// Parameters that know no gate are open.
template <typename Params>
__device__ __forceinline__ bool is_shut(const Params& p) {
  if constexpr (requires { p.gate; }) {
    return p.gate != nullptr && (*p.gate == 0) != (p.runs_at_zero != 0);
  } else {
    return false;
  }
}

}  // namespace convx
