// Products of tiles of f16 that were laid out beforehand, 64 columns to a slice, swizzled as ldmatrix
// and wgmma like it: what searches over centres (nearest) and over coded rows (scan) share. What is
// done with a product is theirs.
#ifndef KM_CUDA_TILE_PRODUCTS_CUH
#define KM_CUDA_TILE_PRODUCTS_CUH
#include "backend/cuda/kernels/mma.cuh"

// A tile of BYTES into shared memory, by the 256 threads of a block; the caller commits and waits.
template <int BYTES> KM_DEVICE void ask_tile(uint32_t to, const char *from) {
#pragma unroll
    for (int i = 0; i < BYTES / 4096; i++)
        cp_async_16(to + i * 4096 + threadIdx.x * 16, from + i * 4096 + threadIdx.x * 16, true);
}

// d (16 rows of this warp, 64) += rows of a (128, 64) with those of b (64, 64).
__device__ __forceinline__ void add_slice(float (&d)[32], uint32_t a, uint32_t b, int warp,
                                          int lane) {
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t left[4];
        ldmatrix_x4(left, a + swizzle<8>(warp * 16 + lane % 16, 2 * k + lane / 16));
#pragma unroll
        for (int j = 0; j < 4; j++) { // 16 rows of b: matrices (8 rows, 8 columns)
            uint32_t right[4];
            ldmatrix_x4(right,
                        b + swizzle<8>(j * 16 + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
            float(&lo)[4] = *reinterpret_cast<float(*)[4]>(&d[8 * j]);
            float(&hi)[4] = *reinterpret_cast<float(*)[4]>(&d[8 * j + 4]);
            mma_m16n8k16<__half>(lo, left, right[0], right[1]);
            mma_m16n8k16<__half>(hi, left, right[2], right[3]);
        }
    }
}

#endif
