/* Lanes: opening and closing, memory for the pool, and copies between host and device. Host memory
 * is ordinary (pageable), so copies go through two halves of pinned memory: while one half is on
 * its way, the other is filled. An upload returns when the host data was read, not when it
 * arrived; a download returns when the data is there. */
#include "backend/cuda/lane.h"
#include "backend/cuda/feed.h"
#include "backend/cuda/quant.h"
#include "backend/cuda/graph.h"
#include "base/alloc.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

km_cu_stream km_cuda_stream(km_lane *lane) {
    km_cuda_held_flush(lane);
    km_cuda_chain_flush(lane);
    return km_cuda_queue_of(lane)->own_stream;
}

km_status km_cuda_fail(km_lane *lane, km_cu_result code, const char *doing) {
    char text[200];
    km_cuda_dev *dev = km_cuda_dev_of(lane);
    km_cuda_note_error(dev, code, doing);
    return km_fail(lane->ctx, code == KM_CU_OUT_OF_MEMORY ? KM_ERR_MEMORY : KM_ERR_GPU,
                   "%s: %s: %s", lane->device->name, doing,
                   km_cuda_error_text(code, text, sizeof text));
}

km_status km_cuda_ready(km_lane *lane) {
    km_cuda_dev *dev = km_cuda_dev_of(lane);
    if (atomic_load_explicit(&dev->lost, memory_order_relaxed))
        return km_cuda_lost(dev, &lane->ctx->error);
    km_cu_result r = km_cuda_enter(dev);
    return r == KM_CU_OK ? KM_OK : km_cuda_fail(lane, r, "entering the GPU's context");
}

/* ---- The pool's memory ---- */

#define DRIVER_GRAIN ((size_t)2 << 20) /* the driver rounds all but small blocks up to this */
#define CHUNK_BYTES ((size_t)48 << 20)

/* NULL sends the pool to its cached blocks and then to an out-of-memory error. Any other trouble
 * is set as the context's error here, where it is known; the first error stays. */
static void *raw_alloc(void *owner, size_t bytes) {
    km_lane *lane = owner;
    km_cuda_dev *dev = km_cuda_dev_of(lane);
    km_cu_ptr p = 0;
    if (km_cuda_ready(lane) != KM_OK) return NULL;
    if (atomic_fetch_add(&dev->held, bytes) + bytes > dev->limit) {
        atomic_fetch_sub(&dev->held, bytes);
        return NULL;
    }
    km_cu_result r = KM_CU(mem_alloc, &p, bytes);
    if (r == KM_CU_OK) return (void *)(uintptr_t)p;
    atomic_fetch_sub(&dev->held, bytes);
    if (r != KM_CU_OUT_OF_MEMORY) km_cuda_fail(lane, r, "allocating memory");
    return NULL;
}

/* Memory of the host that kernels work on over the bus: by the driver's one address space its address is the
 * same there. Some of what the host has is left for others. */
static void *spill_alloc(void *owner, size_t bytes) {
    km_lane *lane = owner;
    void *p = NULL;
    km_host_memory m = km_host_memory_get();
    if ((double)bytes > 0.8 * m.available || km_failed(lane->ctx) || km_cuda_ready(lane) != KM_OK)
        return NULL;
    km_cu_result r = KM_CU(host_alloc, &p, bytes, KM_CU_HOST_PORTABLE | KM_CU_HOST_MAPPED);
    return r == KM_CU_OK ? p : NULL;
}

/* What is held back may still want to read blocks that are given up. What is on the stream needs no
 * wait: whoever gets the memory next works on the same stream. */
static void before_free(void *owner) {
    km_lane *lane = owner;
    if (lane->queue) km_cuda_stream(lane);
}

static void raw_free(void *owner, void *p, size_t bytes) {
    km_lane *lane = owner;
    km_cuda_dev *dev = km_cuda_dev_of(lane);
    before_free(lane);
    /* The driver waits for work on the block before it frees it. On a lost device it fails, and
     * the memory goes with the process's context. */
    km_cuda_enter(dev);
    km_cu_result r = km_cuda_api()->mem_free((km_cu_ptr)(uintptr_t)p);
    if (r != KM_CU_OK) km_cuda_note_error(dev, r, "freeing memory");
    atomic_fetch_sub(&dev->held, bytes);
}

/* Unlike device memory's, it is not said that freeing it waits for the stream. */
static void spill_free(void *owner, void *p, size_t bytes) {
    km_lane *lane = owner;
    km_cuda_dev *dev = km_cuda_dev_of(lane);
    (void)bytes;
    km_cuda_enter(dev);
    if (lane->queue) km_cuda_api()->stream_sync(km_cuda_stream(lane));
    km_cu_result r = km_cuda_api()->host_free(p);
    if (r != KM_CU_OK) km_cuda_note_error(dev, r, "freeing memory of the host");
}

/* ---- Opening and closing ---- */

static void lane_close(km_lane *lane) {
    km_cuda_queue *q = lane->queue;
    km_cuda_dev *dev = km_cuda_dev_of(lane);
    const km_cu_api *api = km_cuda_api();
    if (!q) return;
    km_cuda_enter(dev);
    q->held.on = false;
    q->chain.n = 0; /* nobody will read what was held back */
    if (q->own_stream) api->stream_sync(q->own_stream);
    km_cuda_graphs_close(lane);
    km_cuda_feed_close(lane);
    km_mempool_close_spilled(&lane->pool);
    km_chunks_close(&lane->pool.chunks);
    for (int i = 0; i < 2; i++) {
        if (q->stage[i].done) api->event_destroy(q->stage[i].done);
        if (q->stage[i].data) api->host_free(q->stage[i].data);
    }
    km_cuda_shared_free(lane);
    if (q->own_stream) api->stream_destroy(q->own_stream);
    km_free(q);
    lane->queue = NULL;
}

static km_status lane_open(km_lane *lane, km_error *err) {
    char text[200];
    km_cuda_dev *dev = km_cuda_dev_of(lane);
    if (atomic_load(&dev->lost)) return km_cuda_lost(dev, err);
    km_cuda_queue *q = km_calloc(1, sizeof *q);
    if (!q) return km_error_set(err, KM_ERR_MEMORY, "%s: out of memory", lane->device->name);
    lane->queue = q;
    const char *fuse = getenv("KERMES_FUSE");
    q->chain.off = fuse && strcmp(fuse, "0") == 0;
    km_cu_result r = km_cuda_enter(dev);
    if (r == KM_CU_OK) r = KM_CU(stream_create, &q->own_stream, KM_CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < 2 && r == KM_CU_OK; i++)
        r = KM_CU(event_create, &q->stage[i].done, KM_CU_EVENT_NO_TIMING);
    if (r != KM_CU_OK) {
        km_cuda_note_error(dev, r, "opening a stream");
        km_error_set(err, KM_ERR_GPU, "%s: opening a stream: %s", lane->device->name,
                     km_cuda_error_text(r, text, sizeof text));
        lane_close(lane);
        return KM_ERR_GPU;
    }
    lane->pool.raw_alloc = raw_alloc;
    lane->pool.raw_free = raw_free;
    lane->pool.spill_alloc = spill_alloc;
    lane->pool.spill_free = spill_free;
    lane->pool.before_free = before_free;
    lane->pool.owner = lane;
    lane->pool.limit = dev->limit;
    const char *chunks = getenv("KERMES_GPU_CHUNKS");
    if (!chunks || strcmp(chunks, "0") != 0)
        km_mempool_in_chunks(&lane->pool, DRIVER_GRAIN, CHUNK_BYTES);
    return KM_OK;
}

/* ---- Copies ---- */

static km_status copy_ready(km_lane *lane, const char *what) {
    km_cuda_queue *q = km_cuda_queue_of(lane);
    if (q->capturing)
        return km_fail(lane->ctx, KM_ERR_STATE,
                       "%s: %s while a graph is captured: host data would be frozen into it",
                       lane->device->name, what);
    if (km_cuda_ready(lane) != KM_OK) return lane->ctx->error.code;
    for (int i = 0; i < 2; i++) {
        if (q->stage[i].data) continue;
        void *p = NULL;
        km_cu_result r = KM_CU(host_alloc, &p, KM_CUDA_STAGE_BYTES, 0);
        if (r != KM_CU_OK) return km_cuda_fail(lane, r, "allocating pinned host memory");
        q->stage[i].data = p;
    }
    return KM_OK;
}

static km_status stage_wait(km_lane *lane, km_cuda_stage *s, const char *doing) {
    if (!s->pending) return KM_OK;
    km_cu_result r = KM_CU(event_sync, s->done);
    if (r != KM_CU_OK) return km_cuda_fail(lane, r, doing);
    s->pending = false;
    s->used = 0;
    return KM_OK;
}

/* A copy between host buffers is slower on one core than the bus is; large ones are shared out. */
typedef struct host_copy {
    char *dst;
    const char *src;
} host_copy;

static void copy_range(void *arg, int64_t begin, int64_t end, int worker) {
    const host_copy *h = arg;
    memcpy(h->dst + begin, h->src + begin, (size_t)(end - begin));
}

void km_cuda_copy_host(km_lane *lane, void *dst, const void *src, size_t bytes) {
    host_copy h = {dst, src};
    km_threads_for(bytes > (1 << 20) ? lane->ctx->threads : NULL, (int64_t)bytes, 512 << 10,
                   copy_range, &h);
}

static km_status lane_upload(km_lane *lane, void *dst, const void *src, size_t bytes) {
    km_cuda_queue *q = km_cuda_queue_of(lane);
    if (bytes == 0) return KM_OK;
    if (copy_ready(lane, "an upload") != KM_OK) return lane->ctx->error.code;
    km_cu_stream stream = km_cuda_stream(lane);
    while (bytes > 0) {
        km_cuda_stage *s = &q->stage[q->filling];
        if (s->used == KM_CUDA_STAGE_BYTES) {
            q->filling ^= 1;
            s = &q->stage[q->filling];
            if (stage_wait(lane, s, "an upload") != KM_OK) return lane->ctx->error.code;
            s->used = 0;
        }
        size_t room = KM_CUDA_STAGE_BYTES - s->used, part = bytes < room ? bytes : room;
        km_cuda_copy_host(lane, s->data + s->used, src, part);
        km_cu_result r = KM_CU(copy_in, (km_cu_ptr)(uintptr_t)dst, s->data + s->used, part, stream);
        if (r == KM_CU_OK) r = KM_CU(event_record, s->done, stream);
        if (r != KM_CU_OK) return km_cuda_fail(lane, r, "an upload");
        s->pending = true;
        s->used += (part + 63) / 64 * 64;
        if (s->used > KM_CUDA_STAGE_BYTES) s->used = KM_CUDA_STAGE_BYTES;
        dst = (char *)dst + part;
        src = (const char *)src + part;
        bytes -= part;
    }
    return KM_OK;
}

static km_status lane_download(km_lane *lane, void *dst, const void *src, size_t bytes) {
    km_cuda_queue *q = km_cuda_queue_of(lane);
    if (bytes == 0) return KM_OK;
    if (copy_ready(lane, "a download") != KM_OK) return lane->ctx->error.code;
    km_cu_stream stream = km_cuda_stream(lane);
    size_t asked = 0, taken = 0; /* bytes on their way, bytes arrived in dst */
    for (int half = 0; taken < bytes; half ^= 1) {
        while (asked < bytes && asked < taken + 2 * KM_CUDA_STAGE_BYTES) {
            km_cuda_stage *s = &q->stage[(asked / KM_CUDA_STAGE_BYTES) % 2];
            size_t part = bytes - asked;
            if (part > KM_CUDA_STAGE_BYTES) part = KM_CUDA_STAGE_BYTES;
            km_cu_result r =
                KM_CU(copy_out, s->data, (km_cu_ptr)(uintptr_t)src + asked, part, stream);
            if (r == KM_CU_OK) r = KM_CU(event_record, s->done, stream);
            if (r != KM_CU_OK) return km_cuda_fail(lane, r, "a download");
            s->pending = true;
            asked += part;
        }
        km_cuda_stage *s = &q->stage[half];
        if (stage_wait(lane, s, "a download") != KM_OK) return lane->ctx->error.code;
        size_t part = bytes - taken;
        if (part > KM_CUDA_STAGE_BYTES) part = KM_CUDA_STAGE_BYTES;
        km_cuda_copy_host(lane, (char *)dst + taken, s->data, part);
        taken += part;
    }
    return KM_OK;
}

km_status km_cuda_sync(km_lane *lane) {
    km_cuda_queue *q = km_cuda_queue_of(lane);
    if (q->capturing)
        return km_fail(lane->ctx, KM_ERR_STATE, "%s: cannot wait while a graph is captured",
                       lane->device->name);
    if (km_cuda_ready(lane) != KM_OK) return lane->ctx->error.code;
    km_cu_stream stream = km_cuda_stream(lane);
    km_cu_result r = KM_CU(stream_sync, stream);
    return r == KM_CU_OK ? KM_OK : km_cuda_fail(lane, r, "waiting for the GPU");
}

/* What the driver has left, within what contexts may hold. */
static size_t room(km_device *device) {
    km_cuda_dev *dev = device->impl;
    size_t left = 0, total = 0, held = atomic_load(&dev->held);
    if (atomic_load(&dev->lost) || km_cuda_enter(dev) != KM_CU_OK ||
        KM_CU(mem_info, &left, &total) != KM_CU_OK)
        return 0;
    size_t allowed = held < dev->limit ? dev->limit - held : 0;
    return left < allowed ? left : allowed;
}

static void *user_stream(km_lane *lane) {
    return km_cuda_ready(lane) == KM_OK ? (void *)km_cuda_stream(lane) : NULL;
}

static bool lost(const km_device *device) {
    return atomic_load(&((const km_cuda_dev *)device->impl)->lost);
}

static void *graph_end(km_lane *lane, void *old) { return km_cuda_graph_end(lane, old); }
static km_status graph_launch(void *graph) { return km_cuda_graph_launch(graph); }
static void graph_free(void *graph) { km_cuda_graph_free(graph); }

const km_device_ops km_cuda_device_ops = {.open = lane_open,
                                          .close = lane_close,
                                          .upload = lane_upload,
                                          .download = lane_download,
                                          .settle = km_cuda_settle,
                                          .unsettle = km_cuda_unsettle,
                                          .sync = km_cuda_sync,
                                          .stream = user_stream,
                                          .lost = lost,
                                          .room = room,
                                          .lend = km_cuda_feed_lend,
                                          .graph_begin = km_cuda_graph_begin,
                                          .graph_end = graph_end,
                                          .graph_launch = graph_launch,
                                          .graph_free = graph_free};
