/* Ranks over NCCL, opened at run time. Collectives run on a stream of their own: it waits for the
 * work that makes the tensor, and who waits for the ticket makes the context's stream wait for it, so
 * the host never does, and all of it can be captured in a graph. */
#include "comm/transport.h"
#include "backend/cuda/lane.h"
#include "backend/cuda/library.h"
#include "base/alloc.h"
#include "comm/mpi.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* ---- The library, in our own words ---- */

typedef struct nccl_id {
    char bytes[128];
} nccl_id;
typedef struct nccl_comm_handle *nccl_comm;
enum { NCCL_F16 = 6, NCCL_F32 = 7, NCCL_BF16 = 9, NCCL_SUM = 0 };

#define NCCL_LIST(X)                                                                               \
    X(error_text, "ncclGetErrorString", const char *, (int code))                                  \
    X(get_id, "ncclGetUniqueId", int, (nccl_id * id))                                              \
    X(join, "ncclCommInitRank", int, (nccl_comm * comm, int size, nccl_id id, int rank))           \
    X(leave, "ncclCommDestroy", int, (nccl_comm comm))                                             \
    X(abandon, "ncclCommAbort", int, (nccl_comm comm))                                             \
    X(all_reduce, "ncclAllReduce", int,                                                            \
      (const void *in, void *out, size_t count, int type, int op, nccl_comm comm, km_cu_stream s)) \
    X(reduce_scatter, "ncclReduceScatter", int,                                                    \
      (const void *in, void *out, size_t count, int type, int op, nccl_comm comm, km_cu_stream s)) \
    X(all_gather, "ncclAllGather", int,                                                            \
      (const void *in, void *out, size_t count, int type, nccl_comm comm, km_cu_stream s))         \
    X(broadcast, "ncclBroadcast", int,                                                             \
      (const void *in, void *out, size_t count, int type, int root, nccl_comm comm,                \
       km_cu_stream s))

static struct nccl_api {
#define FIELD(name, symbol, result, params) result(*name) params;
    NCCL_LIST(FIELD)
#undef FIELD
} api;

static char missing[512]; /* why the library cannot be used; empty when it can */

static void open_library(void) {
    static const int versions[3] = {2, 0, 0};
    char note[400];
    void *lib = km_cuda_library_open("libnccl.so", versions, note, sizeof note);
    if (!lib) {
        snprintf(missing, sizeof missing, "comm: libnccl.so.2 was not found (%s)", note);
        return;
    }
#define LOAD(name, symbol, result, params)                                                         \
    if (!missing[0] && !(*(void **)&api.name = dlsym(lib, symbol)))                                \
        snprintf(missing, sizeof missing, "comm: %s has no %s", note, symbol);
    NCCL_LIST(LOAD)
#undef LOAD
}

bool km_nccl_there(km_error *err) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_library);
    if (missing[0]) km_error_set(err, KM_ERR_UNSUPPORTED, "%s", missing);
    return !missing[0];
}

/* ---- Joining and leaving ---- */

typedef struct ticket {
    km_cu_event made, done; /* the tensor is ready to be sent; it has arrived */
    struct ticket *next;    /* among those not in use */
} ticket;

typedef struct nccl {
    nccl_comm comm;
    km_lane *lane;
    km_cu_stream stream;
    ticket *unused;
} nccl;

static void close_all(km_comm *c) {
    nccl *n = c->impl;
    if (!n) return;
    km_cuda_enter(km_cuda_dev_of(n->lane));
    if (n->stream && !km_failed(c->ctx)) km_cuda_api()->stream_sync(n->stream);
    if (n->comm && km_failed(c->ctx))
        api.abandon(n->comm);
    else if (n->comm)
        api.leave(n->comm);
    while (n->unused) {
        ticket *t = n->unused;
        n->unused = t->next;
        km_cuda_api()->event_destroy(t->made);
        km_cuda_api()->event_destroy(t->done);
        km_free(t);
    }
    if (n->stream) km_cuda_api()->stream_destroy(n->stream);
    km_free(n);
    c->impl = NULL;
}

km_status km_nccl_open(km_comm *c, km_error *err) {
    km_lane *lane = c->ctx->lanes[0];
    nccl_id id;
    if (!km_nccl_there(err)) return KM_ERR_UNSUPPORTED;
    if (lane->device->ops != &km_cuda_device_ops)
        return km_error_set(err, KM_ERR_DEVICE, "comm: NCCL joins GPUs, and this is %s",
                            lane->device->name);
    nccl *n = km_calloc(1, sizeof *n);
    if (!n) return km_error_set(err, KM_ERR_MEMORY, "comm: out of memory");
    c->impl = n;
    n->lane = lane;
    km_cu_result r = km_cuda_enter(km_cuda_dev_of(lane));
    if (r == KM_CU_OK) r = KM_CU(stream_create, &n->stream, KM_CU_STREAM_NON_BLOCKING);
    int code = 0;
    memset(&id, 0, sizeof id);
    if (r == KM_CU_OK && c->rank == 0) code = api.get_id(&id);
    km_status s = KM_OK;
    if (c->mpi) s = km_mpi_broadcast(c->mpi, 0, &id, sizeof id, err);
    if (s == KM_OK && r == KM_CU_OK && code == 0) code = api.join(&n->comm, c->size, id, c->rank);
    if (s == KM_OK && (r != KM_CU_OK || code != 0)) {
        char text[200];
        s = km_error_set(err, KM_ERR_GPU, "comm: joining %d GPUs: %s", c->size,
                         code ? api.error_text(code) : km_cuda_error_text(r, text, sizeof text));
        n->comm = NULL;
    }
    if (s != KM_OK) close_all(c);
    return s;
}

uint64_t km_nccl_gpu(const km_ctx *ctx) {
    enum { PCI_BUS = 33, PCI_DEVICE = 34, PCI_DOMAIN = 50 };
    const km_lane *lane = ctx->lanes[0];
    int bus = 0, device = 0, domain = 0;
    if (lane->device->ops != &km_cuda_device_ops) return 0;
    km_cu_device handle = km_cuda_dev_of(lane)->handle;
    km_cuda_api()->device_attr(&bus, PCI_BUS, handle);
    km_cuda_api()->device_attr(&device, PCI_DEVICE, handle);
    km_cuda_api()->device_attr(&domain, PCI_DOMAIN, handle);
    return (uint64_t)domain << 32 | (uint64_t)bus << 16 | (uint64_t)device << 1 | 1;
}

/* ---- Work ---- */

static ticket *take(km_ctx *ctx, nccl *n) {
    ticket *t = n->unused;
    if (t) {
        n->unused = t->next;
        return t;
    }
    t = km_calloc(1, sizeof *t);
    if (!t) {
        km_fail(ctx, KM_ERR_MEMORY, "comm: out of memory");
        return NULL;
    }
    km_cu_result r = KM_CU(event_create, &t->made, KM_CU_EVENT_NO_TIMING);
    if (r == KM_CU_OK && (r = KM_CU(event_create, &t->done, KM_CU_EVENT_NO_TIMING)) != KM_CU_OK)
        km_cuda_api()->event_destroy(t->made);
    if (r == KM_CU_OK) return t;
    km_free(t);
    km_cuda_fail(n->lane, r, "making events for other ranks");
    return NULL;
}

static int collect(const km_comm *c, km_comm_op op, const km_tensor *t) {
    const nccl *n = c->impl;
    int type = t->dtype == KM_F32 ? NCCL_F32 : t->dtype == KM_F16 ? NCCL_F16 : NCCL_BF16;
    size_t count = (size_t)km_shape_count(t->shape), part = count / (size_t)c->size;
    char *all = km_tensor_ptr(t), *own = all + part * (size_t)c->rank * km_dtype_size(t->dtype);
    switch (op) {
    case KM_COMM_ALL_REDUCE:
        return api.all_reduce(all, all, count, type, NCCL_SUM, n->comm, n->stream);
    case KM_COMM_REDUCE_SCATTER:
        return api.reduce_scatter(all, own, part, type, NCCL_SUM, n->comm, n->stream);
    case KM_COMM_ALL_GATHER: return api.all_gather(own, all, part, type, n->comm, n->stream);
    default: return api.broadcast(all, all, count, type, 0, n->comm, n->stream);
    }
}

static km_comm_work *start(km_ctx *ctx, km_comm *c, km_comm_op op, km_tensor *t) {
    nccl *n = c->impl;
    if (t->storage->lane != n->lane) {
        km_fail(ctx, KM_ERR_DEVICE, "comm: the tensor is not on %s", n->lane->device->name);
        return NULL;
    }
    if (km_cuda_ready(n->lane) != KM_OK) return NULL;
    ticket *w = take(ctx, n);
    if (!w) return NULL;
    km_cu_result r = KM_CU(event_record, w->made, km_cuda_stream(n->lane));
    if (r == KM_CU_OK) r = KM_CU(stream_wait, n->stream, w->made, 0);
    int code = r == KM_CU_OK ? collect(c, op, t) : 0;
    if (r == KM_CU_OK && code == 0) r = KM_CU(event_record, w->done, n->stream);
    if (r == KM_CU_OK && code == 0) return (km_comm_work *)w;
    if (code)
        km_fail(ctx, KM_ERR_GPU, "comm: NCCL: %s", api.error_text(code));
    else
        km_cuda_fail(n->lane, r, "talking to other ranks");
    w->next = n->unused;
    n->unused = w;
    return NULL;
}

static km_status wait(km_ctx *ctx, km_comm *c, km_comm_work *work) {
    nccl *n = c->impl;
    ticket *w = (ticket *)work;
    km_cu_result r = km_cuda_enter(km_cuda_dev_of(n->lane));
    if (r == KM_CU_OK) r = KM_CU(stream_wait, km_cuda_stream(n->lane), w->done, 0);
    if (r != KM_CU_OK) km_cuda_fail(n->lane, r, "waiting for other ranks");
    w->next = n->unused;
    n->unused = w;
    return km_ctx_status(ctx);
}

const km_transport km_nccl_transport = {"nccl", true, close_all, start, wait, NULL};
