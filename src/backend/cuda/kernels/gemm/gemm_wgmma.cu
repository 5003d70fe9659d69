// Matrix products of f16 and bf16 on Hopper, sums in f32. km-arch: 90a
//
// Floor for (n, n, n): 2 n^3 operations at 990 TFLOP/s (one H200; 750 to 790 of them at its power
// limit), 6 n^2 bytes at 4.8 TB/s. n = 4096: 0.17 ms; cuBLAS takes 0.206.
//
// One block to a multiprocessor, for as many tiles of 128 x BN as fall to it. One warp asks the
// copy engine for tiles 64 deep, as many ahead as the ring has stages; two warpgroups own 64 rows
// of the tile each and multiply what has arrived. While they write one tile of out, the first
// stages of the next are on their way. Matrices are read as they lie: K-major or MN-major.
#include "backend/cuda/kernels/gemm/gemm_common.cuh"
#include "backend/cuda/kernels/wgmma.cuh"

constexpr int DEPTH = 64;
constexpr int PANEL = 64 * 128; // bytes of 64 rows of 64 elements

// The part of a tile that one operand fills: `rows` along m or n. K-major: one box of 64 columns
// along k. MN-major: a box of 64 x 64 for each 64 along m or n.
template <int ROWS, bool ALONG_K>
KM_DEVICE void load_operand(uint32_t dst, const km_tensor_map *map, uint32_t bar, int x, int k,
                            int batch) {
    if constexpr (ALONG_K) {
        tma_load_3d(dst, map, bar, k, x, batch);
    } else {
#pragma unroll
        for (int i = 0; i < ROWS / 64; i++)
            tma_load_3d(dst + i * PANEL, map, bar, x + i * 64, k, batch);
    }
}

template <class T, int BN, bool TURN_A, bool TURN_B>
KM_DEVICE void wgmma_gemm(const km_tensor_map *map_a, const km_tensor_map *map_b,
                          const km_gemm_args &g) {
    constexpr int STAGES = KM_WGMMA_STAGES(BN), BYTES_A = 128 * DEPTH * 2, BYTES_B = BN * DEPTH * 2;
    extern __shared__ uint8_t shared[];
    uint8_t *aligned = shared + (1024 - smem_addr(shared) % 1024) % 1024;
    uint32_t tiles_a = smem_addr(aligned), tiles_b = tiles_a + STAGES * BYTES_A;
    float *strips = reinterpret_cast<float *>(aligned + STAGES * (BYTES_A + BYTES_B));
    uint32_t full = smem_addr(strips) + KM_WGMMA_STRIP_BYTES, empty = full + STAGES * 8;

    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        tma_prefetch_map(map_a);
        tma_prefetch_map(map_b);
        for (int s = 0; s < STAGES; s++) {
            mbar_init(full + 8 * s, 1);
            mbar_init(empty + 8 * s, 8); // the consumers' warps
        }
        mbar_init_fence();
    }
    __syncthreads();
    wait_for_previous();

    int tiles = g.tiles_m * g.tiles_n * g.batch, count = (g.k + DEPTH - 1) / DEPTH;
    Ring<STAGES> ring;
    if (warp < 4) {
        registers_down<40>();
        if (threadIdx.x != 0) return;
        for (int t = blockIdx.x; t < tiles; t += gridDim.x) {
            gemm_tile at = gemm_tile_of(g, t);
            int in_a = g.batch_a ? at.batch : 0, in_b = g.batch_b ? at.batch : 0;
            for (int i = 0; i < count; i++, ring.next()) {
                uint32_t bar = full + 8 * ring.stage;
                mbar_wait(empty + 8 * ring.stage, ring.phase ^ 1);
                mbar_expect(bar, BYTES_A + BYTES_B);
                load_operand<128, !TURN_A>(tiles_a + ring.stage * BYTES_A, map_a, bar, at.m * 128,
                                           i * DEPTH, in_a);
                load_operand<BN, TURN_B>(tiles_b + ring.stage * BYTES_B, map_b, bar, at.n * BN,
                                         i * DEPTH, in_b);
            }
        }
    } else {
        registers_up<232>();
        int group = warp / 4 - 1; // which 64 rows
        float *strip = strips + (warp - 4) * (16 * 64);
        float d[BN / 2];
        for (int t = blockIdx.x; t < tiles; t += gridDim.x) {
            gemm_tile at = gemm_tile_of(g, t);
            int before = 0; // the stage that the products still under way read
            for (int i = 0; i < count; i++, ring.next()) {
                mbar_wait(full + 8 * ring.stage, ring.phase);
                uint32_t tile_a = tiles_a + ring.stage * BYTES_A + group * PANEL;
                uint32_t tile_b = tiles_b + ring.stage * BYTES_B;
                wgmma_fence();
#pragma unroll
                for (int k = 0; k < DEPTH / 16; k++) {
                    uint64_t a = TURN_A ? wgmma_desc_mn(tile_a + k * 2048, PANEL)
                                        : wgmma_desc_k(tile_a + k * 32);
                    uint64_t b = TURN_B ? wgmma_desc_k(tile_b + k * 32)
                                        : wgmma_desc_mn(tile_b + k * 2048, PANEL);
                    wgmma_ss<T, BN, TURN_A, !TURN_B>(d, a, b, i > 0 || k > 0);
                }
                wgmma_commit();
                wgmma_wait<1>();
                if (i > 0 && lane == 0) mbar_arrive(empty + 8 * before);
                before = ring.stage;
            }
            wgmma_wait<0>();
            hold(d);
            if (lane == 0) mbar_arrive(empty + 8 * before);

            int row = at.m * 128 + group * 64 + warp % 4 * 16;
            int64_t base = at.batch * g.batch_o;
#pragma unroll
            for (int p = 0; p < BN / 64; p++) {
                __syncwarp();
#pragma unroll
                for (int j = 0; j < 8; j++)
                    strip_put<64>(strip, lane, j, d[32 * p + 4 * j], d[32 * p + 4 * j + 1],
                                  d[32 * p + 4 * j + 2], d[32 * p + 4 * j + 3]);
                __syncwarp();
                strip_finish<T, 64>(g, strip, base, row, at.n * BN + 64 * p, lane);
            }
        }
    }
}

// gemm_wgmma_bf16_nt_256: a as it is, b turned, tiles of 128 x 256.
#define WGMMA_GEMM(type, tname, name, turn_a, turn_b, bn)                                          \
    KM_KERNEL __launch_bounds__(KM_WGMMA_THREADS, 1) gemm_wgmma_##tname##_##name##_##bn(           \
        const __grid_constant__ km_tensor_map map_a, const __grid_constant__ km_tensor_map map_b,  \
        const __grid_constant__ km_gemm_args g) {                                                  \
        wgmma_gemm<type, bn, turn_a, turn_b>(&map_a, &map_b, g);                                   \
    }
#define WGMMA_EACH(type, tname, bn)                                                                \
    WGMMA_GEMM(type, tname, nn, false, false, bn)                                                  \
    WGMMA_GEMM(type, tname, nt, false, true, bn)                                                   \
    WGMMA_GEMM(type, tname, tn, true, false, bn)                                                   \
    WGMMA_GEMM(type, tname, tt, true, true, bn)
WGMMA_EACH(f16, f16, 128)
WGMMA_EACH(f16, f16, 256)
WGMMA_EACH(bf16, bf16, 128)
WGMMA_EACH(bf16, bf16, 256)
