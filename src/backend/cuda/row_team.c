/* The smallest team that can hold a row in its registers: a warp, a block, a cluster of blocks
 * (Hopper and later); longer rows are streamed. */
#include "backend/cuda/row_team.h"
#include "base/util.h"

bool km_cuda_rows_aligned(km_tensor *const *t, int count, int64_t n, size_t size) {
    bool ok = (size_t)n * size % 16 == 0;
    for (int i = 0; i < count; i++) ok &= !t[i] || km_cuda_aligned(km_tensor_ptr(t[i]), 16);
    return ok;
}

/* Threads, in whole warps, that hold n packs of a row, `each` to a thread. */
static int threads_for(int64_t packs, int each) {
    int64_t t = km_ceil_div(km_ceil_div(packs, each), 32) * 32;
    return (int)(t < 32 ? 32 : t);
}

km_status km_cuda_launch_rows(km_lane *lane, km_row_kernels k, int slot, size_t size, int64_t rows,
                              int n, bool aligned, const void *args) {
    int width = aligned ? (int)(16 / size) : 1;
    int64_t packs = km_ceil_div(n, width);
    if (rows == 0 || n == 0) return KM_OK;
    if (packs <= 32 * KM_WARP_PACKS)
        return km_cuda_launch1(lane, &k[slot][KM_TEAM_WARP][aligned],
                               KM_DIM(km_ceil_div(rows, KM_WARP_ROWS)), KM_DIM(32 * KM_WARP_ROWS),
                               0, args);
    if (packs <= 1024 * KM_BLOCK_PACKS)
        return km_cuda_launch1(lane, &k[slot][KM_TEAM_BLOCK][aligned], KM_DIM(rows),
                               KM_DIM(threads_for(packs, KM_BLOCK_PACKS)), 0, args);
    if (km_cuda_dev_of(lane)->cc >= 90 && packs <= 512 * KM_CLUSTER_PACKS * KM_CLUSTER_MOST &&
        rows < INT32_MAX / KM_CLUSTER_MOST) {
        /* The fewest blocks that hold a row with 256 threads each. */
        int blocks = 2;
        while (blocks < KM_CLUSTER_MOST && packs > (int64_t)blocks * 256 * KM_CLUSTER_PACKS)
            blocks *= 2;
        int threads = threads_for(km_ceil_div(packs, blocks), KM_CLUSTER_PACKS);
        void *params[] = {(void *)args};
        km_launch_options o = {.cluster = KM_DIM(blocks)};
        return km_cuda_launch_with(lane, &k[slot][KM_TEAM_CLUSTER][aligned], KM_DIM(rows * blocks),
                                   KM_DIM(threads), 0, params, &o);
    }
    return km_cuda_launch1(lane, &k[slot][KM_TEAM_STREAM][aligned], KM_DIM(rows), KM_DIM(1024), 0,
                           args);
}
