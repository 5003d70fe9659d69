/* Pieces that the Hopper attention kernels share: how blocks share the work, tiles by the copy
 * engine, and the two kinds of product. A kernel is a producer warp, which feeds tiles, and two
 * consumer warpgroups of 64 rows each, which never wait for each other.
 *
 * A tile of R rows is D / 64 panels of R x 64 elements (wgmma.cuh), each filled by boxes of 64
 * rows. */
#ifndef KM_CUDA_ATTENTION_HOPPER_CUH
#define KM_CUDA_ATTENTION_HOPPER_CUH

#include "backend/cuda/kernels/attention/attention_params.h"
#include "backend/cuda/kernels/wgmma.cuh"

#define KM_LOG2E 1.4426950408889634f
#define KM_BOX_BYTES 8192 /* 64 x 64 elements */

/* The blocks of rows that this thread block works on, one by one. Under a causal mask block i and
 * block n - 1 - i of a head are one unit, so that all units cost the same. */
struct attention_schedule {
    int unit, units, per_head, blocks, heads, causal, second;
    int block, h, b; /* the current one */

    KM_DEVICE attention_schedule(int rows, int heads_, int batch, int causal_) {
        blocks = (rows + KM_ATTENTION_HOPPER_ROWS - 1) / KM_ATTENTION_HOPPER_ROWS;
        heads = heads_;
        causal = causal_;
        per_head = causal ? (blocks + 1) / 2 : blocks;
        units = per_head * heads * batch;
        unit = blockIdx.x;
        second = 0;
    }

    /* Moves to the next block of rows; false when there is none. */
    KM_DEVICE bool next() {
        if (unit >= units) return false;
        int pair = unit % per_head, head = unit / per_head;
        block = second ? blocks - 1 - pair : pair;
        h = head % heads;
        b = head / heads;
        second = causal && !second && 2 * pair + 1 != blocks;
        if (!second) unit += gridDim.x;
        return true;
    }
};

/* Tiles of `cols` keys that some query of the block sees. */
KM_DEVICE int key_tiles(const km_attention_args &a, int block, int cols) {
    int keys = a.tk;
    if (a.causal) keys = min(keys, (block + 1) * KM_ATTENTION_HOPPER_ROWS + a.tk - a.tq);
    return keys > 0 ? (keys + cols - 1) / cols : 0;
}

/* A compile-time flag for generic lambdas: a loop's first round is compiled apart. No product may
 * be in flight where a loop closes, or ptxas waits for each one by itself. */
template <bool B> struct flag { static constexpr bool value = B; };

/* Rows [row, row + 64 n) of head (h, b), all D columns, as a tile of ROWS rows at dst. */
template <int D, int ROWS>
KM_DEVICE void tile_fetch(uint32_t dst, const km_tensor_map *map, uint32_t bar, int row, int h,
                          int b) {
#pragma unroll
    for (int panel = 0; panel < D / 64; panel++)
#pragma unroll
        for (int r = 0; r < ROWS; r += 64)
            tma_load_4d(dst + panel * ROWS * 128 + r * 128, map, bar, panel * 64, row + r, h, b);
}

/* s (64 x N) = a b^T: a is a 64 x D tile, b an N x D tile. Issued, not waited for. */
template <typename T, int N, int D>
KM_DEVICE void product_abt(float (&s)[N / 2], uint32_t a, uint32_t b) {
    uint64_t da = wgmma_desc_k(a), db = wgmma_desc_k(b);
#pragma unroll
    for (int k = 0; k < D / 16; k++) { /* 32 bytes a step within a panel, in units of 16 */
        uint64_t at = k % 4 * 2;
        wgmma_ss<T, N, 0, 0>(s, da + at + k / 4 * (64 * 128 / 16), db + at + k / 4 * (N * 128 / 16),
                             k > 0);
    }
}

/* acc (64 x D) += p b: p (64 x N) in registers, b an N x D tile. Issued, not waited for. */
template <typename T, int N, int D>
KM_DEVICE void product_pb(float (&acc)[D / 2], const uint32_t (&p)[N / 16][4], uint32_t b,
                          int accumulate) {
    uint64_t db = wgmma_desc_mn(b, N * 128);
#pragma unroll
    for (int k = 0; k < N / 16; k++)
        wgmma_rs<T, D, 1>(acc, p[k], db + k * (2048 / 16), k > 0 ? 1 : accumulate);
}

/* Rounds a 64 x N accumulator to T, as the a operand of the next product. */
template <typename T, int N>
KM_DEVICE void pack_tile(uint32_t (&p)[N / 16][4], const float (&s)[N / 2]) {
#pragma unroll
    for (int k = 0; k < N / 16; k++)
#pragma unroll
        for (int e = 0; e < 4; e++) p[k][e] = pack2<T>(s[8 * k + 2 * e], s[8 * k + 2 * e + 1]);
}

/* Writes a warpgroup's accumulators, times a factor for each of the thread's two rows, to the
 * 64 x D tile at dst. */
template <typename T, int D>
KM_DEVICE void tile_put(uint32_t dst, const float (&acc)[D / 2], float factor0, float factor1) {
    int lane = threadIdx.x % 32, row = threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
    for (int j = 0; j < D / 16; j++) { /* 16 columns: matrices (rows 0-7, 8-15) x (columns) */
        int chunk = 2 * j % 8 + lane / 16;
        uint32_t at = dst + 2 * j / 8 * KM_BOX_BYTES + row * 128 + ((chunk ^ (row & 7)) << 4);
        const float *a = acc + 8 * j;
        stmatrix_x4(
            at, pack2<T>(a[0] * factor0, a[1] * factor0), pack2<T>(a[2] * factor1, a[3] * factor1),
            pack2<T>(a[4] * factor0, a[5] * factor0), pack2<T>(a[6] * factor1, a[7] * factor1));
    }
}

/* One thread: stores the 64 x D tile at src to rows from `row` of head (h, b). */
template <int D>
KM_DEVICE void tile_send(const km_tensor_map *map, uint32_t src, int row, int h, int b) {
#pragma unroll
    for (int panel = 0; panel < D / 64; panel++)
        tma_store_4d(map, src + panel * KM_BOX_BYTES, panel * 64, row, h, b);
}

#endif
