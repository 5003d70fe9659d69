// Attention over the paged cache for heads of any size: those that the other kernels, whose
// products are by tensor cores in pieces of 8 and 16 elements, do not take. Few models have such
// heads, so this is written to be plain: f32 throughout, one block to a query head of a row, and 128
// keys at a time, first a thread to a key for the scores, then a thread to an element for the sums.
#include "backend/cuda/kernels/attend/attend.cuh"

constexpr int KEYS = KM_ATTEND_PLAIN_THREADS; // at a time
constexpr int WARPS = KEYS / 32;

// Element e of a vector of the cache.
__device__ __forceinline__ float element_of(const km_attend_args &a, const uint8_t *vector, int e) {
    switch (a.cache) {
    case KM_CACHE_F32: return ((const float *)vector)[e];
    case KM_CACHE_F16: return to_f32(((const f16 *)vector)[e]);
    case KM_CACHE_BF16: return to_f32(((const bf16 *)vector)[e]);
    case KM_CACHE_Q8_0: {
        const uint8_t *b = vector + e / 32 * 34;
        return to_f32(*(const f16 *)b) * (float)(int8_t)b[2 + e % 32];
    }
    default: {
        const uint8_t *b = vector + e / 32 * 18;
        int at = e % 32, code = at < 16 ? b[2 + at] & 15 : b[2 + at - 16] >> 4;
        return to_f32(*(const f16 *)b) * (float)(code - 8);
    }
    }
}

// Where the cache has the vector of a token for key head h.
__device__ __forceinline__ const uint8_t *vector_of(const km_attend_args &a, const uint8_t *cache,
                                                    const Place &p, int key, int h) {
    return cache + page_at(a, p.pages[key / PAGE], h) + (int64_t)(key % PAGE) * bytes_of_vector(a);
}

// A row's queries to `turned`, its keys and values into the cache: a block to a row, a warp to a
// head. Keys pass through `partial` (rows, kv_heads, d).
extern "C" __global__ void __launch_bounds__(256)
    attend_plain_append(const __grid_constant__ km_attend_args a) {
    extern __shared__ float2 turns[]; // (dims / 2)
    wait_for_previous();
    int r = blockIdx.x, warp = threadIdx.x / 32;
    Place p = place_by_block(a, r);
    turn_queries(a, r, p, warp, turns);
    if (!p.counts) return;
    int page = p.pages[p.position / PAGE], within = p.position % PAGE;
    for (int h = warp; h < a.kv_heads; h += 8) {
        const float *k = (const float *)a.k + r * a.ldk + h * a.d;
        const float *v = (const float *)a.v + r * a.ldv + h * a.d;
        float *made = a.partial + ((int64_t)r * a.kv_heads + h) * a.d;
        int64_t at = page_at(a, page, h) + (int64_t)within * bytes_of_vector(a);
        head_by_warp(a, k, a.k_norm, turns, [&](int i, float x) { made[i] = x; });
        __syncwarp();
        store_vector(a, a.cache_k + at, made);
        store_vector(a, a.cache_v + at, v);
    }
}

// The largest, or the sum, over the block; all threads get it. room (WARPS) is the block's own.
__device__ __forceinline__ float over_block(float v, bool largest, float *room) {
    v = largest ? warp_max(v) : warp_sum(v);
    if (threadIdx.x % 32 == 0) room[threadIdx.x / 32] = v;
    __syncthreads();
    v = room[0];
    for (int i = 1; i < WARPS; i++) v = largest ? fmaxf(v, room[i]) : v + room[i];
    __syncthreads();
    return v;
}

// Grid (heads, rows).
extern "C" __global__ void __launch_bounds__(KEYS)
    attend_plain(const __grid_constant__ km_attend_args a) {
    extern __shared__ float room[]; // a query (d), its result (d), the weights of some keys (KEYS)
    __shared__ float shared[WARPS];
    wait_for_previous();
    float *q = room, *sum = q + a.d, *weight = sum + a.d;
    int h = blockIdx.x, r = blockIdx.y, kvh = h / a.group, t = threadIdx.x;
    int64_t at = ((int64_t)r * a.heads + h) * a.d;
    Place p = place_by_block(a, r);
    if (!p.counts) { // all threads of the block see that
        for (int i = t; i < a.d; i += KEYS) a.out[at + i] = 0;
        return;
    }
    for (int i = t; i < a.d; i += KEYS) q[i] = a.turned[at + i], sum[i] = 0;
    __syncthreads();
    float most = -INFINITY, total = 0;
    for (int first = p.first; first <= p.position; first += KEYS) {
        int keys = min(KEYS, p.position - first + 1);
        float score = -INFINITY;
        if (t < keys) {
            const uint8_t *k = vector_of(a, a.cache_k, p, first + t, kvh);
            float dot = 0;
            for (int i = 0; i < a.d; i++) dot = fmaf(q[i], element_of(a, k, i), dot);
            score = capped(a, dot * a.scale);
        }
        float high = fmaxf(most, over_block(score, true, shared));
        float w = t < keys ? expf(score - high) : 0, by = expf(most - high);
        weight[t] = w;
        total = total * by + over_block(w, false, shared); // and every weight is there
        for (int i = t; i < a.d; i += KEYS) {
            float s = sum[i] * by;
            for (int n = 0; n < keys; n++) {
                const uint8_t *v = vector_of(a, a.cache_v, p, first + n, kvh);
                s = fmaf(weight[n], element_of(a, v, i), s);
            }
            sum[i] = s;
        }
        most = high;
        __syncthreads();
    }
    for (int i = t; i < a.d; i += KEYS) a.out[at + i] = sum[i] / total;
}
