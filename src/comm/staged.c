/* Tensors over MPI. Those in host memory go as they are. Those of a GPU pass through pinned memory:
 * the copy out is queued behind the work that makes them, the thread waits for it and talks to the
 * other ranks while the GPU goes on, and the copy back is queued when the result is waited for. */
#include "backend/cuda/lane.h"
#include "base/alloc.h"
#include "comm/mpi.h"

typedef struct staged_job {
    km_mpi_job job; /* first: a ticket is a pointer to it */
    km_tensor t;    /* what it is about; its storage is held */
    km_lane *lane;  /* of a GPU; NULL for host memory */
    void *stage;    /* pinned */
    size_t room;
    km_cu_event ready;       /* the copy out is done, later the copy back */
    bool returning;          /* a copy back was queued from this stage */
    struct staged_job *next; /* among those not in use */
} staged_job;

/* ---- Tickets, kept for reuse with their pinned memory ---- */

static void drop(staged_job *s) {
    if (s->lane) {
        km_cuda_enter(km_cuda_dev_of(s->lane));
        if (s->returning) km_cuda_api()->event_sync(s->ready);
        if (s->ready) km_cuda_api()->event_destroy(s->ready);
        if (s->stage) km_cuda_api()->host_free(s->stage);
    }
    km_free(s);
}

static km_status make_stage(km_ctx *ctx, staged_job *s, km_lane *lane, size_t bytes) {
    (void)ctx;
    s->lane = lane;
    km_cu_result r = km_cuda_enter(km_cuda_dev_of(lane));
    if (r == KM_CU_OK) r = KM_CU(event_create, &s->ready, KM_CU_EVENT_NO_TIMING);
    if (r == KM_CU_OK) r = KM_CU(host_alloc, &s->stage, bytes, 0);
    s->room = bytes;
    return r == KM_CU_OK ? KM_OK : km_cuda_fail(lane, r, "pinning memory for other ranks");
}

/* A ticket whose stage holds `bytes`; lane NULL: one without. */
static staged_job *take(km_ctx *ctx, km_comm *c, km_lane *lane, size_t bytes) {
    for (staged_job **at = (staged_job **)&c->impl; *at; at = &(*at)->next) {
        staged_job *s = *at;
        if (s->lane != lane || (lane && (s->room < bytes || s->room / 2 > bytes))) continue;
        *at = s->next;
        return s;
    }
    staged_job *s = km_calloc(1, sizeof *s);
    if (!s) {
        km_fail(ctx, KM_ERR_MEMORY, "comm: out of memory");
        return NULL;
    }
    if (lane && make_stage(ctx, s, lane, bytes) != KM_OK) {
        drop(s);
        return NULL;
    }
    return s;
}

static void put_back(km_comm *c, staged_job *s) {
    s->next = c->impl;
    c->impl = s;
}

/* ---- Start and wait ---- */

static void wait_for_copy(void *user) {
    staged_job *s = user;
    if (km_cuda_enter(km_cuda_dev_of(s->lane)) == KM_CU_OK) km_cuda_api()->event_sync(s->ready);
}

/* The bytes that must travel from the device before, or to it after. */
static void span_of(const km_comm *c, const staged_job *s, bool before, size_t *first,
                    size_t *bytes) {
    size_t all = (size_t)s->job.count * km_dtype_size(s->job.dtype), part = all / (size_t)c->size;
    bool own = s->job.op == (before ? KM_COMM_ALL_GATHER : KM_COMM_REDUCE_SCATTER);
    *first = own ? part * (size_t)c->rank : 0;
    *bytes = own ? part : all;
    if (s->job.op == KM_COMM_BROADCAST && (c->rank == 0) != before) *bytes = 0;
}

static km_status copy_out(km_comm *c, staged_job *s) {
    km_lane *lane = s->lane;
    size_t first, bytes;
    if (km_cuda_queue_of(lane)->capturing)
        return km_fail(lane->ctx, KM_ERR_STATE,
                       "comm: ranks that talk through the host cannot be part of a graph");
    if (km_cuda_ready(lane) != KM_OK) return lane->ctx->error.code;
    km_cu_result r = s->returning ? KM_CU(event_sync, s->ready) : KM_CU_OK;
    s->returning = false;
    span_of(c, s, true, &first, &bytes);
    if (r == KM_CU_OK && bytes)
        r = KM_CU(copy_out, (char *)s->stage + first,
                  (km_cu_ptr)(uintptr_t)((char *)km_tensor_ptr(&s->t) + first), bytes,
                  km_cuda_stream(lane));
    if (r == KM_CU_OK) r = KM_CU(event_record, s->ready, km_cuda_stream(lane));
    return r == KM_CU_OK ? KM_OK : km_cuda_fail(lane, r, "copying to other ranks");
}

static km_status copy_back(km_comm *c, staged_job *s) {
    km_lane *lane = s->lane;
    size_t first, bytes;
    if (km_cuda_ready(lane) != KM_OK) return lane->ctx->error.code;
    span_of(c, s, false, &first, &bytes);
    km_cu_result r = KM_CU_OK;
    if (bytes)
        r = KM_CU(copy_in, (km_cu_ptr)(uintptr_t)((char *)km_tensor_ptr(&s->t) + first),
                  (char *)s->stage + first, bytes, km_cuda_stream(lane));
    if (r == KM_CU_OK) r = KM_CU(event_record, s->ready, km_cuda_stream(lane));
    s->returning = r == KM_CU_OK;
    return r == KM_CU_OK ? KM_OK : km_cuda_fail(lane, r, "copying from other ranks");
}

static km_comm_work *start(km_ctx *ctx, km_comm *c, km_comm_op op, km_tensor *t) {
    km_lane *lane = km_tensor_dev(t)->host ? NULL : t->storage->lane;
    int64_t count = km_shape_count(t->shape);
    size_t bytes = (size_t)count * km_dtype_size(t->dtype);
    staged_job *s = take(ctx, c, lane, bytes ? bytes : 1);
    if (!s) return NULL;
    s->t = *t;
    s->job = (km_mpi_job){.op = op,
                          .data = lane ? s->stage : km_tensor_ptr(t),
                          .count = count,
                          .dtype = t->dtype,
                          .before = lane ? wait_for_copy : NULL,
                          .user = s};
    if (lane && copy_out(c, s) != KM_OK) {
        put_back(c, s);
        return NULL;
    }
    km_storage_retain(t->storage);
    km_mpi_submit(c->mpi, &s->job);
    return (km_comm_work *)s;
}

static km_status wait(km_ctx *ctx, km_comm *c, km_comm_work *w) {
    staged_job *s = (staged_job *)w;
    km_error err = {0};
    if (km_mpi_await(c->mpi, &s->job, &err) != KM_OK) km_fail(ctx, err.code, "%s", err.text);
    if (s->lane && err.code == KM_OK) copy_back(c, s);
    km_storage_release(ctx, s->t.storage);
    put_back(c, s);
    return km_ctx_status(ctx);
}

static km_status run(km_ctx *ctx, km_comm *c, km_comm_op op, km_tensor *t) {
    km_mpi_job job = {
        .op = op, .data = km_tensor_ptr(t), .count = km_shape_count(t->shape), .dtype = t->dtype};
    km_error err = {0};
    if (km_mpi_run(c->mpi, &job, &err) != KM_OK) km_fail(ctx, err.code, "%s", err.text);
    return km_ctx_status(ctx);
}

static void close_all(km_comm *c) {
    while (c->impl) {
        staged_job *s = c->impl;
        c->impl = s->next;
        drop(s);
    }
}

const km_transport km_mpi_transport = {"mpi", false, close_all, start, wait, run};
