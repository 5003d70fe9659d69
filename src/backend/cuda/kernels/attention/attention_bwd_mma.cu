/* Attention, gradient, f16 and bf16 on the tensor cores of sm_80 and newer, in two passes that
 * each own what they write, so that nothing is added atomically and every run gives the same bits:
 *   dq    a block keeps 128 queries and walks over their keys:    dq = scale * dS K
 *   dkdv  a block keeps 128 keys and walks over their queries:    dk = scale * dS^T Q, dv = P^T dO
 * with P = exp(scale * Q K^T - lse), dS = P * (dO V^T - delta). Both are one kernel: X are the rows
 * kept (16 a warp), Y those that stream past, two tiles in flight. P and dS go from one product's
 * accumulators to the next one's operand in registers.
 *
 * Floor: 7 products (3 in dq, 4 in dkdv) of 2 * B*H*Tq*Tk * D operations, halved when causal; the
 * usual count is 5 products. */
#include "backend/cuda/kernels/attention/attention_mma.cuh"

template <typename T, int D, bool DKDV>
__device__ __forceinline__ void attention_bwd(const km_attention_args &p) {
    constexpr int BR = KM_ATTENTION_MMA_ROWS, BC = KM_ATTENTION_MMA_BWD_COLS(D);
    constexpr int THREADS = KM_ATTENTION_MMA_BWD_THREADS;
    constexpr int X_BYTES = BR * D * 2, Y_BYTES = BC * D * 2, STAGE = 2 * Y_BYTES + 2 * BC * 4;
    extern __shared__ __align__(128) char km_smem[];
    uint32_t x1 = smem_addr(km_smem), x2 = x1 + X_BYTES, ring = x2 + X_BYTES;

    int group = p.heads / p.kv_heads, b = blockIdx.z;
    int block = !DKDV && p.causal ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    int first = block * BR, warp_row = threadIdx.x / 32 * 16;
    int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int x_end = DKDV ? p.tk : p.tq, y_end = DKDV ? p.tq : p.tk;
    int shift = p.tk - p.tq; /* query i sees keys up to i + shift */
    float c = p.scale * KM_LOG2E;
    int64_t work_size = (int64_t)p.batch * p.heads * p.tq_pad;

    /* The tiles of Y that some row of X meets: [tile_lo, tile_hi) of each of `heads` heads. */
    int h0 = DKDV ? blockIdx.y * group : blockIdx.y, heads = DKDV ? group : 1;
    int hk = DKDV ? blockIdx.y : blockIdx.y / group;
    int tile_lo = 0, tile_hi = (y_end + BC - 1) / BC;
    if (p.causal) {
        if (DKDV)
            tile_lo = max(0, first - shift) / BC;
        else
            tile_hi = max(0, min(tile_hi, (first + BR + shift + BC - 1) / BC));
    }
    int per_head = max(0, tile_hi - tile_lo), tiles = per_head * heads;

    attention_rows<T> x1_rows =
        DKDV ? attention_rows_of<T>(p.k, b, hk) : attention_rows_of<T>(p.q, b, h0);
    attention_rows<T> x2_rows =
        DKDV ? attention_rows_of<T>(p.v, b, hk) : attention_rows_of<T>(p.d_o, b, h0);

    auto load_y = [&](int n) {
        int h = h0 + n / per_head, at = (tile_lo + n % per_head) * BC;
        uint32_t stage = ring + n % 2 * STAGE;
        attention_rows<T> y1 =
            DKDV ? attention_rows_of<T>(p.q, b, h) : attention_rows_of<T>(p.k, b, hk);
        attention_rows<T> y2 =
            DKDV ? attention_rows_of<T>(p.d_o, b, h) : attention_rows_of<T>(p.v, b, hk);
        tile_load<T, D, BC, THREADS>(stage, y1, at, y_end);
        tile_load<T, D, BC, THREADS>(stage + Y_BYTES, y2, at, y_end);
        if (DKDV && threadIdx.x < 2 * BC / 4) { /* the queries' lse, then their delta */
            int which = threadIdx.x / (BC / 4), i = threadIdx.x % (BC / 4) * 4;
            const float *w = p.work + which * work_size + ((int64_t)b * p.heads + h) * p.tq_pad;
            cp_async_16(stage + 2 * Y_BYTES + threadIdx.x * 16, w + at + i, true);
        }
    };

    float row_lse[2] = {0, 0}, row_delta[2] = {0, 0};
    if (!DKDV) {
        const float *w = p.work + ((int64_t)b * p.heads + h0) * p.tq_pad + first + warp_row + g;
        for (int half = 0; half < 2; half++) {
            row_lse[half] = w[8 * half];
            row_delta[half] = w[work_size + 8 * half];
        }
    }

    constexpr int OUTS = DKDV ? 2 : 1;
    float acc[OUTS][1][D / 8][4]; /* dq, or dk and dv */
#pragma unroll
    for (int i = 0; i < OUTS; i++)
#pragma unroll
        for (int j = 0; j < D / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) acc[i][0][j][e] = 0;

    if (tiles) {
        tile_load<T, D, BR, THREADS>(x1, x1_rows, first, x_end);
        tile_load<T, D, BR, THREADS>(x2, x2_rows, first, x_end);
        load_y(0);
        cp_async_commit();
    }
    for (int n = 0; n < tiles; n++) {
        if (n + 1 < tiles) load_y(n + 1);
        cp_async_commit();
        cp_async_wait<1>();
        __syncthreads();
        uint32_t y1 = ring + n % 2 * STAGE, y2 = y1 + Y_BYTES;
        const float *y_lse = (const float *)(km_smem + 2 * X_BYTES + n % 2 * STAGE + 2 * Y_BYTES);

        float s[1][BC / 8][4], dp[1][BC / 8][4];
        product_abt<T, D, 1, BC>(s, x1, warp_row, y1);
        product_abt<T, D, 1, BC>(dp, x2, warp_row, y2);

        int at = (tile_lo + n % per_head) * BC, row0 = first + warp_row;
        /* Keys past the end must not count for dq; past-the-end queries have lse +inf. */
        bool masked = DKDV ? p.causal && row0 + 15 > at + shift
                           : at + BC > p.tk || (p.causal && at + BC - 1 > row0 + shift);
#pragma unroll
        for (int j = 0; j < BC / 8; j++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int row = row0 + g + e / 2 * 8, col = 8 * j + 2 * t + e % 2;
                float lse = DKDV ? y_lse[col] : row_lse[e / 2];
                s[0][j][e] = fast_exp2(s[0][j][e] * c - lse);
                if (masked && (DKDV ? row > at + col + shift
                                    : at + col >= p.tk || (p.causal && at + col > row + shift)))
                    s[0][j][e] = 0;
            }
        }
        if (DKDV) product_pb<T, D, 1, BC>(acc[OUTS - 1], s, y2);
#pragma unroll
        for (int j = 0; j < BC / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int col = 8 * j + 2 * t + e % 2;
                s[0][j][e] *= dp[0][j][e] - (DKDV ? y_lse[BC + col] : row_delta[e / 2]);
            }
        product_pb<T, D, 1, BC>(acc[0], s, y1);
        __syncthreads(); /* the next round overwrites this stage */
    }
    cp_async_wait<0>();

    int row = first + warp_row;
    attention_rows<T> out =
        DKDV ? attention_rows_of<T>(p.dk, b, hk) : attention_rows_of<T>(p.dq, b, h0);
    tile_store_16<T, D>(km_smem, warp_row, acc[0][0], p.scale, p.scale, out, row, x_end);
    if (DKDV)
        tile_store_16<T, D>(km_smem, warp_row, acc[OUTS - 1][0], 1, 1,
                            attention_rows_of<T>(p.dv, b, hk), row, x_end);
}

#define KM_ATTENTION_BWD(T, NAME, D)                                                               \
    extern "C" __global__ void __launch_bounds__(KM_ATTENTION_MMA_BWD_THREADS)                     \
        km_attention_dq_mma_##NAME##_d##D(const __grid_constant__ km_attention_args p) {           \
        attention_bwd<T, D, false>(p);                                                             \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(KM_ATTENTION_MMA_BWD_THREADS)                     \
        km_attention_dkdv_mma_##NAME##_d##D(const __grid_constant__ km_attention_args p) {         \
        attention_bwd<T, D, true>(p);                                                              \
    }
#define KM_ATTENTION_BWD_SIZES(T, NAME)                                                            \
    KM_ATTENTION_BWD(T, NAME, 64)                                                                  \
    KM_ATTENTION_BWD(T, NAME, 80)                                                                  \
    KM_ATTENTION_BWD(T, NAME, 96)                                                                  \
    KM_ATTENTION_BWD(T, NAME, 128)

KM_ATTENTION_BWD_SIZES(__nv_bfloat16, bf16)
KM_ATTENTION_BWD_SIZES(__half, f16)
