// The search for the nearest centre, as products with f16 leave it in registers: for each row the
// smallest value seen, the next, and the value of the third, so that it is known afterwards whether
// rounding could have changed the answer.
#ifndef KM_CUDA_NEAREST_CUH
#define KM_CUDA_NEAREST_CUH
#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/kernels/vector/nearest_args.h"

constexpr float NEAREST_HUGE = 3e38f;

// A power of two that brings the data to about 2^6, far from both ends of f16.
__device__ __forceinline__ float nearest_scale(const km_nearest_info *info) {
    float reach = __uint_as_float(info->reach);
    if (!(reach > 0)) return 1.0f;
    int e = ilogbf(reach);
    e = e < -44 ? -44 : e > 56 ? 56 : e;
    return ldexpf(1.0f, 6 - e);
}

// Of one tile of columns: values carry in their lowest six bits which column of the thread's they are.
struct TileBest {
    float a, b, c;
    __device__ __forceinline__ void clear() { a = b = c = NEAREST_HUGE; }
    __device__ __forceinline__ void meet(float v, uint32_t code) {
        float k = __uint_as_float((__float_as_uint(v) & ~63u) | code);
        float t = fmaxf(a, k);
        a = fminf(a, k);
        float u = fmaxf(b, t);
        b = fminf(b, t);
        c = fminf(c, u);
    }
};

struct RowBest {
    float a, b, c;
    int ia, ib;
    __device__ __forceinline__ void clear() {
        a = b = c = NEAREST_HUGE;
        ia = ib = 0;
    }
    __device__ __forceinline__ void meet(float v, int i) {
        if (v < a) {
            c = b;
            b = a, ib = ia;
            a = v, ia = i;
        } else if (v < b) {
            c = b;
            b = v, ib = i;
        } else {
            c = fminf(c, v);
        }
    }
    // Column of a code: two of every eight are the thread's.
    __device__ __forceinline__ void meet(const TileBest &t, int first, int lane) {
        uint32_t ca = __float_as_uint(t.a) & 63u, cb = __float_as_uint(t.b) & 63u;
        int at = first + 2 * (lane % 4);
        meet(t.a, at + (ca >> 1) * 8 + (ca & 1));
        meet(t.b, at + (cb >> 1) * 8 + (cb & 1));
        c = fminf(c, t.c);
    }
    // What the four lanes of a row have found, joined in all of them.
    __device__ __forceinline__ void join() {
#pragma unroll
        for (int by = 1; by < 4; by *= 2) {
            float oa = __shfl_xor_sync(ALL_LANES, a, by), ob = __shfl_xor_sync(ALL_LANES, b, by);
            float oc = __shfl_xor_sync(ALL_LANES, c, by);
            int ja = __shfl_xor_sync(ALL_LANES, ia, by), jb = __shfl_xor_sync(ALL_LANES, ib, by);
            meet(oa, ja);
            meet(ob, jb);
            c = fminf(c, oc);
        }
    }
};

// Values of a tile of 8 * PIECES columns from the sums d: |c'|^2 - 2 x'.c'.
template <int PIECES>
__device__ __forceinline__ void search_tile(const float (&d)[4 * PIECES], const float *c_norm,
                                            int lane, int first, RowBest (&best)[2]) {
    const float2 *norm = reinterpret_cast<const float2 *>(c_norm + first) + lane % 4;
    TileBest t[2];
    t[0].clear();
    t[1].clear();
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
        float2 w = __ldg(norm + 4 * j);
        t[0].meet(fmaf(-2.0f, d[4 * j], w.x), 2 * j);
        t[1].meet(fmaf(-2.0f, d[4 * j + 2], w.x), 2 * j);
        t[0].meet(fmaf(-2.0f, d[4 * j + 1], w.y), 2 * j + 1);
        t[1].meet(fmaf(-2.0f, d[4 * j + 3], w.y), 2 * j + 1);
    }
    best[0].meet(t[0], first, lane);
    best[1].meet(t[1], first, lane);
}

// The largest |c'|, in all threads of the block. part: one float for each warp.
__device__ __forceinline__ float largest_centre(const km_nearest_args &p, float *part) {
    float m = 0;
    for (int i = threadIdx.x; i < p.k; i += blockDim.x) m = fmaxf(m, p.c_size[i]);
    m = warp_max(m);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = m;
    __syncthreads();
    for (int w = 0; w < (int)blockDim.x / 32; w++) m = fmaxf(m, part[w]);
    return m;
}

// What becomes of a row: its answer, or a place on the list of those that are looked at again.
__device__ __forceinline__ void settle_row(const km_nearest_args &p, const RowBest &best,
                                           int64_t row, float largest, float scale) {
    float square = p.x_norm[row], size = sqrtf(square);
    // Both products' errors, what the codes took, sums in f32, and f16 below its normal range.
    float slack = p.slack * size * largest + 0x1p-15f * fabsf(best.a) +
                  0x1p-20f * largest * largest + 0x1p-23f * p.root * (size + largest);
    float limit = best.a + slack;
    bool sure = slack < 1e38f && best.a < 1e38f; // not NaN, not beyond f16, not past the last
    p.id[row] = best.ia;
    p.dist[row] = fmaxf(square + best.a, 0.0f) / (scale * scale);
    if (!sure || best.c <= limit) {
        p.key[row] = ~0ull;
        p.full[atomicAdd(&p.counts[1], 1u)] = (int32_t)row;
    } else if (best.b <= limit) {
        uint32_t at = atomicAdd(&p.counts[0], 1u);
        p.pair[2 * (int64_t)at] = (int32_t)row;
        p.pair[2 * (int64_t)at + 1] = best.ib;
    }
}

#endif
