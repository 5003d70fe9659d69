/* How many blocks share a wide row, and how many such clusters the GPU holds at once: all of them
 * are started together and walk over the rows, so one more would be a second round. */
#include "backend/cuda/walker.h"
#include "backend/cuda/kernels/rows/wide_args.h"
#include "backend/cuda/modules.h"
#include "base/util.h"

#define NARROW 65536 /* bytes of a row that a block's registers hold */

/* Built for this very chip only. */
static bool built(void) { return km_cuda_has_module("wide_rows"); }

/* Shared memory of a block: two parts of rows and those of the weights. */
static int64_t shared_for(int64_t bytes, int blocks, int weights) {
    return km_ceil_div(bytes / 16, blocks) * 16 * (2 + weights);
}

int km_cuda_wide_blocks(const km_lane *lane, int64_t n, size_t size, bool aligned, int weights) {
    const km_cuda_dev *dev = km_cuda_dev_of(lane);
    int64_t bytes = n * (int64_t)size;
    if (!aligned || bytes <= NARROW || dev->cc != 90 || !km_cuda_api()->launch_ex ||
        !km_cuda_api()->clusters || dev->shared_max < KM_WIDE_SHARED + 1024 || !built())
        return 0;
    for (int blocks = 1; blocks <= KM_WIDE_MOST; blocks *= 2)
        if (shared_for(bytes, blocks, weights) <= KM_WIDE_SHARED) return blocks;
    return 0;
}

/* Clusters of that many blocks, one block to a multiprocessor, that run at the same time: fewer than
 * multiprocessors / blocks, as a cluster stays within a group of them. The same for all kernels
 * here, and asked once. 0 with the error set. */
static int clusters_at_once(km_lane *lane, km_cuda_kernel *k, int blocks) {
    static atomic_int known[KM_CUDA_MAX_DEVICES][KM_WIDE_MOST + 1];
    km_cuda_dev *dev = km_cuda_dev_of(lane);
    int count = atomic_load_explicit(&known[dev->index][blocks], memory_order_relaxed);
    if (count) return count;
    if (blocks == 1) {
        count = dev->sms;
    } else {
        km_cuda_occupancy(lane, k, KM_WIDE_BLOCK, KM_WIDE_SHARED); /* allows it that much */
        km_cu_function f = km_cuda_function(lane, k);
        if (!f) return 0;
        km_cu_launch_attr attr = {.id = KM_CU_LAUNCH_CLUSTER};
        attr.value.cluster[0] = (unsigned)blocks;
        attr.value.cluster[1] = attr.value.cluster[2] = 1;
        km_cu_launch_config config = {.grid = {(unsigned)(dev->sms / blocks * blocks), 1, 1},
                                      .block = {KM_WIDE_BLOCK, 1, 1},
                                      .shared = KM_WIDE_SHARED,
                                      .attrs = &attr,
                                      .n_attrs = 1};
        km_cu_result r = KM_CU(clusters, &count, f, &config);
        if (r != KM_CU_OK) {
            km_cuda_fail(lane, r, k->name);
            return 0;
        }
        if (count > dev->sms / blocks) count = dev->sms / blocks;
        if (count < 1) count = 1;
    }
    atomic_store_explicit(&known[dev->index][blocks], count, memory_order_relaxed);
    return count;
}

km_status km_cuda_launch_wide(km_lane *lane, km_cuda_kernel *k, int blocks, int64_t rows, int64_t n,
                              size_t size, int weights, const void *args) {
    if (rows == 0) return KM_OK;
    int64_t clusters = clusters_at_once(lane, k, blocks);
    if (clusters == 0) return lane->ctx->error.code;
    if (clusters > rows) clusters = rows;
    void *params[] = {(void *)args};
    km_launch_options o = {.cluster = KM_DIM(blocks)};
    return km_cuda_launch_with(lane, k, KM_DIM(clusters * blocks), KM_DIM(KM_WIDE_BLOCK),
                               (unsigned)shared_for(n * (int64_t)size, blocks, weights), params,
                               &o);
}
