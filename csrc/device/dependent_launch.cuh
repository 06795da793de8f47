// Kernels that start before those they depend on have ended (sm_90; cuda/launch.h launches them).
#pragma once

namespace convx {

// Until all kernels before this one have ended, and what they wrote can be read. Every kernel that
// is launched early must call it before it touches memory.
__device__ __forceinline__ void wait_for_kernels_before() {
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
}

// The next kernel's blocks may start where there is room for them.
__device__ __forceinline__ void let_next_kernel_start() {
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
}

}  // namespace convx
