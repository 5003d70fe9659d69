// Many rows of x against weights of a few bits, on tensor cores: prompts and batches.
//
// Floor: 2 m n k operations at the rate of f16 products; the packed weights once for every 128 rows
// of x. No decoded copy of the weights exists but a tile of 128 x 64 in shared memory: a thread
// unpacks half a unit of one row into it while the products of the step before are under way (two
// blocks share a multiprocessor). x was rounded to f16 (quant_round.cu); weights are taken 2^8 times, so
// that scales stay in f16's normal range.
#include "backend/cuda/kernels/quant/quant_tile.cuh"

constexpr int STAGES = 3;
static_assert(STAGES * X_BYTES + 2 * W_BYTES == KM_TILE_SHARED, "as the host asks for");

// Grid: tiles of rows of x, tiles of weights.
template <class W, bool GATED>
__device__ __forceinline__ void tiles(const km_tile_args &a, W &weights, int row_in_tile) {
    extern __shared__ __align__(1024) uint8_t shared[];
    uint8_t *tiles_w = shared + STAGES * X_BYTES;
    uint32_t tiles_x = smem_addr(shared), at_w = smem_addr(tiles_w);
    int row0 = blockIdx.x * SIDE, half = threadIdx.x / SIDE;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int my_row = warp / 4 * 64, my_col = warp % 4 * 32;
    int steps = a.k / DEPTH;
    const f16 *x = (const f16 *)a.x;
    auto load_x = [&](int s) {
#pragma unroll
        for (int i = 0; i < SIDE * DEPTH / 8 / THREADS; i++) {
            int c = threadIdx.x + i * THREADS, row = c / 8, chunk = c % 8;
            bool valid = row0 + row < a.m;
            const f16 *from = x + (int64_t)(valid ? row0 + row : 0) * a.k + s * DEPTH + chunk * 8;
            cp_async_16(tiles_x + s % STAGES * X_BYTES + swizzle<8>(row, chunk), from, valid);
        }
    };
    float sum[4][4][4] = {};
    weights.fetch(0, half);
    wait_for_previous();
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < steps) load_x(s);
        cp_async_commit();
    }
    if (!weights.there) // rows beyond the edge are zeros in both tiles
        for (int i = 0; i < 4; i++)
            for (int t = 0; t < 2; t++)
                *reinterpret_cast<uint4 *>(tiles_w + t * W_BYTES +
                                           swizzle<8>(row_in_tile, half * 4 + i)) =
                    make_uint4(0, 0, 0, 0);
    weights.put(tiles_w, row_in_tile, 0, half);
    if (steps > 1) weights.fetch(1, half);
    for (int s = 0; s < steps; s++) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();
        if (s + STAGES - 1 < steps) load_x(s + STAGES - 1);
        cp_async_commit();
        uint32_t tile_x = tiles_x + s % STAGES * X_BYTES, tile_w = at_w + s % 2 * W_BYTES;
#pragma unroll
        for (int k = 0; k < DEPTH; k += 16) {
            uint32_t fx[4][4], fw[2][4];
            int i = lane / 8, within = lane % 8;
#pragma unroll
            for (int m = 0; m < 4; m++)
                ldmatrix_x4(fx[m], tile_x + swizzle<8>(my_row + 16 * m + i % 2 * 8 + within,
                                                       k / 8 + i / 2));
#pragma unroll
            for (int n = 0; n < 2; n++)
                ldmatrix_x4(fw[n], tile_w + swizzle<8>(my_col + 16 * n + i / 2 * 8 + within,
                                                       k / 8 + i % 2));
#pragma unroll
            for (int m = 0; m < 4; m++)
#pragma unroll
                for (int n = 0; n < 4; n++)
                    mma_m16n8k16<f16>(sum[m][n], fx[m], fw[n / 2][n % 2 * 2],
                                      fw[n / 2][n % 2 * 2 + 1]);
            if (k == 16 && s + 1 < steps) { // the next tile, between products
                weights.put(tiles_w + (s + 1) % 2 * W_BYTES, row_in_tile, s + 1, half);
                if (s + 2 < steps) weights.fetch(s + 2, half);
            }
        }
    }
    cp_async_wait<0>();

    int g = lane / 4, t = lane % 4;
    constexpr int PIECES = GATED ? 2 : 4;
#pragma unroll
    for (int m = 0; m < 4; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int row = row0 + my_row + 16 * m + 8 * h + g;
            if (row >= a.m) continue;
            float scale = a.scale[row];
            float *out = a.out + (int64_t)row * a.n;
#pragma unroll
            for (int p = 0; p < PIECES; p++) {
                int piece = GATED ? 2 * p : p;
                // gated: pieces of 8 gates and 8 ups take turns
                int col = GATED ? blockIdx.y * (SIDE / 2) + my_col / 2 + 8 * p + 2 * t
                                : blockIdx.y * SIDE + my_col + 8 * p + 2 * t;
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    if (col + e >= a.n) continue;
                    float v[1] = {sum[m][piece][2 * h + e] * scale};
                    if (a.bias) v[0] += a.bias[col + e];
                    gemm_act<float>(a.act, v);
                    if constexpr (GATED) v[0] *= sum[m][piece + 1][2 * h + e] * scale;
                    out[col + e] = v[0];
                }
            }
        }
}

EACH_TILE_KERNEL(tiles)
