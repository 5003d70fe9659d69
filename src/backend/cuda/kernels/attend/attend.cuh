// What the kernels that attend over the paged cache share: where rows and pages are, norm and
// rotation of heads, pages in shared memory as f16, whatever the cache holds, and the two products
// of a tile of queries with a page.
#ifndef KM_CUDA_ATTEND_CUH
#define KM_CUDA_ATTEND_CUH
#include "backend/cuda/kernels/attend/attend_args.h"
#include "backend/cuda/kernels/common.cuh"
#include "backend/cuda/kernels/mma.cuh"

constexpr float LOG2E = 1.4426950408889634f;
constexpr int PAGE = KM_ATTEND_PAGE;

// Where a row stands; the same rules as km_attend_place.
struct Place {
    const int32_t *pages;
    int position, first; // the first key that the row sees
    bool counts;
};

// Pages from `lane` on, every `lanes`th, are checked; all of them together are what counts.
__device__ __forceinline__ Place place_of(const km_attend_args &a, int r, int lane, int lanes) {
    Place p = {nullptr, -1, 0, false};
    int sequence = a.row[2 * r], at = a.row[2 * r + 1];
    if (sequence < 0 || sequence >= a.sequences || at < 0 || at >= a.max_pages * PAGE) return p;
    p.pages = a.table + (int64_t)sequence * a.max_pages;
    p.position = at;
    p.first = a.window > 0 && at >= a.window ? at - a.window + 1 : 0;
    p.counts = true;
    for (int i = p.first / PAGE + lane; i <= at / PAGE; i += lanes)
        if (p.pages[i] < 0 || p.pages[i] >= a.pages) p.counts = false;
    return p;
}
// By all threads of a block, which look at a long table together.
__device__ __forceinline__ Place place_by_block(const km_attend_args &a, int r) {
    Place p = place_of(a, r, threadIdx.x, blockDim.x);
    p.counts = __syncthreads_and(p.counts);
    return p;
}

__device__ __forceinline__ int bytes_of_vector(const km_attend_args &a) {
    switch (a.cache) {
    case KM_CACHE_F32: return a.d * 4;
    case KM_CACHE_Q8_0: return a.d / 32 * 34;
    case KM_CACHE_Q4_0: return a.d / 32 * 18;
    default: return a.d * 2;
    }
}
// Byte at which key head h of a page begins.
__device__ __forceinline__ int64_t page_at(const km_attend_args &a, int page, int h) {
    return ((int64_t)page * a.kv_heads + h) * PAGE * bytes_of_vector(a);
}

// ---- Rotation: cos and sin of pair i at a position, times the magnitude ----

__device__ __forceinline__ float2 turn_of(const km_attend_args &a, int position, int i) {
    double f = exp2(-2.0 * i / a.dims * a.log2_base);
    if (a.divisors) f /= (double)a.divisors[i];
    double angle = position * f;
    angle -= 6.283185307179586 * rint(angle * 0.15915494309189535);
    float2 t;
    __sincosf((float)angle, &t.y, &t.x); // to 2^-21 within a turn
    return make_float2(a.magnitude * t.x, a.magnitude * t.y);
}

// One head of d elements by one warp: norm, then rotation with turns in shared memory. x may be
// read by all lanes at any place; out[i] = put(i, value).
template <class Put>
__device__ __forceinline__ void head_by_warp(const km_attend_args &a, const float *x,
                                             const float *norm, const float2 *turns, Put put) {
    int lane = threadIdx.x % 32;
    float rstd = 1;
    if (norm) {
        float s = 0;
        for (int i = lane; i < a.d; i += 32) s += x[i] * x[i];
        rstd = 1 / sqrtf(warp_sum(s) / (float)a.d + a.eps);
    }
    auto at = [&](int i) { return norm ? x[i] * rstd * norm[i] : x[i]; };
    int half = a.dims / 2;
    for (int i = lane; i < half; i += 32) {
        int lo = a.adjacent ? 2 * i : i, hi = a.adjacent ? 2 * i + 1 : i + half;
        float u = at(lo), w = at(hi);
        float2 t = turns[i];
        put(lo, u * t.x - w * t.y);
        put(hi, u * t.y + w * t.x);
    }
    for (int i = a.dims + lane; i < a.d; i += 32) put(i, at(i));
}

// ---- One key or value into the cache, by a warp; x in shared memory ----

__device__ __forceinline__ void store_vector(const km_attend_args &a, uint8_t *to, const float *x) {
    int lane = threadIdx.x % 32;
    if (a.cache == KM_CACHE_F32)
        for (int i = lane; i < a.d; i += 32) ((float *)to)[i] = x[i];
    else if (a.cache == KM_CACHE_F16)
        for (int i = lane; i < a.d; i += 32) ((f16 *)to)[i] = __float2half_rn(x[i]);
    else if (a.cache == KM_CACHE_BF16)
        for (int i = lane; i < a.d; i += 32) ((bf16 *)to)[i] = __float2bfloat16_rn(x[i]);
    else
        for (int b = 0; b < a.d / 32; b++) { // a block of 32, an element to a lane
            float v = x[b * 32 + lane], size = fabsf(v);
            float most = size;
#pragma unroll
            for (int s = 16; s > 0; s /= 2) most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, s));
            if (a.cache == KM_CACHE_Q8_0) {
                float d = most / 127, by = d > 0 ? 1 / d : 0;
                uint8_t *block = to + b * 34;
                if (lane == 0) *(f16 *)block = __float2half_rn(d);
                block[2 + lane] = (uint8_t)(int8_t)__float2int_rn(v * by);
            } else {
                unsigned who = __ballot_sync(ALL_LANES, size == most);
                float far = __shfl_sync(ALL_LANES, v, __ffs(who) - 1);
                float d = far / -8, by = d != 0 ? 1 / d : 0;
                uint8_t *block = to + b * 18;
                int code = min(15, (int)(v * by + 8.5f));
                int high = __shfl_down_sync(ALL_LANES, code, 16);
                if (lane == 0) *(f16 *)block = __float2half_rn(d);
                if (lane < 16) block[2 + lane] = (uint8_t)(code | high << 4);
            }
        }
}

// ---- A page of one key head in shared memory: PAGE rows of DP f16, zeros beyond d ----
// Rows from `seen` on are zeros too: nothing was written there yet, and what memory happens to hold
// may be no number.

// Eight elements from e on of a vector as f16.
__device__ __forceinline__ uint4 eight_of(const km_attend_args &a, const uint8_t *vector, int e) {
    uint32_t h[4];
    float f[8];
    switch (a.cache) {
    case KM_CACHE_F16: return *reinterpret_cast<const uint4 *>(vector + e * 2);
    case KM_CACHE_F32:
#pragma unroll
        for (int i = 0; i < 8; i++) f[i] = ((const float *)vector)[e + i];
        break;
    case KM_CACHE_BF16:
#pragma unroll
        for (int i = 0; i < 8; i++) f[i] = to_f32(((const bf16 *)vector)[e + i]);
        break;
    case KM_CACHE_Q8_0: {
        const uint8_t *b = vector + e / 32 * 34;
        float d = to_f32(*(const f16 *)b);
#pragma unroll
        for (int i = 0; i < 8; i++) f[i] = d * (float)(int8_t)b[2 + e % 32 + i];
        break;
    }
    default: {
        const uint8_t *b = vector + e / 32 * 18;
        float d = to_f32(*(const f16 *)b);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int at = e % 32 + i, code = at < 16 ? b[2 + at] & 15 : b[2 + at - 16] >> 4;
            f[i] = d * (float)(code - 8);
        }
    }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) h[i] = pack2<f16>(f[2 * i], f[2 * i + 1]);
    return make_uint4(h[0], h[1], h[2], h[3]);
}

// Asynchronously where it can be; the caller commits and waits.
template <int DP, int THREADS>
__device__ __forceinline__ void load_page(const km_attend_args &a, uint8_t *tile,
                                          const uint8_t *page, int seen) {
    constexpr int CHUNKS = DP / 8;
    int bytes = bytes_of_vector(a);
    for (int c = threadIdx.x; c < PAGE * CHUNKS; c += THREADS) {
        int row = c / CHUNKS, chunk = c % CHUNKS;
        uint8_t *to = tile + swizzle<CHUNKS>(row, chunk);
        bool there = chunk * 8 < a.d && row < seen;
        if (a.cache == KM_CACHE_F16)
            cp_async_16(smem_addr(to), there ? page + row * bytes + chunk * 16 : page, there);
        else
            *reinterpret_cast<uint4 *>(to) =
                there ? eight_of(a, page + row * bytes, chunk * 8) : make_uint4(0, 0, 0, 0);
    }
}

__device__ __forceinline__ float capped(const km_attend_args &a, float s) {
    return a.softcap > 0 ? a.softcap * tanhf(s / a.softcap) : s;
}

// A block of 256: the turns of row r's place, and its queries turned by them to a.turned.
__device__ __forceinline__ void turn_queries(const km_attend_args &a, int r, const Place &p,
                                             int warp, float2 *turns) {
    for (int i = threadIdx.x; i < a.dims / 2; i += blockDim.x)
        turns[i] = turn_of(a, max(p.position, 0), i);
    __syncthreads();
    const float *q = (const float *)a.q + r * a.ldq;
    for (int h = warp; h < a.heads; h += 8) {
        float *out = a.turned + ((int64_t)r * a.heads + h) * a.d;
        head_by_warp(a, q + h * a.d, a.q_norm, turns, [&](int i, float v) { out[i] = v; });
    }
}

#endif
