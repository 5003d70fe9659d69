// km-arch: 90a
// km-nvcc: 12.1
// attend_pages (attend_pages.cuh) over caches of q8_0 and q4_0: pages come as they are, and the warps
// that work unpack them into tiles of f16, keys while the last page's values are multiplied, values
// while the keys are.
#include "backend/cuda/kernels/attend/attend_pages.cuh"

template <int BITS, int D> struct Room {
    static constexpr int STAGES = KM_ATTEND_STAGES_BLOCKS(BITS, D), TILE_BYTES = PAGE * D * 2;
    static constexpr int BLOCK = 2 + 4 * BITS, RAW = PAGE * D / 32 * BLOCK;
    uint8_t *k, *v, *raw;
    Side *side;
    __device__ __forceinline__ Room(uint8_t *shared) {
        k = shared, v = k + TILE_BYTES, raw = v + TILE_BYTES;
        side = reinterpret_cast<Side *>(raw + STAGES * 2 * RAW);
    }
    __device__ __forceinline__ const uint8_t *keys(int i) { return raw + i * 2 * RAW; }
    __device__ __forceinline__ const uint8_t *values(int i) { return keys(i) + RAW; }
    __device__ __forceinline__ uint32_t full(int i) { return smem_addr(&side->bars[i]); }
    __device__ __forceinline__ uint32_t empty(int i) { return smem_addr(&side->bars[STAGES + i]); }
};

// Four codes 0 to 255 as f16, less `zero`, times d.
__device__ __forceinline__ void four_of(uint32_t codes, __half2 zero, __half2 d, uint32_t &low,
                                        uint32_t &high) {
    uint32_t h[2] = {__byte_perm(codes, 0x64646464, 0x4140), // 1024 + code
                     __byte_perm(codes, 0x64646464, 0x4342)};
    __half2 a = __hmul2(__hsub2(*reinterpret_cast<__half2 *>(&h[0]), zero), d);
    __half2 b = __hmul2(__hsub2(*reinterpret_cast<__half2 *>(&h[1]), zero), d);
    low = *reinterpret_cast<uint32_t *>(&a), high = *reinterpret_cast<uint32_t *>(&b);
}

// A page's keys or values from blocks of 32 to the tile that the products want; zeros from row `seen` on.
template <int BITS, int D>
__device__ __forceinline__ void unpack(uint8_t *tile, const uint8_t *raw, int seen) {
    constexpr int BLOCK = 2 + 4 * BITS, WORDS = BITS; // of codes
#pragma unroll
    for (int c = 0; c < PAGE * D / 32 / WORKERS; c++) {
        int i = c * WORKERS + threadIdx.x, row = i / (D / 32), b = i % (D / 32);
        const uint8_t *block = raw + i * BLOCK;
        uint32_t w[WORDS + 1], out[4][4];
        __half2 d = __half2half2(*reinterpret_cast<const f16 *>(block));
        // Blocks begin at every second byte; a word too many may be of what follows.
        bool odd = (i * BLOCK + 2) % 4;
        const uint32_t *from = reinterpret_cast<const uint32_t *>(block + (odd ? 0 : 2));
#pragma unroll
        for (int k = 0; k <= WORDS; k++) w[k] = from[k];
#pragma unroll
        for (int k = 0; k < WORDS; k++) {
            uint32_t codes = __funnelshift_r(w[k], w[k + 1], odd ? 16 : 0);
            if (BITS == 8) {
                four_of(codes ^ 0x80808080u, __float2half2_rn(1024 + 128), d, out[k / 2][k % 2 * 2],
                        out[k / 2][k % 2 * 2 + 1]);
            } else {
                four_of(codes & 0x0f0f0f0fu, __float2half2_rn(1024 + 8), d, out[k / 2][k % 2 * 2],
                        out[k / 2][k % 2 * 2 + 1]);
                four_of(codes >> 4 & 0x0f0f0f0fu, __float2half2_rn(1024 + 8), d,
                        out[2 + k / 2][k % 2 * 2], out[2 + k / 2][k % 2 * 2 + 1]);
            }
        }
        bool there = row < seen;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int chunk = 4 * b + k;
            *reinterpret_cast<uint4 *>(tile + chunk / 8 * PANEL + row * 128 +
                                       ((chunk ^ row) % 8) * 16) =
                there ? make_uint4(out[k][0], out[k][1], out[k][2], out[k][3])
                      : make_uint4(0, 0, 0, 0);
        }
    }
    fence_async_proxy();
}

template <int BITS, int D>
__device__ __forceinline__ void produce(const km_attend_args &a, Room<BITS, D> at, Walk w) {
    constexpr int RAW = Room<BITS, D>::RAW;
    Ring<Room<BITS, D>::STAGES> ring;
    bool one = elected();
    while (w.next()) {
        int key_head = w.head / a.parts;
        each_page(a, w, w.pages, [&](int n, int id) {
            int64_t from = ((int64_t)id * a.kv_heads + key_head) * RAW;
            if (one) {
                uint32_t full = at.full(ring.stage);
                mbar_wait(at.empty(ring.stage), ring.phase ^ 1);
                mbar_expect(full, 2 * RAW);
                bulk_load(smem_addr(at.keys(ring.stage)), a.cache_k + from, RAW, full);
                bulk_load(smem_addr(at.values(ring.stage)), a.cache_v + from, RAW, full);
            }
            __syncwarp();
            ring.next();
        });
    }
}

template <int BITS, int D>
__device__ __forceinline__ void consume(const km_attend_args &a, Room<BITS, D> at, Walk w,
                                        int each) {
    int lane = threadIdx.x % 32, m = threadIdx.x / 32 * 16 + lane / 4;
    Ring<Room<BITS, D>::STAGES> ring;
    while (w.next()) {
        Query query[2] = {query_of(a, w, each, m), query_of(a, w, each, m + 8)};
        uint32_t q[D / 16][4], prob[4][4] = {};
        load_queries<D>(a, w, each, query, q);
        bool some = __any_sync(ALL_LANES, query[0].valid || query[1].valid);
        int clear = __reduce_min_sync(ALL_LANES, min(query[0].at, query[1].at));
        int begun = __reduce_max_sync(ALL_LANES, max(query[0].begin, query[1].begin));
        float s[32], o[D / 2], top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, by[2] = {1, 1};
        int end = w.last ? keys_of_last(a, w) : PAGE; // of the segment's last page
        auto seen = [&](int n) { return n + 1 == w.pages ? end : PAGE; };
        mbar_wait(at.full(ring.stage), ring.phase);
        unpack<BITS, D>(at.k, at.keys(ring.stage), seen(0));
        named_sync(1, WORKERS);
        for (int n = 0; n < w.pages; n++) {
            wgmma_fence();
            times_keys<f16, D>(s, q, smem_addr(at.k));
            wgmma_commit();
            unpack<BITS, D>(at.v, at.values(ring.stage), seen(n));
            __syncwarp();
            if (lane == 0) mbar_arrive(at.empty(ring.stage));
            ring.next();
            wgmma_wait<0>();
            hold(s);
            if (some) {
                softmax<f16>(a, s, (w.page + n) * PAGE, query, clear, begun, top, sum, by);
                if (n > 0 && __any_sync(ALL_LANES, by[0] != 1 || by[1] != 1)) {
#pragma unroll
                    for (int j = 0; j < D / 2; j++) o[j] *= by[j % 4 / 2];
                }
                pack<f16>(prob, s);
            }
            named_sync(1, WORKERS); // all values are there, and nobody needs the keys
            wgmma_fence();
            times_values<f16, D>(o, prob, smem_addr(at.v), n > 0);
            wgmma_commit();
            if (n + 1 < w.pages) {
                mbar_wait(at.full(ring.stage), ring.phase);
                unpack<BITS, D>(at.k, at.keys(ring.stage), seen(n + 1));
            }
            wgmma_wait<0>();
            hold(o);
            named_sync(1, WORKERS);
        }
        leave<D>(a, w, each, query, o, top, sum);
    }
}

template <int BITS, int D> __device__ __forceinline__ void attend_blocks(const km_attend_args &a) {
    extern __shared__ __align__(1024) uint8_t shared[];
    Room<BITS, D> at(shared);
    Tiles *tiles = &at.side->tiles;
    int each = min(a.group, TILE);
    bool worker = threadIdx.x < WORKERS;
    if (worker) {
        find_tiles(a, TILE / each, tiles, reinterpret_cast<int *>(shared));
    } else if (threadIdx.x == WORKERS) {
        for (int i = 0; i < Room<BITS, D>::STAGES; i++)
            mbar_init(at.full(i), 1), mbar_init(at.empty(i), 4);
        mbar_init_fence();
    }
    __syncthreads();
    Walk w(tiles, a.kv_heads * a.parts);
    if (worker) {
        registers_up<224>();
        wait_for_front();
        consume<BITS, D>(a, at, w, each);
        finish<D>(a, w, each);
    } else {
        registers_down<32>();
        if (threadIdx.x / 32 == WORKERS / 32) {
            expect_pages(a, w, KM_ATTEND_AHEAD);
            wait_for_front();
            produce<BITS, D>(a, at, w);
        }
    }
}

#define BLOCKS(BITS, D)                                                                            \
    extern "C" __global__ void __launch_bounds__(KM_ATTEND_PAGES_THREADS, 2)                       \
        attend_blocks_##BITS##_##D(const __grid_constant__ km_attend_pages_args p) {               \
        attend_blocks<BITS, D>(p.a);                                                               \
    }
BLOCKS(8, 64)
BLOCKS(8, 128)
BLOCKS(4, 64)
BLOCKS(4, 128)
