// Nearest centres: rounding rows into tiles of f16, the search with mma (before Hopper), and the second
// look, in f32, at rows where rounding could have changed the answer.
//
// Floor for (n, d, k): 2 n d k operations at the rate of f16 products; bytes: 2 n d of tiles read once,
// 4 n d more where exact distances are asked for. Centres stay in the L2 cache.
#include "backend/cuda/kernels/mma.cuh"
#include "backend/cuda/kernels/vector/nearest.cuh"
#include "backend/cuda/kernels/quant/tile_products.cuh"

typedef km_nearest_args NearestArgs;

template <class T> __device__ __forceinline__ float at(const void *x, int64_t i) {
    return to_f32(((const T *)x)[i]);
}

__device__ __forceinline__ int64_t sample_row(const NearestArgs &p, int64_t i) {
    return p.n <= KM_NEAREST_SAMPLE ? i : i * (p.n / KM_NEAREST_SAMPLE);
}
__device__ __forceinline__ int64_t sample_rows(const NearestArgs &p) {
    return p.n < KM_NEAREST_SAMPLE ? p.n : KM_NEAREST_SAMPLE;
}

// ---- Where the data lie ----

// 32 columns to a block of 8 warps.
template <class T> __device__ void sample_mean(const NearestArgs &p) {
    __shared__ float part[8][33];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * 32 + lane;
    int64_t rows = sample_rows(p);
    wait_for_previous();
    float sum = 0;
    if (column < p.d)
        for (int64_t i = warp; i < rows; i += 8) sum += at<T>(p.x, sample_row(p, i) * p.d + column);
    part[warp][lane] = sum;
    if (blockIdx.x == 0 && threadIdx.x == 0) p.info->reach = 0;
    __syncthreads();
    if (warp) return;
    for (int w = 1; w < 8; w++) sum += part[w][lane];
    float mean = rows ? sum / (float)rows : 0.0f;
    p.mean[column] = isfinite(mean) ? mean : 0.0f;
}

template <class T> __device__ void sample_reach(const NearestArgs &p) { // a warp to a row
    int lane = threadIdx.x % 32;
    int64_t i = (int64_t)blockIdx.x * 8 + threadIdx.x / 32;
    wait_for_previous();
    if (i >= sample_rows(p)) return;
    float most = 0;
    for (int e = lane; e < p.d; e += 32) {
        float v = fabsf(at<T>(p.x, sample_row(p, i) * p.d + e) - p.mean[e]);
        if (isfinite(v)) most = fmaxf(most, v);
    }
    most = warp_max(most);
    if (lane == 0) atomicMax(&p.info->reach, __float_as_uint(most)); // order does not matter
}

// ---- Rows into tiles ----

template <class T> __device__ void round_rows(const km_nearest_round_args &p) { // a warp to a row
    int lane = threadIdx.x % 32;
    int64_t row = (int64_t)blockIdx.x * 8 + threadIdx.x / 32;
    wait_for_previous();
    if (p.counts && blockIdx.x == 0 && threadIdx.x < 4) p.counts[threadIdx.x] = 0;
    if (row >= p.padded) return;
    float scale = nearest_scale(p.info), sum = 0;
    bool over = false;
    int64_t tile = row / p.tile_rows;
    int in_tile = (int)(row % p.tile_rows);
    for (int chunk = lane; chunk < p.slices * 8; chunk += 32) {
        float v[8];
#pragma unroll
        for (int u = 0; u < 8; u++) v[u] = 0;
        int e = chunk * 8;
        if (row < p.n && e < p.d) {
            if (p.aligned) {
                const Vec<T> *from =
                    reinterpret_cast<const Vec<T> *>((const T *)p.from + row * p.d + e);
#pragma unroll
                for (int u = 0; u < 8 / Vec<T>::N; u++) {
                    Vec<T> w = from[u];
#pragma unroll
                    for (int i = 0; i < Vec<T>::N; i++) v[u * Vec<T>::N + i] = to_f32(w.v[i]);
                }
            } else {
#pragma unroll
                for (int u = 0; u < 8; u++)
                    if (e + u < p.d) v[u] = at<T>(p.from, row * p.d + e + u);
            }
#pragma unroll
            for (int u = 0; u < 8; u++)
                if (e + u < p.d) v[u] = (v[u] - p.mean[e + u]) * scale;
        }
        uint32_t h[4];
#pragma unroll
        for (int u = 0; u < 4; u++) {
            over |= !(fabsf(v[2 * u]) <= 65504.0f) || !(fabsf(v[2 * u + 1]) <= 65504.0f);
            sum = fmaf(v[2 * u], v[2 * u], sum);
            sum = fmaf(v[2 * u + 1], v[2 * u + 1], sum);
            h[u] = pack2<f16>(v[2 * u], v[2 * u + 1]);
        }
        char *to = (char *)p.tiles + ((tile * p.slices + chunk / 8) * p.tile_rows * 128) +
                   swizzle<8>(in_tile, chunk % 8);
        *reinterpret_cast<uint4 *>(to) = make_uint4(h[0], h[1], h[2], h[3]);
    }
    sum = warp_sum(sum);
    over = __any_sync(ALL_LANES, over);
    if (lane) return;
    if (over)
        sum = sum != sum ? sum : INFINITY; // NaN is never the nearest; far away, all is looked at
    p.norm[row] = row < p.n ? sum : p.past;
    if (p.size) p.size[row] = row < p.n && sum == sum ? sqrtf(sum) : 0.0f;
}

// ---- The search, before Hopper ----

// 8 warps of 16 rows each against 64 centres at a time.
constexpr int X_BYTES = KM_NEAREST_ROWS * 128, C_BYTES = 64 * 128, STAGES = 3;

KM_KERNEL __launch_bounds__(256) nearest_mma(const __grid_constant__ NearestArgs p) {
    extern __shared__ __align__(1024) uint8_t shared[];
    __shared__ float by_warp[8];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, block = blockIdx.x;
    uint32_t base = smem_addr(shared);
    wait_for_previous();
    float largest = largest_centre(p, by_warp), scale = nearest_scale(p.info);
    int groups = (p.k + 63) / 64, steps = groups * p.slices;
    auto load = [&](int s) {
        if (s < steps) {
            int group = s / p.slices, slice = s % p.slices;
            uint32_t to = base + s % STAGES * (X_BYTES + C_BYTES);
            const char *x = (const char *)p.x_tiles + ((int64_t)block * p.slices + slice) * X_BYTES;
            const char *c = (const char *)p.c_tiles +
                            ((int64_t)(group / 4) * p.slices + slice) * (4 * C_BYTES) +
                            group % 4 * C_BYTES;
            ask_tile<X_BYTES>(to, x);
            ask_tile<C_BYTES>(to + X_BYTES, c);
        }
        cp_async_commit();
    };
    RowBest best[2];
    best[0].clear();
    best[1].clear();
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
        uint32_t x = base + s % STAGES * (X_BYTES + C_BYTES);
        add_slice(d, x, x + X_BYTES, warp, lane);
        if (s % p.slices == p.slices - 1)
            search_tile<8>(d, p.c_norm, lane, s / p.slices * 64, best);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        best[h].join();
        int64_t row = (int64_t)block * KM_NEAREST_ROWS + warp * 16 + h * 8 + lane / 4;
        if (lane % 4 == 0 && row < p.n) settle_row(p, best[h], row, largest, scale);
    }
}

// ---- The second look ----

// |x_row - c_i|^2 by a whole warp, in all lanes.
template <class T>
__device__ __forceinline__ float exact(const NearestArgs &p, int64_t row, int i, int lane) {
    float sum = 0;
    const float *c = p.centre + (int64_t)i * p.d;
    if (p.aligned) {
        const Vec<T> *x = reinterpret_cast<const Vec<T> *>((const T *)p.x + row * p.d);
        constexpr int N = Vec<T>::N;
        for (int e = lane; e < p.d / N; e += 32) {
            Vec<T> v = x[e];
#pragma unroll
            for (int u = 0; u < N; u += 4) {
                float4 w = __ldg(reinterpret_cast<const float4 *>(c + e * N + u));
                float a = to_f32(v.v[u]) - w.x, b = to_f32(v.v[u + 1]) - w.y;
                float f = to_f32(v.v[u + 2]) - w.z, g = to_f32(v.v[u + 3]) - w.w;
                sum = fmaf(a, a, sum);
                sum = fmaf(b, b, sum);
                sum = fmaf(f, f, sum);
                sum = fmaf(g, g, sum);
            }
        }
    } else {
        for (int e = lane; e < p.d; e += 32) {
            float a = at<T>(p.x, row * p.d + e) - __ldg(c + e);
            sum = fmaf(a, a, sum);
        }
    }
    return warp_sum(sum);
}

template <class T>
__device__ void second_look(const NearestArgs &p) { // a warp to a row of the list
    int lane = threadIdx.x % 32;
    wait_for_previous();
    uint32_t many = p.counts[0], all = gridDim.x * 8;
    for (uint32_t i = blockIdx.x * 8 + threadIdx.x / 32; i < many; i += all) {
        int64_t row = p.pair[2 * (int64_t)i];
        int one = p.id[row], two = p.pair[2 * (int64_t)i + 1];
        float a = exact<T>(p, row, one, lane), b = exact<T>(p, row, two, lane);
        bool other = b < a || (b == a && two < one);
        if (lane) continue;
        p.id[row] = other ? two : one;
        p.dist[row] = other ? b : a;
    }
}

// Rows that meet every centre: some of them at once, in shared memory, against a part of the centres.
template <class T> __device__ void full_search(const NearestArgs &p) {
    extern __shared__ __align__(16) float rows[]; // (KM_NEAREST_TOGETHER, d)
    constexpr int R = KM_NEAREST_TOGETHER;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    wait_for_previous();
    uint32_t many = p.counts[1];
    for (uint32_t first = blockIdx.x * R; first < many; first += gridDim.x * R) {
        int here = many - first < R ? (int)(many - first) : R;
        __syncthreads();
        for (int i = threadIdx.x; i < R * p.d; i += blockDim.x) {
            int r = i / p.d;
            rows[i] = r < here ? at<T>(p.x, (int64_t)p.full[first + r] * p.d + i % p.d) : 0.0f;
        }
        __syncthreads();
        unsigned long long best[R];
#pragma unroll
        for (int r = 0; r < R; r++) best[r] = ~0ull;
        for (int c = blockIdx.y * 8 + warp; c < p.k; c += gridDim.y * 8) {
            float sum[R] = {};
            for (int e = lane; e < p.d; e += 32) {
                float w = __ldg(p.centre + (int64_t)c * p.d + e);
#pragma unroll
                for (int r = 0; r < R; r++) {
                    float diff = rows[r * p.d + e] - w;
                    sum[r] = fmaf(diff, diff, sum[r]);
                }
            }
#pragma unroll
            for (int r = 0; r < R; r++) {
                float dist = warp_sum(sum[r]);
                unsigned long long key =
                    (unsigned long long)__float_as_uint(dist) << 32 | (unsigned)c;
                if (dist == dist && key < best[r]) best[r] = key;
            }
        }
#pragma unroll
        for (int r = 0; r < R; r++)
            if (lane == 0 && r < here) atomicMin(&p.key[p.full[first + r]], best[r]);
    }
}

KM_KERNEL nearest_full_end(const __grid_constant__ NearestArgs p) {
    wait_for_previous();
    uint32_t many = p.counts[1];
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < many;
         i += gridDim.x * blockDim.x) {
        int64_t row = p.full[i];
        unsigned long long key = p.key[row];
        p.id[row] = key == ~0ull ? 0 : (int32_t)(key & 0xffffffffu);
        p.dist[row] = key == ~0ull ? NAN : __uint_as_float((uint32_t)(key >> 32));
    }
}

// Distances as defined, of all rows.
template <class T> __device__ void all_distances(const NearestArgs &p) {
    int lane = threadIdx.x % 32;
    int64_t row = (int64_t)blockIdx.x * 8 + threadIdx.x / 32;
    wait_for_previous();
    if (row >= p.n) return;
    float dist = exact<T>(p, row, p.id[row], lane);
    if (lane == 0) p.dist[row] = dist;
}

#define BY_FLOAT(T, t)                                                                             \
    KM_KERNEL nearest_mean_##t(const __grid_constant__ NearestArgs p) { sample_mean<T>(p); }       \
    KM_KERNEL nearest_reach_##t(const __grid_constant__ NearestArgs p) { sample_reach<T>(p); }     \
    KM_KERNEL nearest_round_##t(const __grid_constant__ km_nearest_round_args p) {                 \
        round_rows<T>(p);                                                                          \
    }                                                                                              \
    KM_KERNEL nearest_pair_##t(const __grid_constant__ NearestArgs p) { second_look<T>(p); }       \
    KM_KERNEL nearest_full_##t(const __grid_constant__ NearestArgs p) { full_search<T>(p); }       \
    KM_KERNEL nearest_distances_##t(const __grid_constant__ NearestArgs p) { all_distances<T>(p); }
KM_EACH_FLOAT(BY_FLOAT)
