// km-arch: 90a
// Nearest centres with Hopper's warpgroup products, searched in registers.
//
// Floor for (n, d, k): 2 n d k operations at 990 TFLOP/s (750 to 790 at an H200's power limit); from L2
// (128 + 256) * 128 bytes for each tile of 128 rows, 256 centres and 64 columns.
// The search itself is six instructions at half rate for each product of a row and a centre: 1536
// cycles of a warpgroup for 64 x 256 of them, where the products take 8 d cycles.
//
// One block to a multiprocessor takes blocks of 128 rows in turn. One thread has tiles copied, as far
// ahead as the ring has stages; two warpgroups own 64 rows each and go at their own pace, so that one
// multiplies while the other searches. With few columns the rows of x stay in shared memory.
#include "backend/cuda/kernels/vector/nearest.cuh"
#include "backend/cuda/kernels/wgmma.cuh"

constexpr int X_TILE = KM_NEAREST_ROWS * 128, C_TILE = KM_NEAREST_CENTRES * 128;

template <int STAGES, bool RESIDENT> KM_DEVICE void search(const km_nearest_args &p) {
    extern __shared__ uint8_t shared[];
    __shared__ float by_warp[KM_NEAREST_THREADS / 32];
    uint8_t *aligned = shared + (1024 - smem_addr(shared) % 1024) % 1024;
    int slices = p.slices, x_tiles = RESIDENT ? 2 * slices : STAGES;
    uint32_t tiles_c = smem_addr(aligned), tiles_x = tiles_c + STAGES * C_TILE;
    uint32_t full = tiles_x + x_tiles * X_TILE, empty = full + STAGES * 8;
    uint32_t x_full = empty + STAGES * 8, x_empty = x_full + 16;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            mbar_init(full + 8 * s, 1);
            mbar_init(empty + 8 * s, 8); // the consumers' warps
        }
        for (int s = 0; s < 2; s++) {
            mbar_init(x_full + 8 * s, 1);
            mbar_init(x_empty + 8 * s, 8);
        }
        mbar_init_fence();
    }
    __syncthreads();
    wait_for_previous();
    float largest = largest_centre(p, by_warp);

    Ring<STAGES> ring;
    Ring<2> rows;
    if (warp < 4) {
        registers_down<40>();
        if (threadIdx.x != 0) return;
        for (int b = blockIdx.x; b < p.row_blocks; b += gridDim.x) {
            const char *x = (const char *)p.x_tiles + (int64_t)b * slices * X_TILE;
            const char *c = (const char *)p.c_tiles;
            if (RESIDENT) {
                uint32_t bar = x_full + 8 * rows.stage;
                mbar_wait(x_empty + 8 * rows.stage, rows.phase ^ 1);
                mbar_expect(bar, slices * X_TILE);
                bulk_load(tiles_x + rows.stage * slices * X_TILE, x, slices * X_TILE, bar);
                rows.next();
            }
            for (int t = 0; t < p.centre_tiles; t++)
                for (int s = 0; s < slices; s++, c += C_TILE, ring.next()) {
                    uint32_t bar = full + 8 * ring.stage;
                    mbar_wait(empty + 8 * ring.stage, ring.phase ^ 1);
                    mbar_expect(bar, C_TILE + (RESIDENT ? 0 : X_TILE));
                    bulk_load(tiles_c + ring.stage * C_TILE, c, C_TILE, bar);
                    if (!RESIDENT)
                        bulk_load(tiles_x + ring.stage * X_TILE, x + (int64_t)s * X_TILE, X_TILE,
                                  bar);
                }
        }
    } else {
        registers_up<232>();
        int group = warp / 4 - 1; // which 64 rows
        float scale = nearest_scale(p.info);
        float d[128];
        for (int b = blockIdx.x; b < p.row_blocks; b += gridDim.x) {
            RowBest best[2];
            best[0].clear();
            best[1].clear();
            if (RESIDENT) mbar_wait(x_full + 8 * rows.stage, rows.phase);
            uint32_t own_x = tiles_x + rows.stage * slices * X_TILE + group * 64 * 128;
            for (int t = 0; t < p.centre_tiles; t++) {
                int before = 0; // the stage that the products still under way read
                for (int s = 0; s < slices; s++, ring.next()) {
                    mbar_wait(full + 8 * ring.stage, ring.phase);
                    uint32_t x = RESIDENT ? own_x + s * X_TILE
                                          : tiles_x + ring.stage * X_TILE + group * 64 * 128;
                    uint32_t c = tiles_c + ring.stage * C_TILE;
                    wgmma_fence();
#pragma unroll
                    for (int k = 0; k < 4; k++)
                        wgmma_ss<f16, 256, 0, 0>(d, wgmma_desc_k(x + k * 32),
                                                 wgmma_desc_k(c + k * 32), s > 0 || k > 0);
                    wgmma_commit();
                    wgmma_wait<1>();
                    if (s > 0 && lane == 0) mbar_arrive(empty + 8 * before);
                    before = ring.stage;
                }
                wgmma_wait<0>();
                hold(d);
                if (lane == 0) mbar_arrive(empty + 8 * before);
                search_tile<32>(d, p.c_norm, lane, t * KM_NEAREST_CENTRES, best);
            }
            if (RESIDENT) {
                if (lane == 0) mbar_arrive(x_empty + 8 * rows.stage);
                rows.next();
            }
#pragma unroll
            for (int h = 0; h < 2; h++) {
                best[h].join();
                int64_t row =
                    (int64_t)b * KM_NEAREST_ROWS + group * 64 + warp % 4 * 16 + h * 8 + lane / 4;
                if (lane % 4 == 0 && row < p.n) settle_row(p, best[h], row, largest, scale);
            }
        }
    }
}

#define SEARCH(name, stages, resident)                                                             \
    KM_KERNEL __launch_bounds__(KM_NEAREST_THREADS, 1)                                             \
        nearest_hopper_##name(const __grid_constant__ km_nearest_args p) {                         \
        search<stages, resident>(p);                                                               \
    }
SEARCH(2, KM_NEAREST_STAGES(2), true)
SEARCH(4, KM_NEAREST_STAGES(4), true)
SEARCH(many, KM_NEAREST_STAGES(5), false)
