/* Attention, forward, f16 and bf16 on the tensor cores of sm_80 and newer. A block keeps 128
 * queries and walks over their keys, 64 at a time from the last seen to the first, with a running
 * maximum and sum per row (online softmax); a warp owns 32 rows. While the scores of a key tile
 * are computed its values arrive, and while these are applied the next keys arrive.
 *
 * Floor, causal: 2 * 2 * B*H*Tq*Tk/2 * D operations; bytes (2 Tq + 2 Tk) * B*H*D * 2. */
#include "backend/cuda/kernels/attention/attention_mma.cuh"

template <typename T, int D>
__device__ __forceinline__ void attention_fwd(const km_attention_args &p) {
    constexpr int BR = KM_ATTENTION_MMA_ROWS, BC = KM_ATTENTION_MMA_FWD_KEYS, M = 2;
    constexpr int THREADS = KM_ATTENTION_MMA_FWD_THREADS;
    extern __shared__ __align__(128) char km_smem[];
    uint32_t q_tile = smem_addr(km_smem), k_tile = q_tile + BR * D * 2;
    uint32_t v_tile = k_tile + BC * D * 2;

    /* causal: the blocks with most keys start first */
    int block = p.causal ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    int h = blockIdx.y, b = blockIdx.z, hk = h / (p.heads / p.kv_heads);
    int first = block * BR, warp_row = threadIdx.x / 32 * 32;
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    attention_rows<T> q = attention_rows_of<T>(p.q, b, h), k = attention_rows_of<T>(p.k, b, hk);
    attention_rows<T> v = attention_rows_of<T>(p.v, b, hk), o = attention_rows_of<T>(p.o, b, h);

    int shift = p.tk - p.tq; /* query i sees keys up to i + shift */
    int keys = p.causal ? min(p.tk, first + BR + shift) : p.tk;
    int tiles = keys > 0 ? (keys + BC - 1) / BC : 0;
    float c = p.scale * KM_LOG2E;

    float acc[M][D / 8][4], row_max[M][2], row_sum[M][2];
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int j = 0; j < D / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) acc[m][j][e] = 0;
        row_max[m][0] = row_max[m][1] = -INFINITY;
        row_sum[m][0] = row_sum[m][1] = 0;
    }

    if (tiles) {
        tile_load<T, D, BR, THREADS>(q_tile, q, first, p.tq);
        tile_load<T, D, BC, THREADS>(k_tile, k, (tiles - 1) * BC, p.tk);
        cp_async_commit();
    }
    for (int tile = tiles - 1; tile >= 0; tile--) {
        int key = tile * BC;
        cp_async_wait<0>();
        __syncthreads(); /* keys are here, and the last values are no longer read */
        tile_load<T, D, BC, THREADS>(v_tile, v, key, p.tk);
        cp_async_commit();
        float s[M][BC / 8][4];
        product_abt<T, D, M, BC>(s, q_tile, warp_row, k_tile);
        cp_async_wait<0>();
        __syncthreads(); /* values are here, and the keys are no longer read */
        if (tile > 0) {
            tile_load<T, D, BC, THREADS>(k_tile, k, key - BC, p.tk);
            cp_async_commit();
        }

        /* every row of the warp sees the whole tile, except at the diagonal and the end */
        int row0 = first + warp_row;
        bool masked = key + BC > p.tk || (p.causal && key + BC - 1 > row0 + shift);
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                if (masked) {
                    int row = row0 + 16 * m + 8 * half + g;
                    int limit = p.causal ? min(p.tk, row + shift + 1) : p.tk;
#pragma unroll
                    for (int j = 0; j < BC / 8; j++)
#pragma unroll
                        for (int e = 0; e < 2; e++)
                            if (key + 8 * j + 2 * t + e >= limit) s[m][j][2 * half + e] = -INFINITY;
                }
                float top = row_max[m][half];
#pragma unroll
                for (int j = 0; j < BC / 8; j++)
                    top = fmaxf(top, fmaxf(s[m][j][2 * half], s[m][j][2 * half + 1]));
                top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFF, top, 1));
                top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFF, top, 2));
                float base = top == -INFINITY ? 0 : top * c; /* no key seen yet: all stay 0 */
                float alpha = fast_exp2(row_max[m][half] * c - base);
                row_max[m][half] = top;
                float sum = row_sum[m][half] * alpha; /* of this thread's columns */
#pragma unroll
                for (int j = 0; j < BC / 8; j++)
#pragma unroll
                    for (int e = 2 * half; e < 2 * half + 2; e++) {
                        s[m][j][e] = fast_exp2(s[m][j][e] * c - base);
                        sum += s[m][j][e];
                    }
                row_sum[m][half] = sum;
#pragma unroll
                for (int j = 0; j < D / 8; j++) {
                    acc[m][j][2 * half] *= alpha;
                    acc[m][j][2 * half + 1] *= alpha;
                }
            }
        }
        product_pb<T, D, M, BC>(acc, s, v_tile);
    }

#pragma unroll
    for (int m = 0; m < M; m++) {
        float inv[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float sum = row_sum[m][half];
            sum += __shfl_xor_sync(0xFFFFFFFF, sum, 1);
            sum += __shfl_xor_sync(0xFFFFFFFF, sum, 2);
            bool none = sum == 0;
            inv[half] = none ? 0 : 1 / sum;
            int row = first + warp_row + 16 * m + 8 * half + g;
            if (t == 0 && row < p.tq)
                ((float *)p.lse.data)[b * p.lse.b + h * p.lse.h + row * p.lse.t] =
                    none ? -INFINITY : row_max[m][half] * p.scale + logf(sum);
        }
        tile_store_16<T, D>(km_smem, warp_row + 16 * m, acc[m], inv[0], inv[1], o,
                            first + warp_row + 16 * m, p.tq);
    }
}

#define KM_ATTENTION_FWD(T, NAME, D)                                                               \
    extern "C" __global__ void __launch_bounds__(KM_ATTENTION_MMA_FWD_THREADS)                     \
        km_attention_fwd_mma_##NAME##_d##D(const __grid_constant__ km_attention_args p) {          \
        attention_fwd<T, D>(p);                                                                    \
    }
#define KM_ATTENTION_FWD_SIZES(T, NAME)                                                            \
    KM_ATTENTION_FWD(T, NAME, 64)                                                                  \
    KM_ATTENTION_FWD(T, NAME, 80)                                                                  \
    KM_ATTENTION_FWD(T, NAME, 96)                                                                  \
    KM_ATTENTION_FWD(T, NAME, 128)

KM_ATTENTION_FWD_SIZES(__nv_bfloat16, bf16)
KM_ATTENTION_FWD_SIZES(__half, f16)
