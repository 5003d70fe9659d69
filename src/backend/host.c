/* The two devices whose memory is ordinary memory. They differ in their kernels alone. */
#include "backend/host.h"
#include "base/alloc.h"
#include <string.h>

static void *host_alloc(void *owner, size_t bytes) {
    (void)owner;
    return km_alloc_aligned(bytes);
}

static void host_free(void *owner, void *p, size_t bytes) {
    (void)owner;
    km_free_aligned(p, bytes);
}

static km_status host_open(km_lane *lane, km_error *err) {
    km_host_queue *q = km_calloc(1, sizeof *q);
    if (!q) return km_error_set(err, KM_ERR_MEMORY, "%s: out of memory", lane->device->name);
    lane->queue = q;
    lane->pool.raw_alloc = host_alloc;
    lane->pool.raw_free = host_free;
    return KM_OK;
}

static void host_close(km_lane *lane) {
    km_host_queue *q = km_host_queue_of(lane);
    km_host_graphs_close(lane);
    if (q->drop) q->drop(q->kept);
    km_free(q);
}

static km_status host_copy(km_lane *lane, void *dst, const void *src, size_t bytes) {
    km_host_graph_spoil(lane);
    memcpy(dst, src, bytes);
    return KM_OK;
}

static km_status host_sync(km_lane *lane) {
    (void)lane;
    return KM_OK;
}

const km_device_ops km_host_ops = {.open = host_open,
                                   .close = host_close,
                                   .upload = host_copy,
                                   .download = host_copy,
                                   .sync = host_sync,
                                   .graph_begin = km_host_graph_begin,
                                   .graph_end = km_host_graph_end,
                                   .graph_launch = km_host_graph_launch,
                                   .graph_free = km_host_graph_free};
