/* Launches. A kernel record gets a number on first use; each device has a table of functions by
 * that number, so the usual launch is two loads and one driver call. */
#include "backend/cuda/graph.h"
#include "backend/cuda/lane.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int kernels; /* numbers given so far */

static int number(km_cuda_kernel *k) {
    pthread_mutex_lock(&lock);
    int id = atomic_load(&k->id);
    if (id == 0 && kernels + 1 < KM_CUDA_MAX_KERNELS) {
        id = ++kernels;
        atomic_store(&k->id, id);
    }
    pthread_mutex_unlock(&lock);
    return id;
}

static km_cu_function find(km_lane *lane, km_cuda_kernel *k) {
    km_cuda_dev *dev = km_cuda_dev_of(lane);
    int id = number(k);
    if (id == 0) {
        km_fail(lane->ctx, KM_ERR_GPU, "%s: more than %d kernels", lane->device->name,
                KM_CUDA_MAX_KERNELS - 1);
        return NULL;
    }
    if (km_cuda_ready(lane) != KM_OK) return NULL;
    km_cu_module module = km_cuda_module_get(dev, k->module, &lane->ctx->error);
    km_cu_function f = NULL;
    if (!module) return NULL;
    km_cu_result r = KM_CU(module_function, &f, module, k->name);
    if (r == KM_CU_OK && k->beside)
        KM_CU(func_set, f, KM_CU_FUNC_SHARED_CARVEOUT, 100); /* a wish */
    if (r == KM_CU_OK) {
        atomic_store_explicit(&dev->function[id], f, memory_order_release);
        return f;
    }
    if (r == KM_CU_NOT_FOUND)
        km_fail(lane->ctx, KM_ERR_GPU, "%s: no kernel %s in %s.cu", lane->device->name, k->name,
                k->module);
    else
        km_cuda_fail(lane, r, k->name);
    return NULL;
}

km_cu_function km_cuda_function(km_lane *lane, km_cuda_kernel *k) {
    int id = atomic_load_explicit(&k->id, memory_order_acquire);
    km_cu_function f = NULL;
    if (id) f = atomic_load_explicit(&km_cuda_dev_of(lane)->function[id], memory_order_acquire);
    return f ? f : find(lane, k);
}

/* Shared memory beyond 48 KiB must be asked for, once per kernel and size; what the kernel has of its
 * own counts too. */
static km_status allow_shared(km_lane *lane, km_cuda_kernel *k, km_cu_function f, unsigned shared) {
    km_cuda_dev *dev = km_cuda_dev_of(lane);
    int id = atomic_load_explicit(&k->id, memory_order_relaxed);
    if (shared <= 32 << 10 || atomic_load(&dev->shared[id]) >= shared) return KM_OK;
    km_cu_result r = KM_CU(func_set, f, KM_CU_FUNC_MAX_DYNAMIC_SHARED, (int)shared);
    if (r != KM_CU_OK) return km_cuda_fail(lane, r, k->name);
    atomic_store(&dev->shared[id], shared);
    return KM_OK;
}

static km_cu_function prepare(km_lane *lane, km_cuda_kernel *k, unsigned shared) {
    if (km_cuda_ready(lane) != KM_OK) return NULL;
    km_cu_function f = km_cuda_function(lane, k);
    return f && allow_shared(lane, k, f, shared) == KM_OK ? f : NULL;
}

km_status km_cuda_launch(km_lane *lane, km_cuda_kernel *k, km_dim grid, km_dim block,
                         unsigned shared, void **params) {
    static const km_launch_options none;
    return km_cuda_launch_with(lane, k, grid, block, shared, params, &none);
}

km_status km_cuda_launch_with(km_lane *lane, km_cuda_kernel *k, km_dim grid, km_dim block,
                              unsigned shared, void **params, const km_launch_options *options) {
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) return KM_OK;
    km_cu_stream stream = km_cuda_stream(lane);
    km_cu_function f = prepare(lane, k, shared);
    if (!f) return lane->ctx->error.code;
    km_cu_launch_attr attr[2] = {{0}};
    unsigned n = 0;
    if (options->cluster.x) {
        attr[n].id = KM_CU_LAUNCH_CLUSTER;
        attr[n].value.cluster[0] = options->cluster.x;
        attr[n].value.cluster[1] = options->cluster.y;
        attr[n++].value.cluster[2] = options->cluster.z;
    }
    /* Before Hopper kernels cannot overlap, and their wait is compiled to nothing. */
    if (k->waits && !options->alone && km_cuda_dev_of(lane)->cc >= 90 && km_cuda_api()->launch_ex) {
        attr[n].id = KM_CU_LAUNCH_PROGRAMMATIC;
        attr[n++].value.flag = 1;
    }
    km_cu_result r;
    if (n == 0) {
        r = KM_CU(launch, f, grid.x, grid.y, grid.z, block.x, block.y, block.z, shared, stream,
                  params, NULL);
    } else if (!km_cuda_api()->launch_ex) {
        return km_fail(lane->ctx, KM_ERR_GPU, "%s: %s needs a newer driver", lane->device->name,
                       k->name);
    } else {
        km_cu_launch_config config = {.grid = {grid.x, grid.y, grid.z},
                                      .block = {block.x, block.y, block.z},
                                      .shared = shared,
                                      .stream = stream,
                                      .attrs = attr,
                                      .n_attrs = n};
        r = KM_CU(launch_ex, &config, f, params, NULL);
    }
    if (r != KM_CU_OK) return km_cuda_fail(lane, r, k->name);
    lane->launches++;
    return KM_OK;
}

int km_cuda_occupancy(km_lane *lane, km_cuda_kernel *k, int threads, unsigned shared) {
    int blocks = 0;
    km_cu_function f = prepare(lane, k, shared);
    if (!f || km_cuda_api()->occupancy(&blocks, f, threads, shared) != KM_CU_OK || blocks < 1)
        return 1;
    return blocks;
}

/* ---- Memory that kernels use beside their operands ---- */

void *km_cuda_scratch(km_lane *lane, size_t bytes, size_t *cap) {
    bool elsewhere;
    void *p = lane->ctx->no_fallback ? km_mempool_get(&lane->pool, bytes, cap)
                                     : km_mempool_get_anywhere(&lane->pool, bytes, cap, &elsewhere);
    if (!p)
        km_fail(lane->ctx, KM_ERR_MEMORY, "out of memory on %s: %zu bytes of scratch",
                lane->device->name, bytes);
    return p;
}

void km_cuda_scratch_free(km_lane *lane, void *p, size_t cap) {
    if (p) km_mempool_put(&lane->pool, p, cap);
}

void km_cuda_shared_free(km_lane *lane) {
    km_cuda_queue *q = km_cuda_queue_of(lane);
    if (q->shared && q->shared_is_host)
        km_cuda_api()->host_free((void *)(uintptr_t)q->shared);
    else if (q->shared)
        km_cuda_api()->mem_free(q->shared);
    q->shared = 0;
    q->shared_is_host = false;
}

/* Counters and the draws word are one allocation, outside the pool: graphs hold their address. */
static km_status make_shared(km_lane *lane) {
    km_cuda_queue *q = km_cuda_queue_of(lane);
    size_t bytes = KM_CUDA_COUNTERS * sizeof(uint32_t) + 64;
    if (q->shared) return KM_OK;
    if (km_cuda_ready(lane) != KM_OK) return lane->ctx->error.code;
    km_cu_result r = KM_CU(mem_alloc, &q->shared, bytes);
    if (r == KM_CU_OUT_OF_MEMORY && !lane->ctx->no_fallback) {
        q->shared = (km_cu_ptr)(uintptr_t)lane->pool.spill_alloc(lane, bytes);
        q->shared_is_host = q->shared != 0;
    }
    if (!q->shared) return km_cuda_fail(lane, r, "allocating memory");
    km_cu_stream stream = km_cuda_stream(lane);
    r = KM_CU(set_bytes, q->shared, 0, bytes, stream);
    if (r == KM_CU_OK) return KM_OK;
    km_cuda_shared_free(lane);
    return km_cuda_fail(lane, r, "clearing memory");
}

uint32_t *km_cuda_counters(km_lane *lane) {
    if (make_shared(lane) != KM_OK) return NULL;
    return (uint32_t *)(uintptr_t)km_cuda_queue_of(lane)->shared;
}

uint64_t *km_cuda_draws_word(km_lane *lane) {
    uint32_t *counters = km_cuda_counters(lane);
    return counters ? (uint64_t *)(counters + KM_CUDA_COUNTERS) : NULL;
}
