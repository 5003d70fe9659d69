// What the rows of each cell add up to: rows are sorted by cell, keeping their order, and each cell is
// then added up by blocks of its own, so that no two threads ever add to the same number and the bits
// are the same in every run.
//
// Floor: x read once, 4 n d bytes; the sort moves some 20 bytes for each row.
#include "backend/cuda/kernels/rows/row.cuh"
#include "backend/cuda/kernels/vector/nearest_args.h"

typedef km_cells_args CellsArgs;

__device__ __forceinline__ int cell_of(const CellsArgs &p, int64_t i) { // -1: in none
    int id = i < p.n ? p.id[i] : -1;
    return id >= 0 && id < p.k ? id : -1;
}

// ---- Sorting: counters of all cells in shared memory ----

KM_KERNEL cells_count(const __grid_constant__ CellsArgs p) { // 256 threads to a tile
    extern __shared__ uint32_t many[];
    for (int c = threadIdx.x; c < p.k; c += 256) many[c] = 0;
    __syncthreads();
    wait_for_previous();
    int64_t first = (int64_t)blockIdx.x * p.tile_rows;
    for (int i = threadIdx.x; i < p.tile_rows; i += 256) {
        int c = cell_of(p, first + i);
        if (c >= 0) atomicAdd(&many[c], 1u);
    }
    __syncthreads();
    for (int c = threadIdx.x; c < p.k; c += 256)
        p.tile_count[(int64_t)blockIdx.x * p.k + c] = many[c];
}

// Counts of tiles become places within the cell.
KM_KERNEL cells_scan(const __grid_constant__ CellsArgs p) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    wait_for_previous();
    if (c >= p.k) return;
    constexpr int AHEAD = 8;
    uint32_t before = 0;
    for (int t = 0; t < p.tiles; t += AHEAD) {
        uint32_t v[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; u++)
            v[u] = t + u < p.tiles ? p.tile_count[(int64_t)(t + u) * p.k + c] : 0;
#pragma unroll
        for (int u = 0; u < AHEAD; u++) {
            if (t + u < p.tiles) p.tile_count[(int64_t)(t + u) * p.k + c] = before;
            before += v[u];
        }
    }
    p.total[c] = before;
}

// Where cells begin, and how many blocks come before each: one block of 1024 threads. With total NULL
// the starts are there already.
KM_KERNEL cells_starts(const __grid_constant__ CellsArgs p) {
    __shared__ uint32_t rows_by_warp[32], chunks_by_warp[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    wait_for_previous();
    uint32_t rows_before = 0, chunks_before = 0;
    for (int first = 0; first < p.k; first += 1024) {
        int c = first + threadIdx.x;
        uint32_t many = 0, chunks = 0;
        if (c < p.k) {
            many = p.total ? p.total[c] : p.start[c + 1] - p.start[c];
            chunks = many <= KM_CELLS_CHUNK ? 1 : (many + KM_CELLS_CHUNK - 1) / KM_CELLS_CHUNK;
            p.count[c] = (float)many;
            if (!p.weight) p.mass[c] = (float)many;
            p.done[c] = 0;
        }
        uint32_t rows = many, blocks = chunks;
#pragma unroll
        for (int by = 1; by < 32; by *= 2) {
            uint32_t r = __shfl_up_sync(ALL_LANES, rows, by),
                     b = __shfl_up_sync(ALL_LANES, blocks, by);
            if (lane >= by) rows += r, blocks += b;
        }
        if (lane == 31) rows_by_warp[warp] = rows, chunks_by_warp[warp] = blocks;
        __syncthreads();
        uint32_t rows_all = 0, chunks_all = 0, rows_here = 0, chunks_here = 0;
        for (int w = 0; w < 32; w++) {
            if (w == warp) rows_here = rows_all, chunks_here = chunks_all;
            rows_all += rows_by_warp[w];
            chunks_all += chunks_by_warp[w];
        }
        if (c < p.k) {
            if (p.total) p.start[c] = rows_before + rows_here + rows - many;
            p.chunk[c] = chunks_before + chunks_here + blocks - chunks;
        }
        rows_before += rows_all;
        chunks_before += chunks_all;
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        if (p.total) p.start[p.k] = rows_before;
        p.chunk[p.k] = chunks_before;
    }
}

// Each row to its place. A warp takes its part of the tile in order, 32 rows at a time; rows of the same
// cell line up behind each other.
KM_KERNEL cells_place(const __grid_constant__ CellsArgs p) {
    extern __shared__ uint16_t place[]; // (warps, k)
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, each = p.tile_rows / KM_CELLS_WARPS;
    for (int c = threadIdx.x; c < p.k * KM_CELLS_WARPS; c += 256) place[c] = 0;
    __syncthreads();
    wait_for_previous();
    int64_t first = (int64_t)blockIdx.x * p.tile_rows + warp * each;
    uint16_t *own = place + warp * p.k;
    for (int i = lane; i < each;
         i += 32) { // rows of one cell among 32: the first of them counts all
        int c = cell_of(p, first + i);
        unsigned same = __match_any_sync(ALL_LANES, c);
        if (c >= 0 && !(same & ((1u << lane) - 1))) own[c] += (uint16_t)__popc(same);
        __syncwarp();
    }
    __syncthreads();
    for (int c = threadIdx.x; c < p.k; c += 256) {
        uint16_t before = 0;
#pragma unroll
        for (int w = 0; w < KM_CELLS_WARPS; w++) {
            uint16_t many = place[w * p.k + c];
            place[w * p.k + c] = before;
            before += many;
        }
    }
    __syncthreads();
    const uint32_t *tile = p.tile_count + (int64_t)blockIdx.x * p.k;
    for (int i = lane; i < each; i += 32) {
        int c = cell_of(p, first + i);
        unsigned same = __match_any_sync(ALL_LANES, c), lower = same & ((1u << lane) - 1);
        if (c >= 0) {
            uint32_t to = p.start[c] + tile[c] + own[c] + __popc(lower);
            p.order[to] = (uint32_t)(first + i);
        }
        __syncwarp();
        if (c >= 0 && !lower) own[c] += (uint16_t)__popc(same);
        __syncwarp();
    }
}

// ---- Adding up ----

__device__ __forceinline__ int cell_of_block(const CellsArgs &p,
                                             uint32_t b) { // chunk[c] <= b < chunk[c + 1]
    int lo = 0, hi = p.k - 1;
    while (lo < hi) {
        int mid = (lo + hi + 1) / 2;
        if (p.chunk[mid] <= b)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

// The weights and distances of rows first .. last, by 256 threads in a fixed order: in thread 0.
__device__ __forceinline__ float2 add_numbers(const CellsArgs &p, uint32_t first, uint32_t last,
                                              float2 *by_warp) {
    float mass = 0, spread = 0;
    for (uint32_t i = first + threadIdx.x; i < last; i += 256) {
        uint32_t row = p.order[i];
        if (p.weight) mass += p.weight[row];
        if (p.dist) spread += p.dist[row];
    }
    mass = warp_sum(mass);
    spread = warp_sum(spread);
    if (threadIdx.x % 32 == 0) by_warp[threadIdx.x / 32] = make_float2(mass, spread);
    __syncthreads();
    float2 all = make_float2(0, 0);
    for (int w = 0; w < 8; w++) all.x += by_warp[w].x, all.y += by_warp[w].y;
    __syncthreads();
    return all;
}

// 256 threads: `groups` of rows side by side, `columns` packs of W elements each.
template <class T, int W> __device__ void add_cells(const CellsArgs &p) {
    __shared__ float part[256 * W];
    __shared__ float2 by_warp[8];
    __shared__ bool last_block;
    wait_for_previous();
    if (blockIdx.x >= p.chunk[p.k]) return;
    int cell = cell_of_block(p, blockIdx.x);
    uint32_t parts = p.chunk[cell + 1] - p.chunk[cell];
    uint32_t first = p.start[cell] + (blockIdx.x - p.chunk[cell]) * KM_CELLS_CHUNK;
    uint32_t last = min(first + KM_CELLS_CHUNK, p.start[cell + 1]);
    int group = threadIdx.x / p.columns, column = threadIdx.x % p.columns;
    int pack = blockIdx.y * p.columns + column, packs = (p.d + W - 1) / W;
    bool here = group < p.groups && pack < packs;
    float s[W] = {};
    if (here) {
        constexpr int AHEAD = 8;
        const Pack<T, W> *x = (const Pack<T, W> *)p.x + pack;
        for (uint32_t i = first + group; i < last; i += AHEAD * p.groups) {
            Pack<T, W> v[AHEAD];
            float w[AHEAD];
#pragma unroll
            for (int u = 0; u < AHEAD; u++) {
                uint32_t at = i + u * p.groups;
                if (at < last) {
                    uint32_t row = p.order[at];
                    v[u] = x[(int64_t)row * packs];
                    w[u] = p.weight ? p.weight[row] : 1.0f;
                }
            }
#pragma unroll
            for (int u = 0; u < AHEAD; u++)
                if (i + u * p.groups < last)
#pragma unroll
                    for (int e = 0; e < W; e++) s[e] = fmaf(w[u], to_f32(v[u].v[e]), s[e]);
        }
    }
#pragma unroll
    for (int e = 0; e < W; e++) part[threadIdx.x * W + e] = s[e];
    __syncthreads();
    float2 numbers = make_float2(0, 0);
    if (blockIdx.y == 0) numbers = add_numbers(p, first, last, by_warp);
    int stride = p.d + 4;
    if (group == 0 && here) {
        for (int g = 1; g < p.groups; g++)
#pragma unroll
            for (int e = 0; e < W; e++) s[e] += part[(g * p.columns + column) * W + e];
        float *to =
            parts == 1 ? p.sum + (int64_t)cell * p.d : p.part + (int64_t)blockIdx.x * stride;
#pragma unroll
        for (int e = 0; e < W; e++)
            if (pack * W + e < p.d) to[pack * W + e] = s[e];
    }
    if (blockIdx.y == 0 && threadIdx.x == 0) {
        if (parts == 1) {
            if (p.weight) p.mass[cell] = numbers.x;
            p.spread[cell] = numbers.y;
        } else {
            p.part[(int64_t)blockIdx.x * stride + p.d] = numbers.x;
            p.part[(int64_t)blockIdx.x * stride + p.d + 1] = numbers.y;
        }
    }
    if (parts == 1) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last_block = atomicAdd(&p.done[cell], 1u) == parts * gridDim.y - 1;
    __syncthreads();
    if (!last_block) return;
    __threadfence();
    const float *all = p.part + (int64_t)p.chunk[cell] * stride;
    for (int e = threadIdx.x; e < p.d + 2; e += 256) {
        float sum = 0;
        for (uint32_t c = 0; c < parts; c++) sum += __ldcg(all + (int64_t)c * stride + e);
        if (e < p.d)
            p.sum[(int64_t)cell * p.d + e] = sum;
        else if (e == p.d && p.weight)
            p.mass[cell] = sum;
        else if (e == p.d + 1)
            p.spread[cell] = sum;
    }
}

#define BY_FLOAT(T, t)                                                                             \
    KM_KERNEL __launch_bounds__(256) cells_sum_##t(const __grid_constant__ CellsArgs p) {          \
        add_cells<T, WIDE<T>>(p);                                                                  \
    }                                                                                              \
    KM_KERNEL __launch_bounds__(256) cells_sum1_##t(const __grid_constant__ CellsArgs p) {         \
        add_cells<T, 1>(p);                                                                        \
    }
KM_EACH_FLOAT(BY_FLOAT)
