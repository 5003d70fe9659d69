// Scans of codes: rows decoded into tiles of f16, queries rounded, products with mma (before Hopper),
// lists cut to the best, and these worked out in f32.
//
// Floor of decoding n rows of d columns: the codes' bytes read and 2 n d written. Rows that are told
// apart wrongly by f16 cost nothing as long as they are among those that are kept: more than asked for.
#include "backend/cuda/kernels/mma.cuh"
#include "backend/cuda/kernels/vector/scan.cuh"
#include "backend/cuda/kernels/quant/tile_products.cuh"

typedef km_scan_args ScanArgs;

// A power of two that brings `reach` to about 2^8, far from both ends of f16.
__device__ __forceinline__ float scan_unit(float reach) {
    if (!(reach > 0) || reach > 1e38f) return 1.0f;
    int e = ilogbf(reach);
    e = e < -100 ? -100 : e;
    return ldexpf(1.0f, 8 - e);
}
__device__ __forceinline__ float row_unit(const ScanArgs &p) {
    return scan_unit(__uint_as_float(p.reach[0]) + __uint_as_float(p.reach[1]));
}

// ---- How large rows can be ----

KM_KERNEL scan_begin(const __grid_constant__ ScanArgs p) { // one block
    __shared__ float part[3][8];
    float amp = 0, level = 0, scale = 0;
    wait_for_previous();
    for (int i = threadIdx.x; i < p.d; i += 256) amp = fmaxf(amp, fabsf(p.amp[i]));
    const float *values = p.rate ? p.windows : p.tables;
    for (int i = threadIdx.x; i < (p.rate ? 9 * 4096 : 9 * 256); i += 256)
        level = fmaxf(level, fabsf(values[i]));
    scale = fabsf(p.tables[9 * 256 + threadIdx.x]);
    amp = warp_max(amp), level = warp_max(level), scale = warp_max(scale);
    if (threadIdx.x % 32 == 0) {
        part[0][threadIdx.x / 32] = amp;
        part[1][threadIdx.x / 32] = level;
        part[2][threadIdx.x / 32] = scale;
    }
    __syncthreads();
    if (threadIdx.x) return;
    for (int w = 1; w < 8; w++) {
        amp = fmaxf(amp, part[0][w]);
        level = fmaxf(level, part[1][w]);
        scale = fmaxf(scale, part[2][w]);
    }
    p.reach[0] = __float_as_uint(amp * level * scale);
    p.reach[1] = 0;
}

KM_KERNEL scan_reach(const __grid_constant__ ScanArgs p) {
    float most = 0;
    int64_t all = (int64_t)p.cells * p.d;
    wait_for_previous();
    for (int64_t i = blockIdx.x * 256 + threadIdx.x; i < all; i += (int64_t)gridDim.x * 256)
        most = fmaxf(most, fabsf(p.centre[i]));
    most = warp_max(most);
    if (threadIdx.x % 32 == 0)
        atomicMax(&p.reach[1], __float_as_uint(most)); // order does not matter
}

// ---- Queries ----

KM_KERNEL scan_queries(const __grid_constant__ ScanArgs p) { // a warp to a query
    int lane = threadIdx.x % 32;
    int row = blockIdx.x * 8 + threadIdx.x / 32;
    bool there = row < p.queries;
    wait_for_previous();
    const float *from = p.query + (int64_t)row * p.d;
    float most = 0;
    for (int e = lane; there && e < p.d; e += 32) most = fmaxf(most, fabsf(from[e]));
    float unit = scan_unit(warp_max(most));
    for (int chunk = lane; chunk < p.slices * 8; chunk += 32) {
        uint32_t h[4];
#pragma unroll
        for (int u = 0; u < 4; u++) {
            int e = chunk * 8 + 2 * u;
            h[u] = pack2<f16>(there && e < p.d ? from[e] * unit : 0.0f,
                              there && e + 1 < p.d ? from[e + 1] * unit : 0.0f);
        }
        char *to =
            (char *)p.query_tiles +
            ((int64_t)(row / KM_SCAN_QUERIES) * p.slices + chunk / 8) * KM_SCAN_QUERIES * 128 +
            swizzle<8>(row % KM_SCAN_QUERIES, chunk % 8);
        *reinterpret_cast<uint4 *>(to) = make_uint4(h[0], h[1], h[2], h[3]);
    }
    if (lane) return;
    p.factor[row] = (p.product ? -1.0f : -2.0f) / unit / row_unit(p);
    p.limit[row] = there ? SCAN_HUGE : -INFINITY;
    if (there) p.count[row] = p.over[row] = 0;
}

// ---- Rows ----

// Eight columns from 8 * chunk on: where their levels lie, and their amplitudes.
struct Columns {
    int place;
    uint32_t bits; // four bits for each
    float amp[8];
    __device__ __forceinline__ void load(const ScanArgs &p, int chunk) {
        int e = 8 * chunk, at = place = p.place[e < p.d ? e : p.d];
        bits = 0;
#pragma unroll
        for (int u = 0; u < 8; u++) {
            int next = e + u < p.d ? __ldg(p.place + e + u + 1) : at;
            bits |= (uint32_t)(next - at) << (4 * u);
            at = next;
            amp[u] = e + u < p.d ? __ldg(p.amp + e + u) : 0.0f;
        }
    }
};

__device__ __forceinline__ uint32_t word_of(const ScanArgs &p, const uint8_t *code, int i) {
    return 4 * (int64_t)i < p.stride ? __ldg(reinterpret_cast<const uint32_t *>(code) + i) : 0u;
}

__device__ __forceinline__ void centre_values(const ScanArgs &p, int cell, int chunk,
                                              float (&v)[8]) {
    const float *centre = p.centre + (int64_t)cell * p.d + 8 * chunk;
    if (p.aligned) {
        float4 lo = __ldg(reinterpret_cast<const float4 *>(centre));
        float4 hi = __ldg(reinterpret_cast<const float4 *>(centre) + 1);
        v[0] = lo.x, v[1] = lo.y, v[2] = lo.z, v[3] = lo.w;
        v[4] = hi.x, v[5] = hi.y, v[6] = hi.z, v[7] = hi.w;
    } else {
#pragma unroll
        for (int u = 0; u < 8; u++) v[u] = 8 * chunk + u < p.d ? __ldg(centre + u) : 0.0f;
    }
}

// Their values in a row: centre + scale * amp * level.
__device__ __forceinline__ void row_values(const ScanArgs &p, const Columns &c, const float *levels,
                                           int64_t row, int cell, float scale, int chunk,
                                           float (&v)[8]) {
    const uint8_t *code = p.codes + row * p.stride;
    int w = c.place >> 5;
    uint32_t a = word_of(p, code, w), b = word_of(p, code, w + 1);
    centre_values(p, cell, chunk, v);
    if (c.bits == 0x44444444u) {
        uint32_t x = __funnelshift_r(a, b, c.place & 31);
#pragma unroll
        for (int u = 0; u < 8; u++)
            v[u] = fmaf(scale, c.amp[u] * levels[4 * 256 + (x >> (4 * u) & 15)], v[u]);
        return;
    }
    uint32_t sh = c.place & 31, third = word_of(p, code, w + 2);
    uint64_t x = (uint64_t)__funnelshift_r(b, third, sh) << 32 | __funnelshift_r(a, b, sh);
#pragma unroll
    for (int u = 0; u < 8; u++) {
        int n = c.bits >> (4 * u) & 15;
        v[u] = fmaf(scale, c.amp[u] * levels[n * 256 + ((uint32_t)x & ((1u << n) - 1))], v[u]);
        x >>= n;
    }
}

// The same of a trellis: each column has a window of its own, and the table of its rate, which is read
// from L1. Columns that carry nothing have amplitude 0.
struct Windows {
    int place[8], table[8];
    float amp[8];
    __device__ __forceinline__ void load(const ScanArgs &p, int chunk) {
#pragma unroll
        for (int u = 0; u < 8; u++) {
            int e = 8 * chunk + u;
            bool there = e < p.d;
            place[u] = there ? __ldg(p.place + e) : 0;
            table[u] = there ? __ldg(p.rate + e) * 4096 : 0;
            amp[u] = there ? __ldg(p.amp + e) : 0.0f;
        }
    }
};

__device__ __forceinline__ void row_values(const ScanArgs &p, const Windows &c, const float *,
                                           int64_t row, int cell, float scale, int chunk,
                                           float (&v)[8]) {
    const uint8_t *code = p.codes + row * p.stride;
    centre_values(p, cell, chunk, v);
#pragma unroll
    for (int u = 0; u < 8; u++) {
        if (c.amp[u] == 0) continue;
        int w = c.place[u] >> 5;
        uint32_t x = __funnelshift_r(word_of(p, code, w), word_of(p, code, w + 1), c.place[u] & 31);
        v[u] = fmaf(scale, c.amp[u] * __ldg(p.windows + c.table[u] + (x & 4095)), v[u]);
    }
}

constexpr int TOGETHER = 4; // rows of a warp

__device__ __forceinline__ void load_tables(const ScanArgs &p, float *levels) {
    for (int i = threadIdx.x; i < 10 * 256; i += blockDim.x) levels[i] = p.tables[i];
    __syncthreads();
}

template <class C> __device__ __forceinline__ void decode(const ScanArgs &p) {
    __shared__ float levels[10 * 256];
    int lane = threadIdx.x % 32;
    int64_t first = ((int64_t)blockIdx.x * 8 + threadIdx.x / 32) * TOGETHER;
    wait_for_previous();
    load_tables(p, levels);
    float unit = row_unit(p), scale[TOGETHER], sum[TOGETHER];
    int cell[TOGETHER];
#pragma unroll
    for (int r = 0; r < TOGETHER; r++) {
        int64_t row = p.first + (first + r) * p.step;
        bool there = first + r < p.rows;
        cell[r] = there ? p.cell[row] : -1;
        if (cell[r] >= p.cells) cell[r] = -1;
        scale[r] = there ? levels[9 * 256 + p.scale[row]] : 0.0f;
        sum[r] = 0;
    }
    for (int chunk = lane; chunk < p.slices * 8; chunk += 32) {
        C c;
        c.load(p, chunk);
        bool any = 8 * chunk < p.d;
        char *to = (char *)p.row_tiles +
                   (first / KM_SCAN_ROWS * p.slices + chunk / 8) * (KM_SCAN_ROWS * 128);
#pragma unroll
        for (int r = 0; r < TOGETHER; r++) {
            float v[8];
#pragma unroll
            for (int u = 0; u < 8; u++) v[u] = 0;
            if (any && cell[r] >= 0)
                row_values(p, c, levels, p.first + (first + r) * p.step, cell[r], scale[r], chunk,
                           v);
            uint32_t h[4];
#pragma unroll
            for (int u = 0; u < 4; u++) {
                sum[r] = fmaf(v[2 * u], v[2 * u], sum[r]);
                sum[r] = fmaf(v[2 * u + 1], v[2 * u + 1], sum[r]);
                h[u] = pack2<f16>(v[2 * u] * unit, v[2 * u + 1] * unit);
            }
            *reinterpret_cast<uint4 *>(to +
                                       swizzle<8>((int)((first + r) % KM_SCAN_ROWS), chunk % 8)) =
                make_uint4(h[0], h[1], h[2], h[3]);
        }
    }
#pragma unroll
    for (int r = 0; r < TOGETHER; r++) {
        float norm = warp_sum(sum[r]);
        if (lane == r)
            p.add[first + r] = cell[r] < 0 ? INFINITY
                               : p.product ? 0.0f
                                           : fmaf(p.lost * scale[r], scale[r], norm);
    }
}

KM_KERNEL __launch_bounds__(256) scan_decode(const __grid_constant__ ScanArgs p) {
    decode<Columns>(p);
}
KM_KERNEL __launch_bounds__(256) scan_decode_trellis(const __grid_constant__ ScanArgs p) {
    decode<Windows>(p);
}

// ---- Products, before Hopper ----

// 8 warps of 16 queries each against 64 rows at a time.
constexpr int Q_BYTES = KM_SCAN_QUERIES * 128, R_BYTES = 64 * 128, STAGES = 3;

template <bool SAMPLE> __device__ void multiply(const ScanArgs &p) {
    extern __shared__ __align__(1024) uint8_t shared[];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t base = smem_addr(shared);
    wait_for_previous();
    ScanRows own;
    own.load(p, blockIdx.y * KM_SCAN_QUERIES + warp * 16 + lane / 4);
    int quarters = p.tiles * 4, mine = ((int)blockIdx.x < quarters)
                                           ? (quarters - blockIdx.x + gridDim.x - 1) / gridDim.x
                                           : 0;
    int steps = mine * p.slices;
    auto quarter = [&](int s) { return (int)blockIdx.x + s / p.slices * (int)gridDim.x; };
    auto load = [&](int s) {
        if (s < steps) {
            int group = quarter(s), slice = s % p.slices;
            uint32_t to = base + s % STAGES * (Q_BYTES + R_BYTES);
            const char *q =
                (const char *)p.query_tiles + ((int64_t)blockIdx.y * p.slices + slice) * Q_BYTES;
            const char *r = (const char *)p.row_tiles +
                            ((int64_t)(group / 4) * p.slices + slice) * (4 * R_BYTES) +
                            group % 4 * R_BYTES;
            ask_tile<Q_BYTES>(to, q);
            ask_tile<R_BYTES>(to + Q_BYTES, r);
        }
        cp_async_commit();
    };
    float d[32];
    load(0);
    load(1);
    for (int s = 0; s < steps; s++) {
        cp_async_wait<1>();
        __syncthreads();
        load(s + 2);
        if (s % p.slices == 0)
#pragma unroll
            for (int i = 0; i < 32; i++) d[i] = 0;
        uint32_t q = base + s % STAGES * (Q_BYTES + R_BYTES);
        add_slice(d, q, q + Q_BYTES, warp, lane);
        if (s % p.slices == p.slices - 1) look_at<8, SAMPLE>(p, d, lane, quarter(s) * 64, own);
    }
}

KM_KERNEL __launch_bounds__(256) scan_mma(const __grid_constant__ ScanArgs p) {
    multiply<false>(p);
}
KM_KERNEL __launch_bounds__(256) scan_mma_sample(const __grid_constant__ ScanArgs p) {
    multiply<true>(p);
}

// ---- Lists ----

// Sorts n keys (a power of two) in shared memory, by 256 threads.
__device__ __forceinline__ void sort_keys(unsigned long long *key, int n) {
    for (int size = 2; size <= n; size *= 2)
        for (int by = size / 2; by > 0; by /= 2) {
            __syncthreads();
            for (int i = threadIdx.x; i < n / 2; i += 256) {
                int a = i / by * 2 * by + i % by, b = a + by;
                unsigned long long x = key[a], y = key[b];
                if ((x > y) == ((a & size) == 0)) {
                    key[a] = y;
                    key[b] = x;
                }
            }
        }
    __syncthreads();
}

__device__ __forceinline__ int two_to(int n) { // the least power of two that is not below n
    return n <= 2 ? 2 : 1 << (32 - __clz(n - 1));
}

// A block to a query: the best of its list stay, and its limit falls. Of the sample, the list holds the
// smallest values of groups: as many rows as are kept are at or below the last of them.
KM_KERNEL __launch_bounds__(256) scan_select(const __grid_constant__ ScanArgs p) {
    __shared__ unsigned long long key[KM_SCAN_LIST];
    int q = blockIdx.x;
    wait_for_previous();
    uint32_t offered = p.sample ? (uint32_t)p.tiles * KM_SCAN_GROUPS : p.count[q];
    int many = offered < KM_SCAN_LIST ? (int)offered : KM_SCAN_LIST, room = two_to(many);
    unsigned long long *list = p.list + (int64_t)q * KM_SCAN_LIST;
    for (int i = threadIdx.x; i < room; i += 256) key[i] = i < many ? list[i] : ~0ull;
    sort_keys(key, room);
    int kept = many < p.keep ? many : p.keep;
    if (!p.sample)
        for (int i = threadIdx.x; i < kept; i += 256) list[i] = key[i];
    if (threadIdx.x) return;
    if (many >= p.keep) p.limit[q] = fminf(p.limit[q], scan_value(key[p.keep - 1]));
    p.count[q] = p.sample ? 0u : (uint32_t)kept;
    if (offered > KM_SCAN_LIST) p.over[q] = 1;
}

// The distance of a row as defined, by a whole warp, in all lanes.
template <class C>
__device__ __forceinline__ float exact(const ScanArgs &p, const float *levels, int64_t row, int q,
                                       int lane) {
    int cell = p.cell[row];
    if (cell < 0 || cell >= p.cells) return INFINITY;
    float scale = levels[9 * 256 + p.scale[row]], sum = 0;
    const float *query = p.query + (int64_t)q * p.d;
    for (int chunk = lane; 8 * chunk < p.d; chunk += 32) {
        C c;
        float v[8];
        c.load(p, chunk);
        row_values(p, c, levels, row, cell, scale, chunk, v);
#pragma unroll
        for (int u = 0; u < 8; u++) {
            float x = 8 * chunk + u < p.d ? __ldg(query + 8 * chunk + u) : 0.0f;
            sum = p.product ? fmaf(-x, v[u], sum) : fmaf(x - v[u], x - v[u], sum);
        }
    }
    sum = warp_sum(sum);
    return p.product ? sum : fmaf(p.lost * scale, scale, sum);
}

// A block to a query: its rows in f32, the k best of them in order. Where a list had no room for all,
// every row there is.
template <class C> __device__ __forceinline__ void finish(const ScanArgs &p) {
    __shared__ unsigned long long key[KM_SCAN_LIST];
    __shared__ float levels[10 * 256];
    int q = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32, have = 0;
    wait_for_previous();
    load_tables(p, levels);
    if (p.exact || p.over[q]) {
        for (int64_t first = 0; first < p.n; first += KM_SCAN_LIST - p.keep) {
            int64_t left = p.n - first, step = KM_SCAN_LIST - p.keep;
            int here = left < step ? (int)left : (int)step, room = two_to(have + here);
            __syncthreads();
            for (int i = warp; i < here; i += 8) {
                float v = exact<C>(p, levels, first + i, q, lane);
                if (lane == 0)
                    key[have + i] = v < SCAN_HUGE ? scan_key(v, (uint32_t)(first + i)) : ~0ull;
            }
            for (int i = have + here + threadIdx.x; i < room; i += 256) key[i] = ~0ull;
            sort_keys(key, room);
            have = have + here < p.keep ? have + here : p.keep;
        }
    } else {
        have = (int)p.count[q];
        int room = two_to(have);
        for (int i = warp; i < have; i += 8) {
            uint32_t row = (uint32_t)p.list[(int64_t)q * KM_SCAN_LIST + i];
            float v = exact<C>(p, levels, row, q, lane);
            if (lane == 0) key[i] = v < SCAN_HUGE ? scan_key(v, row) : ~0ull;
        }
        for (int i = have + threadIdx.x; i < room; i += 256) key[i] = ~0ull;
        sort_keys(key, room);
    }
    for (int i = threadIdx.x; i < p.k; i += 256) {
        bool there = i < have && key[i] != ~0ull;
        p.id[(int64_t)q * p.k + i] = there ? (int32_t)(uint32_t)key[i] : -1;
        p.dist[(int64_t)q * p.k + i] = there ? scan_value(key[i]) : INFINITY;
    }
}

KM_KERNEL __launch_bounds__(256) scan_finish(const __grid_constant__ ScanArgs p) {
    finish<Columns>(p);
}
KM_KERNEL __launch_bounds__(256) scan_finish_trellis(const __grid_constant__ ScanArgs p) {
    finish<Windows>(p);
}
