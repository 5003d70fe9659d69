// Attention of any mix of rows over the paged cache on Hopper: single tokens of many sequences, guesses,
// chunks of prompts, one after the other or in one call. attend_append has put the rows' keys and values
// there and left the queries normalised and rotated.
//
// Floor: the keys and values of every sequence once, or 4 d operations for every query head and key. A
// tile of 64 (token, head) rows takes a page at a time, by warpgroup products: scores, probabilities
// and sums never leave the registers. For one token of 8 heads most of a tile is empty, and a page's
// products still take a third of the time that its bytes take from memory. A warp beside the four asks
// the copy engine for pages, several ahead, across the ends of tiles; two blocks stand on a
// multiprocessor, so that one multiplies while the other works on its softmax. All blocks have the same
// number of pages (attend_share.cuh); a tile that several have is put together by all of them, after
// each has left its sums in memory: all blocks are there at once, so waiting for others is safe.
#ifndef KM_CUDA_ATTEND_PAGES_CUH
#define KM_CUDA_ATTEND_PAGES_CUH
#include "backend/cuda/kernels/attend/attend_share.cuh"

constexpr int PANEL = PAGE * 128; // bytes of 64 keys by 64 elements of 16 bits, swizzled

template <int D> constexpr int SLOT = TILE *(D + 2); // floats that a block leaves of a tile

// What is in shared memory beside pages.
struct Side {
    uint64_t bars[4 * KM_ATTEND_MOST_STAGES];
    Tiles tiles;
};

// A query row of this thread: its position, or what masks nothing, and the first key that it sees.
struct Query {
    int at, begin;
    bool valid;
};

// Row m of a segment's tile.
__device__ __forceinline__ Query query_of(const km_attend_args &a, const Walk &w, int each, int m) {
    int token = m / each, head = w.head % a.parts * each + m % each;
    Query q = {INT32_MAX, 0, token < w.tokens && head < a.group};
    if (!q.valid) return q;
    q.at = a.where[w.row + token];
    q.begin = a.window > 0 && q.at >= a.window ? q.at - a.window + 1 : 0;
    return q;
}

// Where row m of a tile is among (rows, heads).
__device__ __forceinline__ int64_t head_of(const km_attend_args &a, const Walk &w, int each,
                                           int m) {
    int head = w.head / a.parts * a.group + w.head % a.parts * each + m % each;
    return ((int64_t)(w.row + m / each) * a.heads + head) * a.d;
}

// Keys of a tile's last page that are there: its rows' positions may be in any order.
__device__ __forceinline__ int keys_of_last(const km_attend_args &a, const Walk &w) {
    int high = -1;
    for (int i = 0; i < w.tokens; i++) high = max(high, a.where[w.row + i]);
    return high / PAGE == w.page + w.pages - 1 ? high % PAGE + 1 : 0;
}

// The left operand of the products with keys: rows g and g + 8 of the warp's 16.
template <int D>
__device__ __forceinline__ void load_queries(const km_attend_args &a, const Walk &w, int each,
                                             const Query (&query)[2], uint32_t (&q)[D / 16][4]) {
    int lane = threadIdx.x % 32, m = threadIdx.x / 32 * 16 + lane / 4, t = lane % 4;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const uint16_t *from = reinterpret_cast<const uint16_t *>(a.turned) +
                               head_of(a, w, each, query[e].valid ? m + 8 * e : 0);
#pragma unroll
        for (int k = 0; k < D / 16; k++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int column = 16 * k + 8 * half + 2 * t;
                q[k][2 * half + e] = 0;
                if (query[e].valid && column < a.d)
                    q[k][2 * half + e] = *reinterpret_cast<const uint32_t *>(from + column);
            }
    }
}

// Scores of 64 keys from `key` on become probabilities relative to the rows' largest so far; by is what
// the sums before must be multiplied by.
template <class T>
__device__ __forceinline__ void softmax(const km_attend_args &a, float (&s)[32], int key,
                                        const Query (&query)[2], int clear, int begun,
                                        float (&top)[2], float (&sum)[2], float (&by)[2]) {
    float c = a.scale * LOG2E;
    if (a.softcap > 0) {
        float to = 1 / a.scale;
#pragma unroll
        for (int j = 0; j < 32; j++) s[j] = capped(a, s[j] * a.scale) * to;
    }
    if (key + PAGE - 1 > clear || key < begun) { // some row does not see all of them
        int column = key + threadIdx.x % 4 * 2;
#pragma unroll
        for (int j = 0; j < 32; j++) {
            int k = column + j / 4 * 8 + j % 2, e = j % 4 / 2;
            s[j] = k <= query[e].at && k >= query[e].begin ? s[j] : -INFINITY;
        }
    }
#pragma unroll
    for (int e = 0; e < 2; e++) {
        float m0 = s[2 * e], m1 = s[2 * e + 1];
#pragma unroll
        for (int j = 1; j < 8; j++)
            m0 = fmaxf(m0, s[4 * j + 2 * e]), m1 = fmaxf(m1, s[4 * j + 2 * e + 1]);
        float m = fmaxf(top[e], fmaxf(m0, m1));
        m = fmaxf(m, __shfl_xor_sync(ALL_LANES, m, 1));
        m = fmaxf(m, __shfl_xor_sync(ALL_LANES, m, 2));
        float base = m == -INFINITY ? 0 : m * c; // no key seen yet: all stay 0
        by[e] = fast_exp2(top[e] * c - base);
        top[e] = m;
        float s0 = 0, s1 = 0;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float *x = s + 4 * j + 2 * e;
            x[0] = fast_exp2(x[0] * c - base);
            x[1] = fast_exp2(x[1] * c - base);
            s0 += x[0], s1 += x[1];
        }
        sum[e] = sum[e] * by[e] + (s0 + s1);
    }
}

template <class T> __device__ __forceinline__ void pack(uint32_t (&p)[4][4], const float (&s)[32]) {
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int e = 0; e < 4; e++) p[k][e] = pack2<T>(s[8 * k + 2 * e], s[8 * k + 2 * e + 1]);
}

// s = queries keys^T, for a tile of keys; issued, not waited for.
template <class T, int D>
__device__ __forceinline__ void times_keys(float (&s)[32], const uint32_t (&q)[D / 16][4],
                                           uint32_t keys) {
    uint64_t at = wgmma_desc_k(keys);
#pragma unroll
    for (int k = 0; k < D / 16; k++)
        wgmma_rs<T, PAGE, 0>(s, q[k], at + k % 4 * 2 + k / 4 * (PANEL / 16), k > 0);
}

// o += probabilities values.
template <class T, int D>
__device__ __forceinline__ void times_values(float (&o)[D / 2], const uint32_t (&p)[4][4],
                                             uint32_t values, int accumulate) {
    uint64_t at = wgmma_desc_mn(values, PANEL);
#pragma unroll
    for (int k = 0; k < 4; k++)
        wgmma_rs<T, D, 1>(o, p[k], at + k * (2048 / 16), k > 0 ? 1 : accumulate);
}

// Zeros from value row `seen` of a page on: nothing was written there yet, and what memory holds may be
// no number. All workers.
template <int D> __device__ __forceinline__ void clear_values(uint32_t values, int seen) {
    int rows = PAGE - seen;
    for (int i = threadIdx.x; i < rows * (D / 8); i += WORKERS) {
        int row = seen + i % rows, chunk = i / rows;
        asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(values + chunk / 8 * PANEL +
                                                                      row * 128 + (chunk % 8) * 16),
                     "r"(0)
                     : "memory");
    }
    fence_async_proxy();
    named_sync(1, WORKERS);
}

// What a segment gives: the result, or sums for all blocks that have a part of the tile.
template <int D>
__device__ __forceinline__ void leave(const km_attend_args &a, const Walk &w, int each,
                                      const Query (&query)[2], float (&o)[D / 2],
                                      const float (&top)[2], float (&sum)[2]) {
    int lane = threadIdx.x % 32, m0 = threadIdx.x / 32 * 16 + lane / 4, t = lane % 4;
    float *slot = a.partial + (int64_t)w.slot(w.index) * SLOT<D>;
#pragma unroll
    for (int e = 0; e < 2; e++) {
        float all = sum[e];
        all += __shfl_xor_sync(ALL_LANES, all, 1);
        all += __shfl_xor_sync(ALL_LANES, all, 2);
        if (!query[e].valid) continue;
        int m = m0 + 8 * e;
        float *to = slot + m * D, inverse = 1;
        if (w.parts == 1) {
            to = a.out + head_of(a, w, each, m);
            inverse = all > 0 || all != all ? 1 / all : 0;
        } else if (t == 0) {
            slot[TILE * D + m] = top[e] * (a.scale * LOG2E);
            slot[TILE * D + TILE + m] = all;
        }
#pragma unroll
        for (int j = 0; j < D / 8; j++)
            if (8 * j + 2 * t < a.d)
                *reinterpret_cast<float2 *>(to + 8 * j + 2 * t) =
                    make_float2(o[4 * j + 2 * e] * inverse, o[4 * j + 2 * e + 1] * inverse);
    }
    if (w.parts == 1) return;
    named_sync(1, WORKERS);
    if (threadIdx.x == 0)
        asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(&a.counters[w.slot(0)])
                     : "memory");
}

// This block's share of a tile that it has a part of, when all parts are there.
template <int D>
__device__ __forceinline__ void put_together(const km_attend_args &a, const Walk &w, int each) {
    uint32_t *counter = &a.counters[w.slot(0)];
    if (threadIdx.x == 0) {
        uint32_t there;
        do asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(there) : "l"(counter) : "memory");
        while (there < (uint32_t)w.parts);
        // The last to have seen that puts the counter back.
        if (atomicAdd(counter, 1) == 2 * (uint32_t)w.parts - 1) *counter = 0;
    }
    named_sync(1, WORKERS);
    int all = w.tokens * each * (D / 4), from = (int)((int64_t)all * w.index / w.parts);
    int to = (int)((int64_t)all * (w.index + 1) / w.parts);
    // Lanes to the parts of four elements: all threads are at work, and four loads of each on their way.
    int lanes = 1;
    while (lanes < 32 && 2 * lanes <= w.parts && (to - from) * 2 * lanes <= WORKERS) lanes *= 2;
    constexpr int AT_ONCE = 4;
    int lane = threadIdx.x % lanes, stride = WORKERS / lanes;
    for (int i0 = from; i0 < to; i0 += AT_ONCE * stride) {
        float high[AT_ONCE], sum[AT_ONCE], v[AT_ONCE][4];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            high[u] = -INFINITY, sum[u] = 0;
            v[u][0] = v[u][1] = v[u][2] = v[u][3] = 0;
        }
        int mine = i0 + (int)threadIdx.x / lanes;
#pragma unroll 2
        for (int s = lane; s < w.parts; s += lanes) {
            const float *slot = a.partial + (int64_t)w.slot(s) * SLOT<D>;
            float4 x[AT_ONCE];
            float top[AT_ONCE], all[AT_ONCE];
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++) {
                int i = mine + u * stride, m = i / (D / 4);
                if (i >= to) continue;
                x[u] = __ldcg(reinterpret_cast<const float4 *>(slot) + i);
                top[u] = __ldcg(slot + TILE * D + m), all[u] = __ldcg(slot + TILE * D + TILE + m);
            }
#pragma unroll
            for (int u = 0; u < AT_ONCE; u++) {
                if (mine + u * stride >= to) continue;
                float most = fmaxf(high[u], top[u]), base = most == -INFINITY ? 0 : most;
                float old = fast_exp2(high[u] - base), by = fast_exp2(top[u] - base);
                sum[u] = sum[u] * old + by * all[u], high[u] = most;
                v[u][0] = v[u][0] * old + by * x[u].x, v[u][1] = v[u][1] * old + by * x[u].y;
                v[u][2] = v[u][2] * old + by * x[u].z, v[u][3] = v[u][3] * old + by * x[u].w;
            }
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            for (int s = lanes / 2; s > 0; s /= 2) {
                float most = fmaxf(high[u], __shfl_xor_sync(ALL_LANES, high[u], s));
                float by = fast_exp2(high[u] - (most == -INFINITY ? 0 : most));
                sum[u] *= by, sum[u] += __shfl_xor_sync(ALL_LANES, sum[u], s);
#pragma unroll
                for (int e = 0; e < 4; e++)
                    v[u][e] *= by, v[u][e] += __shfl_xor_sync(ALL_LANES, v[u][e], s);
                high[u] = most;
            }
            int i = mine + u * stride, m = i / (D / 4), column = i % (D / 4) * 4;
            if (i >= to || lane || column >= a.d || w.head % a.parts * each + m % each >= a.group)
                continue;
            float inverse = sum[u] > 0 || sum[u] != sum[u] ? 1 / sum[u] : 0;
            *reinterpret_cast<float4 *>(a.out + head_of(a, w, each, m) + column) = make_float4(
                v[u][0] * inverse, v[u][1] * inverse, v[u][2] * inverse, v[u][3] * inverse);
        }
    }
}

// Calls page(n, id) for the pages of a segment, by a warp that reads the table 32 at a time; id is of
// some page, should the table have none there.
template <class Each>
__device__ __forceinline__ void each_page(const km_attend_args &a, const Walk &w, int limit,
                                          Each page) {
    const int32_t *table = a.table + (int64_t)a.row[2 * w.row] * a.max_pages + w.page;
    int lane = threadIdx.x % 32;
    limit = min(limit, w.pages);
    for (int n0 = 0; n0 < limit; n0 += 32) {
        int mine = n0 + lane < limit ? table[n0 + lane] : 0;
        if (mine < 0 || mine >= a.pages) mine = 0;
        for (int n = n0; n < min(n0 + 32, limit); n++)
            page(n, __shfl_sync(ALL_LANES, mine, n - n0));
    }
}

// While the kernel in front is at work: the block's first pages on their way to L2.
__device__ __forceinline__ void expect_pages(const km_attend_args &a, const Walk &from, int most) {
    Walk w = from;
    int bytes = PAGE * bytes_of_vector(a);
    while (most > 0 && w.next()) {
        int key_head = w.head / a.parts;
        each_page(a, w, most, [&](int n, int id) {
            int64_t at = page_at(a, id, key_head);
            if (threadIdx.x % 32 < 2)
                asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(
                                 (threadIdx.x % 32 ? a.cache_v : a.cache_k) + at),
                             "r"(bytes)
                             : "memory");
        });
        most -= w.pages;
    }
}

// Puts together what this block has parts of: at most its first segment and its last.
template <int D> __device__ __forceinline__ void finish(const km_attend_args &a, Walk w, int each) {
    while (w.next())
        if (w.parts > 1) put_together<D>(a, w, each);
}

__device__ __forceinline__ void wait_for_front() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
}

#endif
