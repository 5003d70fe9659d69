// The embedding's gradient: for each row of the table the sum of the rows of dy whose id it is, in
// the order of their positions, so that the bits are the same in every run. Ids are sorted with
// their positions (stable, eight bits a pass); then each row of the table knows its rows of dy.
//
// Floor: one read of dy and one write of the table's gradient; the sort moves a few bytes for each
// id. A row used more than KM_HEAVY times is split among the warps of a block of its own, or a
// common word would keep one warp busy long after the rest is done.
#include "backend/cuda/kernels/rows/row.cuh"

typedef km_embedding_grad_args EmbeddingGradArgs;

// ---- Sorting ----

__device__ __forceinline__ uint32_t key_of(const EmbeddingGradArgs &p, int64_t i) {
    if (p.key_in) return p.key_in[i];
    int64_t id = p.wide ? ((const int64_t *)p.index)[i] : ((const int32_t *)p.index)[i];
    return (uint32_t)(id >= 0 && id < p.rows ? id : p.rows); // bad ones go to the end
}
__device__ __forceinline__ int digit_of(const EmbeddingGradArgs &p, uint32_t key) {
    return (key >> p.shift) & 255;
}

KM_KERNEL embedding_grad_count(
    const __grid_constant__ EmbeddingGradArgs p) { // 256 threads to a tile
    __shared__ uint32_t many[256];
    many[threadIdx.x] = 0;
    __syncthreads();
    int64_t first = (int64_t)blockIdx.x * KM_SORT_TILE;
    for (int k = threadIdx.x; k < KM_SORT_TILE; k += 256)
        if (first + k < p.items) atomicAdd(&many[digit_of(p, key_of(p, first + k))], 1u);
    __syncthreads();
    p.digits[(int64_t)threadIdx.x * p.tiles + blockIdx.x] = many[threadIdx.x];
}

// Turns counts into where each begins: one block of 1024, each thread a stretch of them.
KM_KERNEL embedding_grad_scan(const __grid_constant__ EmbeddingGradArgs p) {
    __shared__ uint32_t by_warp[32];
    int64_t n = 256 * (int64_t)p.tiles, each = (n + 1023) / 1024, first = threadIdx.x * each;
    int64_t last = first + each < n ? first + each : n;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t sum = 0;
    for (int64_t i = first; i < last; i++) sum += p.digits[i];
    uint32_t upto = sum;
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
        uint32_t o = __shfl_up_sync(ALL_LANES, upto, by);
        if (lane >= by) upto += o;
    }
    if (lane == 31) by_warp[warp] = upto;
    __syncthreads();
    uint32_t before = upto - sum;
    for (int w = 0; w < warp; w++) before += by_warp[w];
    for (int64_t i = first; i < last; i++) {
        uint32_t v = p.digits[i];
        p.digits[i] = before;
        before += v;
    }
    if (threadIdx.x == 0) p.heavy[0] = 0;
}

// Each id to its place. A warp takes 256 ids of the tile in order, 32 at a time; lanes with the same
// digit line up behind each other.
KM_KERNEL embedding_grad_place(const __grid_constant__ EmbeddingGradArgs p) {
    constexpr int WARPS = 8, EACH = KM_SORT_TILE / WARPS;
    __shared__ uint32_t place[WARPS][256];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int w = 0; w < WARPS; w++) place[w][threadIdx.x] = 0;
    __syncthreads();
    int64_t first = (int64_t)blockIdx.x * KM_SORT_TILE + warp * EACH;
    for (int k = lane; k < EACH; k += 32)
        if (first + k < p.items) atomicAdd(&place[warp][digit_of(p, key_of(p, first + k))], 1u);
    __syncthreads();
    uint32_t at = p.digits[(int64_t)threadIdx.x * p.tiles + blockIdx.x];
    for (int w = 0; w < WARPS; w++) {
        uint32_t many = place[w][threadIdx.x];
        place[w][threadIdx.x] = at;
        at += many;
    }
    __syncthreads();
    for (int k = lane; k < EACH; k += 32) {
        int64_t i = first + k;
        bool there = i < p.items;
        uint32_t key = there ? key_of(p, i) : 0;
        int digit = there ? digit_of(p, key) : 256;
        unsigned same = __match_any_sync(ALL_LANES, digit), lower = same & ((1u << lane) - 1);
        if (there) {
            uint32_t to = place[warp][digit] + __popc(lower);
            p.key[to] = key;
            p.at[to] = p.at_in ? p.at_in[i] : (uint32_t)i;
        }
        __syncwarp();
        if (there && !lower) place[warp][digit] += __popc(same);
        __syncwarp();
    }
}

// start[r]: the first of the sorted ids that is r or more.
KM_KERNEL embedding_grad_starts(const __grid_constant__ EmbeddingGradArgs p) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i > p.items) return;
    int64_t from = i ? (int64_t)p.key[i - 1] + 1 : 0, to = i < p.items ? p.key[i] : p.rows;
    for (int64_t r = from; r <= to && r <= p.rows; r++) p.start[r] = (uint32_t)i;
}

// ---- Adding up ----

// Rows of dy from sorted place `first` to `last`, one after the other, several on their way at once.
template <class T, int W>
__device__ __forceinline__ void add_rows(const EmbeddingGradArgs &p, uint32_t first, uint32_t last,
                                         int64_t packs, int64_t pack, float (&s)[W]) {
    constexpr int AHEAD = 8;
    const Pack<T, W> *dy = (const Pack<T, W> *)p.dy + pack;
    for (uint32_t i = first; i < last; i += AHEAD) {
        Pack<T, W> v[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; u++)
            if (i + u < last) v[u] = dy[(int64_t)p.at[i + u] * packs];
#pragma unroll
        for (int u = 0; u < AHEAD; u++)
            if (i + u < last)
#pragma unroll
                for (int k = 0; k < W; k++) s[k] += to_f32(v[u].v[k]);
    }
}

template <class T, int W>
__device__ __forceinline__ void put(const EmbeddingGradArgs &p, Pack<T, W> *out,
                                    const float (&s)[W]) {
    Pack<T, W> r;
    if (p.accumulate) r = *out;
#pragma unroll
    for (int k = 0; k < W; k++) r.v[k] = from_f32<T>(p.accumulate ? to_f32(r.v[k]) + s[k] : s[k]);
    *out = r;
}

template <class T, int W>
__device__ void light_rows(const EmbeddingGradArgs &p) { // a block to a row
    int64_t row = blockIdx.x, packs = p.inner / W;
    int64_t pack = (int64_t)blockIdx.y * blockDim.x + threadIdx.x;
    uint32_t first = p.start[row], last = p.start[row + 1];
    if (last - first > KM_HEAVY) {
        if (blockIdx.y == 0 && threadIdx.x == 0)
            p.heavy[1 + atomicAdd(&p.heavy[0], 1u)] = (uint32_t)row;
        return;
    }
    if (pack >= packs || (p.accumulate && first == last)) return;
    float s[W] = {};
    add_rows<T, W>(p, first, last, packs, pack, s);
    put<T, W>(p, (Pack<T, W> *)p.out + row * packs + pack, s);
}

// 8 warps share a row and 32 packs of it: each adds an eighth of the rows of dy.
template <class T, int W> __device__ void heavy_rows(const EmbeddingGradArgs &p) {
    __shared__ float part[8][32][W + 1];
    int64_t packs = p.inner / W, wide = (packs + 31) / 32, work = p.heavy[0] * wide;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int64_t i = blockIdx.x; i < work; i += gridDim.x) {
        int64_t row = p.heavy[1 + i / wide], pack = i % wide * 32 + lane;
        uint32_t first = p.start[row], many = p.start[row + 1] - first, each = (many + 7) / 8;
        uint32_t begin = first + min(warp * each, many), end = first + min((warp + 1) * each, many);
        float s[W] = {};
        if (pack < packs) add_rows<T, W>(p, begin, end, packs, pack, s);
#pragma unroll
        for (int k = 0; k < W; k++) part[warp][lane][k] = s[k];
        __syncthreads();
        if (warp == 0 && pack < packs) {
            for (int w = 1; w < 8; w++)
#pragma unroll
                for (int k = 0; k < W; k++) s[k] += part[w][lane][k];
            put<T, W>(p, (Pack<T, W> *)p.out + row * packs + pack, s);
        }
        __syncthreads();
    }
}

#define BY_FLOAT(T, t)                                                                             \
    KM_KERNEL embedding_grad_light_##t(const __grid_constant__ EmbeddingGradArgs p) {              \
        light_rows<T, WIDE<T>>(p);                                                                 \
    }                                                                                              \
    KM_KERNEL embedding_grad_light1_##t(const __grid_constant__ EmbeddingGradArgs p) {             \
        light_rows<T, 1>(p);                                                                       \
    }                                                                                              \
    KM_KERNEL embedding_grad_heavy_##t(const __grid_constant__ EmbeddingGradArgs p) {              \
        heavy_rows<T, WIDE<T>>(p);                                                                 \
    }                                                                                              \
    KM_KERNEL embedding_grad_heavy1_##t(const __grid_constant__ EmbeddingGradArgs p) {             \
        heavy_rows<T, 1>(p);                                                                       \
    }
KM_EACH_FLOAT(BY_FLOAT)
