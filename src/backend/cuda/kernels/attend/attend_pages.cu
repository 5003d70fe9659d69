// km-arch: 90a
// km-nvcc: 12.1
// attend_pages (attend_pages.cuh) over caches of f16 and bf16: the copy engine lays pages out as the
// products want them, and nobody touches them in between.
#include "backend/cuda/kernels/attend/attend_pages.cuh"

template <int D> struct Room {
    static constexpr int STAGES = KM_ATTEND_STAGES_16(D), TILE_BYTES = PAGE * D * 2;
    uint32_t base;
    Side *side;
    __device__ __forceinline__ Room(uint8_t *shared) {
        base = smem_addr(shared);
        side = reinterpret_cast<Side *>(shared + STAGES * 2 * TILE_BYTES);
    }
    __device__ __forceinline__ uint32_t k(int i) { return base + i * 2 * TILE_BYTES; }
    __device__ __forceinline__ uint32_t v(int i) { return k(i) + TILE_BYTES; }
    __device__ __forceinline__ uint32_t bar(int kind, int i) {
        return smem_addr(&side->bars[kind * STAGES + i]);
    }
    __device__ __forceinline__ uint32_t k_full(int i) { return bar(0, i); }
    __device__ __forceinline__ uint32_t v_full(int i) { return bar(1, i); }
    __device__ __forceinline__ uint32_t k_empty(int i) { return bar(2, i); }
    __device__ __forceinline__ uint32_t v_empty(int i) { return bar(3, i); }
};

template <int D>
__device__ __forceinline__ void produce(const km_attend_pages_args &p, Room<D> at, Walk w) {
    const km_attend_args &a = p.a;
    Ring<Room<D>::STAGES> ring;
    bool one = elected();
    auto fetch = [&](uint32_t to, const km_tensor_map *map, uint32_t bar, int row) {
        mbar_expect(bar, Room<D>::TILE_BYTES);
#pragma unroll
        for (int panel = 0; panel < D / 64; panel++)
            tma_load_2d(to + panel * PANEL, map, bar, panel * 64, row);
    };
    while (w.next()) {
        int key_head = w.head / a.parts;
        each_page(a, w, w.pages, [&](int n, int id) {
            int row = (id * a.kv_heads + key_head) * PAGE;
            if (one) {
                mbar_wait(at.k_empty(ring.stage), ring.phase ^ 1);
                fetch(at.k(ring.stage), &p.k, at.k_full(ring.stage), row);
                mbar_wait(at.v_empty(ring.stage), ring.phase ^ 1);
                fetch(at.v(ring.stage), &p.v, at.v_full(ring.stage), row);
            }
            __syncwarp();
            ring.next();
        });
    }
}

template <class T, int D>
__device__ __forceinline__ void consume(const km_attend_args &a, Room<D> at, Walk w, int each) {
    int lane = threadIdx.x % 32, m = threadIdx.x / 32 * 16 + lane / 4;
    Ring<Room<D>::STAGES> ring;
    while (w.next()) {
        Query query[2] = {query_of(a, w, each, m), query_of(a, w, each, m + 8)};
        uint32_t q[D / 16][4], prob[4][4] = {};
        load_queries<D>(a, w, each, query, q);
        bool some = __any_sync(ALL_LANES, query[0].valid || query[1].valid);
        // Keys up to `clear`, from `begun` on, are seen by all rows of the warp.
        int clear = __reduce_min_sync(ALL_LANES, min(query[0].at, query[1].at));
        int begun = __reduce_max_sync(ALL_LANES, max(query[0].begin, query[1].begin));
        float s[32], o[D / 2], top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, by[2] = {1, 1};
        auto look = [&](int n) {
            if (some) softmax<T>(a, s, (w.page + n) * PAGE, query, clear, begun, top, sum, by);
        };
        mbar_wait(at.k_full(ring.stage), ring.phase);
        wgmma_fence();
        times_keys<T, D>(s, q, at.k(ring.stage));
        wgmma_commit();
        wgmma_wait<0>();
        hold(s);
        if (lane == 0) mbar_arrive(at.k_empty(ring.stage));
        look(0);
        if (some) pack<T>(prob, s);
        for (int n = 1; n < w.pages; n++) {
            Ring<Room<D>::STAGES> before = ring;
            ring.next();
            mbar_wait(at.k_full(ring.stage), ring.phase);
            wgmma_fence();
            times_keys<T, D>(s, q, at.k(ring.stage));
            wgmma_commit();
            mbar_wait(at.v_full(before.stage), before.phase);
            wgmma_fence();
            times_values<T, D>(o, prob, at.v(before.stage), n > 1);
            wgmma_commit();
            wgmma_wait<1>();
            hold(s);
            if (lane == 0) mbar_arrive(at.k_empty(ring.stage));
            look(n);
            wgmma_wait<0>();
            hold(o);
            if (lane == 0) mbar_arrive(at.v_empty(before.stage));
            if (__any_sync(ALL_LANES, by[0] != 1 || by[1] != 1)) { // seldom, after some pages
#pragma unroll
                for (int j = 0; j < D / 2; j++) o[j] *= by[j % 4 / 2];
            }
            if (some) pack<T>(prob, s);
        }
        mbar_wait(at.v_full(ring.stage), ring.phase);
        if (w.last) clear_values<D>(at.v(ring.stage), keys_of_last(a, w));
        wgmma_fence();
        times_values<T, D>(o, prob, at.v(ring.stage), w.pages > 1);
        wgmma_commit();
        wgmma_wait<0>();
        hold(o);
        if (lane == 0) mbar_arrive(at.v_empty(ring.stage));
        ring.next();
        leave<D>(a, w, each, query, o, top, sum);
    }
}

template <class T, int D>
__device__ __forceinline__ void attend_pages(const km_attend_pages_args &p) {
    extern __shared__ __align__(1024) uint8_t shared[];
    const km_attend_args &a = p.a;
    Room<D> at(shared);
    Tiles *tiles = &at.side->tiles;
    int each = min(a.group, TILE);
    bool worker = threadIdx.x < WORKERS;
    if (worker) {
        find_tiles(a, TILE / each, tiles, reinterpret_cast<int *>(shared));
        fence_async_proxy(); // the copy engine writes here next
    } else if (threadIdx.x == WORKERS) {
        for (int i = 0; i < Room<D>::STAGES; i++) {
            mbar_init(at.k_full(i), 1), mbar_init(at.v_full(i), 1);
            mbar_init(at.k_empty(i), 4), mbar_init(at.v_empty(i), 4);
        }
        mbar_init_fence();
    }
    __syncthreads();
    Walk w(tiles, a.kv_heads * a.parts);
    if (worker) {
        registers_up<224>();
        wait_for_front();
        consume<T, D>(a, at, w, each);
        finish<D>(a, w, each);
    } else {
        registers_down<32>();
        if (threadIdx.x / 32 == WORKERS / 32) {
            expect_pages(a, w, KM_ATTEND_AHEAD);
            wait_for_front();
            produce<D>(p, at, w);
        }
    }
}

#define PAGES(T, NAME, D)                                                                          \
    extern "C" __global__ void __launch_bounds__(KM_ATTEND_PAGES_THREADS, 2)                       \
        attend_pages_##NAME##_##D(const __grid_constant__ km_attend_pages_args p) {                \
        attend_pages<T, D>(p);                                                                     \
    }
PAGES(f16, f16, 64)
PAGES(f16, f16, 128)
PAGES(bf16, bf16, 64)
PAGES(bf16, bf16, 128)
