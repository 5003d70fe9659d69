// What the kernels of a scan share: values as sortable keys, and what becomes of a tile of values.
#ifndef KM_CUDA_SCAN_CUH
#define KM_CUDA_SCAN_CUH
#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/kernels/vector/scan_args.h"

constexpr float SCAN_HUGE = 3e38f; // rows that are left out are beyond

__device__ __forceinline__ unsigned long long scan_key(float v, uint32_t row) {
    uint32_t u = __float_as_uint(v);
    u ^= u >> 31 ? 0xffffffffu : 0x80000000u;
    return (unsigned long long)u << 32 | row;
}
__device__ __forceinline__ float scan_value(unsigned long long key) {
    uint32_t u = (uint32_t)(key >> 32);
    return __uint_as_float(u ^ (u >> 31 ? 0x80000000u : 0xffffffffu));
}

__device__ __forceinline__ void offer(const km_scan_args &p, int query, float v, int64_t row) {
    uint32_t at = atomicAdd(&p.count[query], 1u); // in any order: lists are sorted
    if (at < KM_SCAN_LIST) p.list[(int64_t)query * KM_SCAN_LIST + at] = scan_key(v, (uint32_t)row);
}

// What two queries of a thread have: the factors of their products, and their limits.
struct ScanRows {
    int query[2];
    float factor[2], limit[2];
    __device__ __forceinline__ void load(const km_scan_args &p, int first) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            query[h] = first + 8 * h;
            factor[h] = p.factor[query[h]];
            limit[h] = p.limit[query[h]];
        }
    }
};

// Values of 8 * PIECES rows from the products d, 16 at a time: a look at the smallest is enough for
// nearly all.
template <int PIECES, bool SAMPLE>
__device__ __forceinline__ void look_at(const km_scan_args &p, float (&d)[4 * PIECES], int lane,
                                        int first, const ScanRows &own) {
    const float2 *add = reinterpret_cast<const float2 *>(p.add + first) + lane % 4;
#pragma unroll
    for (int g = 0; g < PIECES; g += 8) {
        float least[2] = {INFINITY, INFINITY};
#pragma unroll
        for (int j = g; j < g + 8; j++) {
            float2 w = __ldg(add + 4 * j);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                d[4 * j + 2 * h] = fmaf(own.factor[h], d[4 * j + 2 * h], w.x);
                d[4 * j + 2 * h + 1] = fmaf(own.factor[h], d[4 * j + 2 * h + 1], w.y);
                least[h] = fminf(least[h], fminf(d[4 * j + 2 * h], d[4 * j + 2 * h + 1]));
            }
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            if (SAMPLE) {
                int group = first / KM_SCAN_ROWS * KM_SCAN_GROUPS +
                            (first % KM_SCAN_ROWS / 64 + g / 8) * 4 + lane % 4;
                if (own.query[h] < p.queries)
                    p.list[(int64_t)own.query[h] * KM_SCAN_LIST + group] =
                        scan_key(least[h], group);
            } else if (least[h] <= own.limit[h]) {
#pragma unroll
                for (int j = g; j < g + 8; j++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        float v = d[4 * j + 2 * h + e];
                        if (v <= own.limit[h])
                            offer(p, own.query[h], v, p.first + first + 8 * j + 2 * (lane % 4) + e);
                    }
            }
        }
    }
}

#endif
