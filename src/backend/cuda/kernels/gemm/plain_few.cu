// A few rows of f32 x (2 to 8) against 16-bit weights: decoding with a model that was not
// quantised. Floor: the weights once. As in quant_few.cuh: weights are called into L2 before x is
// there, x lies in shared memory, and a warp, or part of one, sums one row after the other, 8
// weights to a thread at a time.
#include "backend/cuda/kernels/gemm/gemm_common.cuh"
#include "backend/cuda/kernels/quant/quant_args.h"

// x as two planes of four: a thread's 8 elements are at [0][i] and [1][i].
template <class T, int M>
__device__ __forceinline__ void add_eight(const uint4 &raw, const float4 *x, int i, int k, int m,
                                          float (&sum)[M]) {
    T w[8];
    memcpy(w, &raw, 16);
    float f[8];
#pragma unroll
    for (int e = 0; e < 8; e++) f[e] = to_f32(w[e]);
#pragma unroll
    for (int row = 0; row < M; row++) {
        if (M > 1 && row >= m) break;
        float4 a = x[row * (k / 4) + i], b = x[row * (k / 4) + k / 8 + i];
        sum[row] = fmaf(f[0], a.x, fmaf(f[1], a.y, fmaf(f[2], a.z, fmaf(f[3], a.w, sum[row]))));
        sum[row] = fmaf(f[4], b.x, fmaf(f[5], b.y, fmaf(f[6], b.z, fmaf(f[7], b.w, sum[row]))));
    }
}

template <class T, int M, bool GATED>
__device__ __forceinline__ void plain_few(const km_quant_few_args &a) {
    extern __shared__ __align__(16) float4 x[];
    int p = 0;
    while (p + 1 < a.parts && (int)blockIdx.x >= a.part[p + 1].first) p++;
    const km_quant_part &part = a.part[p];
    int b = blockIdx.x - part.first, k = a.k;
    int begin = b * part.each + min(b, part.more), end = begin + part.each + (b < part.more);
    const T *w = reinterpret_cast<const T *>(part.w.planes);
    const T *up = reinterpret_cast<const T *>(part.up.planes);
#if __CUDA_ARCH__ >= 900
    int64_t bytes = min((int64_t)(end - begin) * k * 2, (int64_t)a.early) / 16 * 16;
    for (int64_t at = (int64_t)threadIdx.x * 2048; at < bytes; at += KM_FEW_THREADS * 2048) {
        int n = (int)min((int64_t)2048, bytes - at);
        const char *line = reinterpret_cast<const char *>(w + (int64_t)begin * k) + at;
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(line), "r"(n));
        line = reinterpret_cast<const char *>(up + (int64_t)begin * k) + at;
        if (GATED) asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(line), "r"(n));
    }
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    for (int i = threadIdx.x; i < a.m * (k / 4); i += KM_FEW_THREADS) {
        int row = i / (k / 4), q = i % (k / 4);
        x[row * (k / 4) + (q % 2) * (k / 8) + q / 2] =
            reinterpret_cast<const float4 *>(a.x)[(int64_t)row * (k / 4) + q];
    }
    __syncthreads();
    constexpr int AT_ONCE = GATED ? 2 : 4; // pieces of a row on their way together
    int lanes = 1 << a.lane_bits, groups = KM_FEW_THREADS / lanes, group = threadIdx.x / lanes;
    int sub = threadIdx.x % lanes, pieces = k / 8;
    for (int first = begin; first < end; first += groups) {
        int row = first + group;
        float sum[M] = {}, other[GATED ? M : 1] = {};
        const uint4 *from = reinterpret_cast<const uint4 *>(w + (int64_t)min(row, part.n - 1) * k);
        const uint4 *also = reinterpret_cast<const uint4 *>(up + (int64_t)min(row, part.n - 1) * k);
        for (int u = sub; u < pieces && row < end; u += AT_ONCE * lanes) {
            uint4 raw[AT_ONCE], raw_up[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                int at = min(u + i * lanes, pieces - 1);
                raw[i] = __ldg(from + at);
                if (GATED) raw_up[i] = __ldg(also + at);
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                int at = u + i * lanes;
                if (at >= pieces) break;
                add_eight<T, M>(raw[i], x, at, k, a.m, sum);
                if constexpr (GATED) add_eight<T, M>(raw_up[i], x, at, k, a.m, other);
            }
        }
#pragma unroll
        for (int m = 0; m < M; m++) {
            for (int lane = lanes / 2; lane > 0; lane /= 2) {
                sum[m] += __shfl_xor_sync(ALL_LANES, sum[m], lane);
                if constexpr (GATED) other[m] += __shfl_xor_sync(ALL_LANES, other[m], lane);
            }
            if (sub != 0 || row >= end || m >= a.m) continue;
            float v[1] = {sum[m] + (part.bias ? part.bias[row] : 0)};
            gemm_act<float>(a.act, v);
            if constexpr (GATED) v[0] *= other[m];
            part.out[(int64_t)m * part.n + row] = v[0];
        }
    }
}

#define PLAIN_KERNEL(name, T, M, GATED)                                                            \
    extern "C" __global__ void __launch_bounds__(KM_FEW_THREADS, 2)                                \
        name(const __grid_constant__ km_quant_few_args a) {                                        \
        plain_few<T, M, GATED>(a);                                                                 \
    }
#define PLAIN(T, NAME)                                                                             \
    PLAIN_KERNEL(few_##NAME##_4, T, 4, false)                                                      \
    PLAIN_KERNEL(few_##NAME##_8, T, 8, false)                                                      \
    PLAIN_KERNEL(few_gated_##NAME##_4, T, 4, true)                                                 \
    PLAIN_KERNEL(few_gated_##NAME##_8, T, 8, true)
PLAIN(f16, F16)
PLAIN(bf16, BF16)
