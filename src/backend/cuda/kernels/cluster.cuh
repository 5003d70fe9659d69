// Clusters of blocks: a barrier of all, and reading each other's shared memory.
#ifndef KM_CUDA_CLUSTER_CUH
#define KM_CUDA_CLUSTER_CUH
#include <stdint.h>

__device__ __forceinline__ void cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_sync() {
    cluster_arrive();
    cluster_wait();
}
// The place in block `rank` of the cluster that this one has at `address`.
__device__ __forceinline__ uint32_t in_block(uint32_t address, int rank) {
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
__device__ __forceinline__ float4 far_four(uint32_t address) {
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}
// Into another block's shared memory; `bar` there counts the bytes that have come.
__device__ __forceinline__ void send_two(uint32_t address, float2 v, uint32_t bar) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, "
        "[%3];" ::"r"(address),
        "f"(v.x), "f"(v.y), "r"(bar)
        : "memory");
}

#endif
