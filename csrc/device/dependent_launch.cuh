// Kernels that start before those they depend on have ended: code for sm_90 and later.
// cuda/launch.h launches them, code for older devices as any other kernel.
#pragma once

namespace convx {

// Until all kernels before this one have ended, and what they wrote can be read. Every kernel that
// is launched early must call it before it touches memory.
__device__ __forceinline__ void wait_for_kernels_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

// The next kernel's blocks may start where there is room for them.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

}  // namespace convx
