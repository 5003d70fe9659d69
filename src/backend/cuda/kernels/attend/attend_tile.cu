// Attention of many tokens over the paged cache: prompts. attend_append has put their keys and
// values there and left the queries normalised and rotated.
//
// Floor: 4 n m d operations (half of them in a prompt, where queries see only what is before them).
// A block takes 64 (token, head) rows that share a key head: with 8 heads to a key head 8 tokens.
// Each warp owns 16 of them and walks over the pages with running maxima and sums; the next page is
// on its way meanwhile. Should the tokens be of several sequences, the block walks over each.
#include "backend/cuda/kernels/attend/attend.cuh"

constexpr int ROWS = KM_ATTEND_TILE, THREADS = 128;

template <int DP> __device__ __forceinline__ void attend_tile(const km_attend_args &a) {
    constexpr int CHUNKS = DP / 8;
    extern __shared__ __align__(1024) uint8_t shared[];
    uint8_t *tile_q = shared, *tile_k = tile_q + ROWS * DP * 2,
            *tile_v = tile_k + 2 * PAGE * DP * 2;
    __shared__ int where[ROWS], from[ROWS],
        seq[ROWS]; // of each token: position, first key, sequence
    wait_for_previous();
    int kvh = blockIdx.y / a.parts, part = blockIdx.y % a.parts;
    int each = min(a.group, ROWS); // heads of a token in this block
    int head0 = kvh * a.group + part * each, tokens = ROWS / each;
    // The longest come first, so that the last blocks are short ones.
    int token0 = (gridDim.x - 1 - blockIdx.x) * tokens;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    for (int i = threadIdx.x; i < tokens; i += THREADS) {
        Place p = {nullptr, -1, 0, false};
        if (token0 + i < a.rows) p = place_of(a, token0 + i, 0, 1);
        where[i] = p.counts ? p.position : -1;
        from[i] = p.first;
        seq[i] = p.counts ? a.row[2 * (token0 + i)] : -1;
    }
    for (int i = threadIdx.x; i < ROWS * CHUNKS; i += THREADS) {
        int row = i / CHUNKS, chunk = i % CHUNKS, token = row / each, h = row % each;
        uint32_t v[4] = {0, 0, 0, 0};
        if (row < tokens * each && token0 + token < a.rows && part * each + h < a.group &&
            chunk * 8 < a.d) {
            const float *q =
                a.turned + ((int64_t)(token0 + token) * a.heads + head0 + h) * a.d + chunk * 8;
#pragma unroll
            for (int e = 0; e < 4; e++) v[e] = pack2<f16>(q[2 * e], q[2 * e + 1]);
        }
        *reinterpret_cast<uint4 *>(tile_q + swizzle<CHUNKS>(row, chunk)) =
            make_uint4(v[0], v[1], v[2], v[3]);
    }
    __syncthreads();

    int my_token[2], at[2], begin[2];
#pragma unroll
    for (int e = 0; e < 2; e++) {
        int row = warp * 16 + 8 * e + g;
        my_token[e] = row < tokens * each ? row / each : -1;
        at[e] = my_token[e] >= 0 ? where[my_token[e]] : -1;
        begin[e] = my_token[e] >= 0 ? from[my_token[e]] : 0;
    }
    float o[DP / 8][4] = {}, most[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
    int i8 = lane / 8, within = lane % 8;
    float scale = a.scale * LOG2E;

    for (int lead = 0; lead < tokens; lead++) {
        int sequence = seq[lead], low = INT32_MAX, high = -1;
        bool done = sequence < 0;
        for (int i = 0; i < lead && !done; i++) done = seq[i] == sequence;
        if (done) continue;
        for (int i = lead; i < tokens; i++)
            if (seq[i] == sequence) low = min(low, from[i]), high = max(high, where[i]);
        const int32_t *pages = a.table + (int64_t)sequence * a.max_pages;
        int page = low / PAGE, end = high / PAGE + 1;
        auto load = [&](int n) {
            int to = (n & 1) * PAGE * DP * 2, seen = high + 1 - n * PAGE;
            load_page<DP, THREADS>(a, tile_k + to, a.cache_k + page_at(a, pages[n], kvh), seen);
            load_page<DP, THREADS>(a, tile_v + to, a.cache_v + page_at(a, pages[n], kvh), seen);
            cp_async_commit();
        };
        __syncthreads();
        load(page);
        for (; page < end; page++) {
            if (page + 1 < end) {
                load(page + 1);
                cp_async_wait<1>();
            } else {
                cp_async_wait<0>();
            }
            __syncthreads();
            uint32_t at_k = smem_addr(tile_k + (page & 1) * PAGE * DP * 2);
            uint32_t at_v = smem_addr(tile_v + (page & 1) * PAGE * DP * 2);
            float s[8][4] = {};
#pragma unroll
            for (int k = 0; k < DP; k += 16) {
                uint32_t fq[4];
                ldmatrix_x4(fq, smem_addr(tile_q) + swizzle<CHUNKS>(warp * 16 + i8 % 2 * 8 + within,
                                                                    k / 8 + i8 / 2));
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    uint32_t fk[4];
                    ldmatrix_x4(
                        fk, at_k + swizzle<CHUNKS>(16 * n + i8 / 2 * 8 + within, k / 8 + i8 % 2));
                    mma_m16n8k16<f16>(s[2 * n], fq, fk[0], fk[1]);
                    mma_m16n8k16<f16>(s[2 * n + 1], fq, fk[2], fk[3]);
                }
            }
            bool mine[2];
            float top[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                mine[e] = my_token[e] >= 0 && seq[my_token[e]] == sequence;
                top[e] = most[e];
            }
#pragma unroll
            for (int n = 0; n < 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int key = page * PAGE + 8 * n + 2 * t + e % 2;
                    bool seen = mine[e / 2] && key <= at[e / 2] && key >= begin[e / 2];
                    float v =
                        a.softcap > 0 ? capped(a, s[n][e] * a.scale) * LOG2E : s[n][e] * scale;
                    s[n][e] = seen ? v : -INFINITY;
                    top[e / 2] = fmaxf(top[e / 2], s[n][e]);
                }
            float by[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                top[e] = fmaxf(top[e], __shfl_xor_sync(ALL_LANES, top[e], 1));
                top[e] = fmaxf(top[e], __shfl_xor_sync(ALL_LANES, top[e], 2));
                by[e] = most[e] == top[e] ? 1 : fast_exp2(most[e] - top[e]);
                most[e] = top[e];
            }
            float sum[2] = {0, 0};
#pragma unroll
            for (int n = 0; n < 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    s[n][e] = s[n][e] == -INFINITY ? 0 : fast_exp2(s[n][e] - most[e / 2]);
                    sum[e / 2] += s[n][e];
                }
#pragma unroll
            for (int e = 0; e < 2; e++) total[e] = total[e] * by[e] + sum[e];
#pragma unroll
            for (int c = 0; c < DP / 8; c++)
#pragma unroll
                for (int e = 0; e < 4; e++) o[c][e] *= by[e / 2];
#pragma unroll
            for (int k = 0; k < 4; k++) { // 16 keys: two neighbouring pieces of s are one operand
                uint32_t fp[4] = {pack2<f16>(s[2 * k][0], s[2 * k][1]),
                                  pack2<f16>(s[2 * k][2], s[2 * k][3]),
                                  pack2<f16>(s[2 * k + 1][0], s[2 * k + 1][1]),
                                  pack2<f16>(s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
                for (int c = 0; c < DP / 16; c++) {
                    uint32_t fv[4];
                    ldmatrix_x4_trans(
                        fv, at_v + swizzle<CHUNKS>(16 * k + i8 % 2 * 8 + within, 2 * c + i8 / 2));
                    mma_m16n8k16<f16>(o[2 * c], fp, fv[0], fv[1]);
                    mma_m16n8k16<f16>(o[2 * c + 1], fp, fv[2], fv[3]);
                }
            }
            __syncthreads();
        }
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
        float all = total[e];
        all += __shfl_xor_sync(ALL_LANES, all, 1);
        all += __shfl_xor_sync(ALL_LANES, all, 2);
        int row = warp * 16 + 8 * e + g, h = row % each;
        if (my_token[e] < 0 || token0 + my_token[e] >= a.rows || part * each + h >= a.group)
            continue;
        float inverse = all > 0 ? 1 / all : 0;
        float *out = a.out + ((int64_t)(token0 + my_token[e]) * a.heads + head0 + h) * a.d;
#pragma unroll
        for (int c = 0; c < DP / 8; c++) {
            int col = 8 * c + 2 * t;
            if (col < a.d)
                *reinterpret_cast<float2 *>(out + col) =
                    make_float2(o[c][2 * e] * inverse, o[c][2 * e + 1] * inverse);
        }
    }
}

#define TILE(DP)                                                                                   \
    extern "C" __global__ void __launch_bounds__(128)                                              \
        attend_tile_##DP(const __grid_constant__ km_attend_args a) {                               \
        attend_tile<DP>(a);                                                                        \
    }
TILE(64)
TILE(128)
TILE(256)
