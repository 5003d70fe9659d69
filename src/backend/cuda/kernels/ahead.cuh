// The two halves of wait_for_previous() (common.cuh), for kernels that let the next one in before they
// wait themselves: it may then ask for its weights while both still wait. Whoever comes waits for the
// kernel in front of it, which has waited for those before it.
#ifndef KM_CUDA_AHEAD_CUH
#define KM_CUDA_AHEAD_CUH

__device__ __forceinline__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ __forceinline__ void wait_for_those_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#endif
