// Attention of single tokens over the paged cache: decoding.
//
// Floor: the keys and values of the sequence once, and a few vectors. A block takes the query heads
// of one key head (up to 16) and every `splits`th page of the sequence, so that the grid does not
// depend on how long the sequence is and the launch can be replayed; products are by tensor cores,
// which makes grouped heads free. Blocks that share a head leave their sums in memory, and the last
// of them puts them together. A call with one row brings its own key and value into the cache on
// the way; with more rows, attend_append has done it before.
#include "backend/cuda/kernels/attend/attend.cuh"

// ---- Norm, rotation and the cache: grid (rows, blocks to a row) ----

extern "C" __global__ void __launch_bounds__(256, 4)
    attend_append(const __grid_constant__ km_attend_args a) {
    extern __shared__ float room[]; // turns, then a vector for each warp
#if __CUDA_ARCH__ >= 900
    // What rows stand where is older than the kernel in front, in what is captured: the turns are made
    // while that one is at work, and whoever comes next may get ready, too.
    if (a.early) asm volatile("griddepcontrol.launch_dependents;");
#endif
    if (!a.early) wait_for_previous();
    int r = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Place p = place_by_block(a, r);
    float2 *turns = reinterpret_cast<float2 *>(room);
    float *vector = room + a.dims + warp * a.d;
    for (int i = threadIdx.x; i < a.dims / 2; i += 256)
        turns[i] = turn_of(a, max(p.position, 0), i);
    __syncthreads();
#if __CUDA_ARCH__ >= 900
    if (a.early) asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    // A warp to a vector: the queries, then keys, then values. Few rows have blocks beside one another.
    int first = blockIdx.y * 8 + warp, step = gridDim.y * 8;
    for (int h = first; h < a.heads; h += step) {
        int64_t to = ((int64_t)r * a.heads + h) * a.d;
        const float *q = (const float *)a.q + r * a.ldq + h * a.d;
        head_by_warp(a, q, a.q_norm, turns, [&](int i, float v) {
            if (!a.where)
                a.turned[to + i] = v;
            else if (a.cache == KM_CACHE_BF16)
                ((bf16 *)a.turned)[to + i] = from_f32<bf16>(v);
            else
                ((f16 *)a.turned)[to + i] = from_f32<f16>(v);
        });
    }
    if (a.where && blockIdx.y == 0) {
        if (threadIdx.x == 0) a.where[r] = p.counts ? p.position : -1;
        for (int i = threadIdx.x; !p.counts && i < a.heads * a.d; i += 256)
            a.out[(int64_t)r * a.heads * a.d + i] = 0;
    }
    if (!p.counts) return;
    int page = p.pages[p.position / PAGE], within = p.position % PAGE;
    for (int i = (first + step - a.heads % step) % step; i < 2 * a.kv_heads; i += step) {
        bool key = i < a.kv_heads;
        int h = key ? i : i - a.kv_heads;
        const float *x = key ? (const float *)a.k + r * a.ldk : (const float *)a.v + r * a.ldv;
        int64_t at = page_at(a, page, h) + (int64_t)within * bytes_of_vector(a);
        x += h * a.d;
        if (key)
            head_by_warp(a, x, a.k_norm, turns, [&](int i, float v) { vector[i] = v; });
        else
            for (int i = lane; i < a.d; i += 32) vector[i] = x[i];
        __syncwarp();
        store_vector(a, (key ? a.cache_k : a.cache_v) + at, vector);
        __syncwarp();
    }
}

// ---- Attention: grid (splits, kv_heads * parts, rows) ----

template <int DP, bool ALONE> __device__ __forceinline__ void attend_few(const km_attend_args &a) {
    constexpr int THREADS = KM_ATTEND_FEW_THREADS, CHUNKS = DP / 8, M = KM_ATTEND_HEADS;
    constexpr int WARPS = THREADS / 32, KEYS = PAGE / WARPS, COLS = DP / WARPS; // a warp's
    extern __shared__ __align__(1024) uint8_t shared[];
    uint8_t *tile_k = shared, *tile_v = tile_k + PAGE * DP * 2, *tile_q = tile_v + PAGE * DP * 2;
    uint8_t *tile_p = tile_q + M * DP * 2;
    float *red = reinterpret_cast<float *>(tile_p + M * PAGE * 2); // (2, WARPS, M)
    float2 *turns = reinterpret_cast<float2 *>(red + 2 * WARPS * M);
    float *vector = reinterpret_cast<float *>(turns + DP / 2); // (2, DP): key and value
    __shared__ bool last;
    wait_for_previous();
    int split = blockIdx.x, kvh = blockIdx.y / a.parts, part = blockIdx.y % a.parts, r = blockIdx.z;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int head0 = kvh * a.group + part * M, heads = min(M, a.group - part * M);
    Place p = place_by_block(a, r);
    float *out = a.out + ((int64_t)r * a.heads + head0) * a.d;
    if (!p.counts) {
        if (split == 0)
            for (int i = threadIdx.x; i < heads * a.d; i += THREADS) out[i] = 0;
        return;
    }
    int page0 = p.first / PAGE, pages = p.position / PAGE - page0 + 1;
    int active = min(a.splits, pages);
    if (split >= active) return;

    auto load = [&](int n) {
        int page = p.pages[page0 + n], seen = p.position + 1 - (page0 + n) * PAGE;
        load_page<DP, THREADS>(a, tile_k, a.cache_k + page_at(a, page, kvh), seen);
        cp_async_commit();
        load_page<DP, THREADS>(a, tile_v, a.cache_v + page_at(a, page, kvh), seen);
        cp_async_commit();
    };
    // The first page is on its way while the queries are made; should it be the one that this
    // token belongs to, its place is filled in later.
    bool early = a.cache == KM_CACHE_F16, owner = ALONE && (pages - 1) % a.splits == split;
    if (early) load(split);

    // Queries, 16 rows, those beyond the heads zero.
    for (int i = threadIdx.x; i < M * CHUNKS; i += THREADS)
        *reinterpret_cast<uint4 *>(tile_q + i * 16) = make_uint4(0, 0, 0, 0);
    if (ALONE)
        for (int i = threadIdx.x; i < a.dims / 2; i += THREADS)
            turns[i] = turn_of(a, p.position, i);
    __syncthreads();
    auto put_q = [&](int h, int i, float v) {
        *reinterpret_cast<f16 *>(tile_q + swizzle<CHUNKS>(h, i / 8) + i % 8 * 2) =
            __float2half_rn(v);
    };
    for (int h = warp; h < heads; h += WARPS) {
        if (ALONE) {
            const float *q = (const float *)a.q + r * a.ldq + (head0 + h) * a.d;
            head_by_warp(a, q, a.q_norm, turns, [&](int i, float v) { put_q(h, i, v); });
        } else {
            const float *q = a.turned + ((int64_t)r * a.heads + head0 + h) * a.d;
            for (int i = lane; i < a.d; i += 32) put_q(h, i, q[i]);
        }
    }
    // This token's key and value: by whoever reads their page.
    if (owner) {
        int64_t at = page_at(a, p.pages[p.position / PAGE], kvh) +
                     (int64_t)(p.position % PAGE) * bytes_of_vector(a);
        float *mine = vector + warp * DP;
        if (warp == 0) {
            const float *k = (const float *)a.k + r * a.ldk + kvh * a.d;
            head_by_warp(a, k, a.k_norm, turns, [&](int i, float v) { mine[i] = v; });
            __syncwarp();
            store_vector(a, a.cache_k + at, mine);
        } else if (warp == 1) {
            const float *v = (const float *)a.v + r * a.ldv + kvh * a.d;
            for (int i = lane; i < a.d; i += 32) mine[i] = v[i];
            __syncwarp();
            store_vector(a, a.cache_v + at, mine);
        }
    }
    __syncthreads();

    float o[COLS / 8][4] = {}, most[2] = {-INFINITY, -INFINITY}, total[2] = {0, 0};
    int i8 = lane / 8, within = lane % 8;
    for (int n = split; n < pages; n += a.splits) {
        if (!early || n > split) load(n);
        cp_async_wait<1>();
        if (early && owner && n == pages - 1) { // what was stored after the page was asked for
            cp_async_wait<0>();
            __syncthreads();
            int row = p.position % PAGE;
            for (int i = threadIdx.x; i < a.d; i += THREADS) {
                uint32_t at = swizzle<CHUNKS>(row, i / 8) + i % 8 * 2;
                *reinterpret_cast<f16 *>(tile_k + at) = __float2half_rn(vector[i]);
                *reinterpret_cast<f16 *>(tile_v + at) = __float2half_rn(vector[DP + i]);
            }
        }
        __syncthreads();
        float s[4] = {};
#pragma unroll
        for (int k = 0; k < DP; k += 32) { // one piece of 8 keys, two steps of 16
            uint32_t fq[4], fk[4];
            ldmatrix_x4(fk, smem_addr(tile_k) + swizzle<CHUNKS>(warp * KEYS + within, k / 8 + i8));
#pragma unroll
            for (int e = 0; e < 2; e++) {
                ldmatrix_x4(fq, smem_addr(tile_q) +
                                    swizzle<CHUNKS>(i8 % 2 * 8 + within, k / 8 + 2 * e + i8 / 2));
                mma_m16n8k16<f16>(s, fq, fk[2 * e], fk[2 * e + 1]);
            }
        }
        float high[2] = {-INFINITY, -INFINITY};
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int key = (page0 + n) * PAGE + warp * KEYS + 2 * t + e % 2;
            bool seen = key >= p.first && key <= p.position;
            s[e] = seen ? capped(a, s[e] * a.scale) * LOG2E : -INFINITY;
            high[e / 2] = fmaxf(high[e / 2], s[e]);
        }
#pragma unroll
        for (int e = 0; e < 2; e++) {
            high[e] = fmaxf(high[e], __shfl_xor_sync(ALL_LANES, high[e], 1));
            high[e] = fmaxf(high[e], __shfl_xor_sync(ALL_LANES, high[e], 2));
            if (t == 0) red[warp * M + 8 * e + g] = high[e];
        }
        __syncthreads();
        float by[2], sum[2] = {0, 0};
#pragma unroll
        for (int e = 0; e < 2; e++) {
#pragma unroll
            for (int w = 0; w < WARPS; w++) high[e] = fmaxf(high[e], red[w * M + 8 * e + g]);
            high[e] = fmaxf(high[e], most[e]);
            by[e] = fast_exp2(most[e] - high[e]);
            most[e] = high[e];
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            s[e] = fast_exp2(s[e] - most[e / 2]);
            sum[e / 2] += s[e];
        }
#pragma unroll
        for (int e = 0; e < 2; e++)
            *reinterpret_cast<uint32_t *>(tile_p + swizzle<8>(8 * e + g, warp) + 4 * t) =
                pack2<f16>(s[2 * e], s[2 * e + 1]);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            sum[e] += __shfl_xor_sync(ALL_LANES, sum[e], 1);
            sum[e] += __shfl_xor_sync(ALL_LANES, sum[e], 2);
            if (t == 0) red[(WARPS + warp) * M + 8 * e + g] = sum[e];
        }
        cp_async_wait<0>();
        __syncthreads();
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float all = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) all += red[(WARPS + w) * M + 8 * e + g];
            total[e] = total[e] * by[e] + all;
        }
#pragma unroll
        for (int c = 0; c < COLS / 8; c++)
#pragma unroll
            for (int e = 0; e < 4; e++) o[c][e] *= by[e / 2];
#pragma unroll
        for (int k = 0; k < PAGE; k += 32) {
            uint32_t fp[2][4];
#pragma unroll
            for (int e = 0; e < 2; e++)
                ldmatrix_x4(fp[e], smem_addr(tile_p) +
                                       swizzle<8>(i8 % 2 * 8 + within, k / 8 + 2 * e + i8 / 2));
#pragma unroll
            for (int c = 0; c < COLS / 8; c++) {
                uint32_t fv[4];
                ldmatrix_x4_trans(fv, smem_addr(tile_v) +
                                          swizzle<CHUNKS>(k + lane, warp * (COLS / 8) + c));
                mma_m16n8k16<f16>(o[c], fp[0], fv[0], fv[1]);
                mma_m16n8k16<f16>(o[c], fp[1], fv[2], fv[3]);
            }
        }
        __syncthreads();
    }

    if (active == 1) {
#pragma unroll
        for (int c = 0; c < COLS / 8; c++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int h = g + e / 2 * 8, col = warp * COLS + 8 * c + 2 * t + e % 2;
                if (h < heads && col < a.d) out[h * a.d + col] = o[c][e] / total[e / 2];
            }
        return;
    }
    // Sums of this part of the sequence, and the last block's work.
    int64_t who = (int64_t)r * gridDim.y + blockIdx.y;
    int stride = M * (a.d + 2);
    float *mine = a.partial + (who * a.splits + split) * stride;
#pragma unroll
    for (int c = 0; c < COLS / 8; c++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int h = g + e / 2 * 8, col = warp * COLS + 8 * c + 2 * t + e % 2;
            if (h < heads && col < a.d) mine[h * a.d + col] = o[c][e];
        }
    if (warp == 0 && t == 0)
        for (int e = 0; e < 2; e++) {
            mine[M * a.d + 8 * e + g] = most[e];
            mine[M * a.d + M + 8 * e + g] = total[e];
        }
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(&a.counters[who], 1) == (uint32_t)active - 1;
        if (last) a.counters[who] = 0;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    const float *all = a.partial + who * a.splits * stride;
    float *weight = reinterpret_cast<float *>(tile_k); // (heads, 32)
    for (int h = warp; h < heads; h += WARPS) {        // of each head its weights, one to a split
        float top = -INFINITY, sum = 0, m = -INFINITY, l = 0;
        if (lane < active) {
            m = __ldcg(all + lane * stride + M * a.d + h);
            l = __ldcg(all + lane * stride + M * a.d + M + h);
        }
        top = warp_max(m);
        float w = fast_exp2(m - top);
        sum = warp_sum(w * l);
        if (lane < active) weight[h * 32 + lane] = w / sum;
    }
    __syncthreads();
    for (int i = threadIdx.x * 4; i < heads * a.d; i += THREADS * 4) {
        const float *w = weight + i / a.d * 32;
        float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
        for (int s = 0; s < active; s++) {
            float4 v = __ldcg(reinterpret_cast<const float4 *>(all + s * stride + i));
            sum.x = fmaf(w[s], v.x, sum.x), sum.y = fmaf(w[s], v.y, sum.y);
            sum.z = fmaf(w[s], v.z, sum.z), sum.w = fmaf(w[s], v.w, sum.w);
        }
        *reinterpret_cast<float4 *>(out + i) = sum;
    }
}

#define FEW(DP)                                                                                    \
    extern "C" __global__ void __launch_bounds__(KM_ATTEND_FEW_THREADS)                            \
        attend_few_##DP(const __grid_constant__ km_attend_args a) {                                \
        attend_few<DP, false>(a);                                                                  \
    }                                                                                              \
    extern "C" __global__ void __launch_bounds__(KM_ATTEND_FEW_THREADS)                            \
        attend_alone_##DP(const __grid_constant__ km_attend_args a) {                              \
        attend_few<DP, true>(a);                                                                   \
    }
FEW(64)
FEW(128)
FEW(256)
