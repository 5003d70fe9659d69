// km-arch: 90a
// A scan's products with Hopper's warpgroups, looked at in registers.
//
// Floor for (q, n, d): 2 q n d operations at 990 TFLOP/s (750 to 790 at an H200's power limit). From
// L2, 128 bytes of a row for every 64 columns and 128 queries: 128 operations to the byte.
//
// A block has 128 queries and takes tiles of 256 rows in turn. One thread has tiles copied, as far
// ahead as the ring has stages; two warpgroups own 64 queries each and go at their own pace, so that
// one multiplies while the other looks. With few columns the queries stay in shared memory.
#include "backend/cuda/kernels/vector/scan.cuh"
#include "backend/cuda/kernels/wgmma.cuh"

constexpr int Q_TILE = KM_SCAN_QUERIES * 128, ROW_TILE = KM_SCAN_ROWS * 128;

template <int STAGES, bool RESIDENT, bool SAMPLE> KM_DEVICE void multiply(const km_scan_args &p) {
    extern __shared__ uint8_t shared[];
    uint8_t *aligned = shared + (1024 - smem_addr(shared) % 1024) % 1024;
    int slices = p.slices, q_tiles = RESIDENT ? slices : STAGES;
    uint32_t tiles_r = smem_addr(aligned), tiles_q = tiles_r + STAGES * ROW_TILE;
    uint32_t full = tiles_q + q_tiles * Q_TILE, empty = full + STAGES * 8,
             q_full = empty + STAGES * 8;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            mbar_init(full + 8 * s, 1);
            mbar_init(empty + 8 * s, 8); // the consumers' warps
        }
        mbar_init(q_full, 1);
        mbar_init_fence();
    }
    __syncthreads();
    wait_for_previous();

    Ring<STAGES> ring;
    const char *q = (const char *)p.query_tiles + (int64_t)blockIdx.y * slices * Q_TILE;
    if (warp < 4) {
        registers_down<40>();
        if (threadIdx.x != 0) return;
        if (RESIDENT) {
            mbar_expect(q_full, slices * Q_TILE);
            for (int s = 0; s < slices; s++)
                bulk_load(tiles_q + s * Q_TILE, q + s * Q_TILE, Q_TILE, q_full);
        }
        for (int t = blockIdx.x; t < p.tiles; t += gridDim.x) {
            const char *r = (const char *)p.row_tiles + (int64_t)t * slices * ROW_TILE;
            for (int s = 0; s < slices; s++, r += ROW_TILE, ring.next()) {
                uint32_t bar = full + 8 * ring.stage;
                mbar_wait(empty + 8 * ring.stage, ring.phase ^ 1);
                mbar_expect(bar, ROW_TILE + (RESIDENT ? 0 : Q_TILE));
                bulk_load(tiles_r + ring.stage * ROW_TILE, r, ROW_TILE, bar);
                if (!RESIDENT)
                    bulk_load(tiles_q + ring.stage * Q_TILE, q + (int64_t)s * Q_TILE, Q_TILE, bar);
            }
        }
    } else {
        registers_up<232>();
        int group = warp / 4 - 1; // which 64 queries
        float d[128];
        ScanRows own;
        own.load(p, blockIdx.y * KM_SCAN_QUERIES + group * 64 + warp % 4 * 16 + lane / 4);
        if (RESIDENT) mbar_wait(q_full, 0);
        for (int t = blockIdx.x; t < p.tiles; t += gridDim.x) {
            int before = 0; // the stage that the products still under way read
            for (int s = 0; s < slices; s++, ring.next()) {
                mbar_wait(full + 8 * ring.stage, ring.phase);
                uint32_t a = tiles_q + (RESIDENT ? s : ring.stage) * Q_TILE + group * 64 * 128;
                uint32_t b = tiles_r + ring.stage * ROW_TILE;
                wgmma_fence();
#pragma unroll
                for (int k = 0; k < 4; k++)
                    wgmma_ss<f16, 256, 0, 0>(d, wgmma_desc_k(a + k * 32), wgmma_desc_k(b + k * 32),
                                             s > 0 || k > 0);
                wgmma_commit();
                wgmma_wait<1>();
                if (s > 0 && lane == 0) mbar_arrive(empty + 8 * before);
                before = ring.stage;
            }
            wgmma_wait<0>();
            hold(d);
            if (lane == 0) mbar_arrive(empty + 8 * before);
            look_at<32, SAMPLE>(p, d, lane, t * KM_SCAN_ROWS, own);
        }
    }
}

#define SCAN(name, stages, resident)                                                               \
    KM_KERNEL __launch_bounds__(KM_SCAN_THREADS, 1)                                                \
        scan_hopper_##name(const __grid_constant__ km_scan_args p) {                               \
        multiply<stages, resident, false>(p);                                                      \
    }                                                                                              \
    KM_KERNEL __launch_bounds__(KM_SCAN_THREADS, 1)                                                \
        scan_hopper_##name##_sample(const __grid_constant__ km_scan_args p) {                      \
        multiply<stages, resident, true>(p);                                                       \
    }
SCAN(6, KM_SCAN_STAGES(6), true)
SCAN(8, KM_SCAN_STAGES(8), true)
SCAN(many, KM_SCAN_STAGES(9), false)
