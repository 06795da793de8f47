// Programmatic dependent launch: a kernel starts before the kernels that it depends on have ended
// (sm_90). launch_early in cuda/launch.h launches such kernels; code for older GPUs is launched in
// the ordinary way, and these functions do nothing.
#pragma once

namespace convx {

// Waits until all earlier kernels of the stream have ended and their results are visible. Every
// kernel that is launched early must call it before it accesses memory.
__device__ __forceinline__ void wait_for_kernels_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

// Lets the blocks of the next kernel start as soon as there is room for them.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}

}  // namespace convx
