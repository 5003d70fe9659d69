/* Communicators: choosing a way to talk, and the calls that are the same for all of them. */
#include "comm/comm.h"
#include "backend/host.h"
#include "base/alloc.h"
#include "comm/mpi.h"
#include "comm/transport.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- What mpirun says ---- */

/* The first of these variables that holds a number; `missing` otherwise. */
static int env_number(const char *const *names, int missing) {
    for (; *names; names++) {
        const char *text = getenv(*names);
        char *end = NULL;
        long v = text ? strtol(text, &end, 10) : -1;
        if (text && end != text && *end == 0 && v >= 0 && v < 1 << 20) return (int)v;
    }
    return missing;
}

int km_comm_env_size(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE",
                                        NULL};
    int size = env_number(names, 1);
    return size > 0 ? size : 1;
}

int km_comm_env_rank(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK",
                                        NULL};
    return env_number(names, 0);
}

int km_comm_env_local_rank(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                                        "MV2_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", NULL};
    return env_number(names, 0);
}

int km_comm_env_local_size(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                                        "MV2_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE", NULL};
    int size = env_number(names, 1);
    return size > 0 ? size : 1;
}

/* ---- One rank: nothing to do ---- */

struct km_comm_work {
    int nothing;
};
static km_comm_work done;

static void none_close(km_comm *c) { (void)c; }

static km_comm_work *none_start(km_ctx *ctx, km_comm *c, km_comm_op op, km_tensor *t) {
    (void)ctx, (void)c, (void)op, (void)t;
    return &done;
}

static km_status none_wait(km_ctx *ctx, km_comm *c, km_comm_work *w) {
    (void)c, (void)w;
    return km_ctx_status(ctx);
}

static const km_transport none = {"none", true, none_close, none_start, none_wait, NULL};

/* ---- Choosing ---- */

/* Whether NCCL can serve: every rank has the library and a GPU that no other rank uses. All ranks
 * come to the same answer. */
static bool gpus_apart(km_comm *c, km_error *err) {
    struct card {
        char host[64];
        uint64_t gpu;
    } *card = km_calloc((size_t)c->size, sizeof *card);
    bool apart = card != NULL;
    if (!card) {
        km_error_set(err, KM_ERR_MEMORY, "comm: out of memory");
        return false;
    }
    struct card *own = &card[c->rank];
    gethostname(own->host, sizeof own->host - 1);
    own->gpu = km_nccl_gpu(c->ctx);
    if (own->gpu && !km_nccl_there(NULL)) own->gpu = 0;
    apart = km_mpi_gather(c->mpi, card, sizeof *card, err) == KM_OK;
    for (int i = 0; i < c->size && apart; i++) {
        apart = card[i].gpu != 0;
        for (int k = 0; k < i && apart; k++)
            apart = card[i].gpu != card[k].gpu || strcmp(card[i].host, card[k].host) != 0;
    }
    km_free(card);
    return apart;
}

static km_status choose(km_comm *c, const char *how, km_error *err) {
    bool mpi = strcmp(how, "mpi") == 0, nccl = strcmp(how, "nccl") == 0,
         any = strcmp(how, "auto") == 0;
    if (!mpi && !nccl && !any && strcmp(how, "none") != 0)
        return km_error_set(err, KM_ERR_RANGE, "comm: auto, none, mpi or nccl, not '%.40s'", how);
    if (nccl && !km_nccl_there(err)) return KM_ERR_UNSUPPORTED;
    if (mpi || ((nccl || any) && km_comm_env_size() > 1)) {
        c->mpi = km_mpi_open(err);
        if (!c->mpi) return err ? err->code : KM_ERR_UNSUPPORTED;
        c->rank = km_mpi_rank(c->mpi);
        c->size = km_mpi_size(c->mpi);
        c->transport = &km_mpi_transport;
    }
    km_error trouble = {0};
    if (any && c->size > 1) nccl = gpus_apart(c, &trouble);
    if (trouble.code != KM_OK) return km_error_set(err, trouble.code, "%s", trouble.text);
    if (!nccl) return KM_OK;
    km_status s = km_nccl_open(c, err);
    if (s == KM_OK) c->transport = &km_nccl_transport;
    return s;
}

km_comm *km_comm_open(const char *how, km_ctx *ctx, km_error *err) {
    km_error why = {0};
    km_comm *c = km_calloc(1, sizeof *c);
    if (!c) {
        km_error_set(err, KM_ERR_MEMORY, "comm: out of memory");
        return NULL;
    }
    *c = (km_comm){.transport = &none, .size = 1, .ctx = ctx};
    if (choose(c, how, &why) == KM_OK) return c;
    km_error_set(err, why.code, "%s", why.text);
    if (c->mpi) km_mpi_close(c->mpi, false);
    km_free(c);
    return NULL;
}

void km_comm_close(km_comm *c) {
    if (!c) return;
    c->transport->close(c);
    if (c->mpi) km_mpi_close(c->mpi, !km_failed(c->ctx));
    km_free(c);
}

int km_comm_rank(const km_comm *c) { return c ? c->rank : 0; }
int km_comm_size(const km_comm *c) { return c ? c->size : 1; }
const char *km_comm_name(const km_comm *c) { return c ? c->transport->name : "none"; }
bool km_comm_alone(const km_comm *c) { return !c || c->transport == &none; }
bool km_comm_capturable(const km_comm *c) { return !c || c->transport->capturable; }

/* ---- Tensors ---- */

/* Whether t can be sent; it counts as changed then. */
static bool can_go(km_ctx *ctx, const km_comm *c, km_comm_op op, km_tensor *t) {
    if (km_failed(ctx)) return false;
    bool parts = op == KM_COMM_REDUCE_SCATTER || op == KM_COMM_ALL_GATHER;
    if (!km_is_contiguous(t) || (parts && km_shape_count(t->shape) % km_comm_size(c) != 0)) {
        km_fail(ctx, KM_ERR_SHAPE, "comm: the tensor is not contiguous or does not split evenly");
        return false;
    }
    t->storage->version++;
    return true;
}

km_comm_work *km_comm_start(km_ctx *ctx, km_comm *c, km_comm_op op, km_tensor *t) {
    if (!can_go(ctx, c, op, t)) return NULL;
    return c ? c->transport->start(ctx, c, op, t) : &done;
}

km_status km_comm_wait(km_ctx *ctx, km_comm *c, km_comm_work *w) {
    if (!c || !w) return km_ctx_status(ctx);
    return c->transport->wait(ctx, c, w);
}

/* Both, as a kernel: so a host that captures a step remembers it and does it again. */
static km_status run_kernel(km_ctx *ctx, const km_call *call) {
    km_comm *c = (km_comm *)(uintptr_t)call->p->stream;
    km_comm_op op = (km_comm_op)call->p->n[KM_N_COMM_OP];
    km_tensor *t = call->in[0];
    if (!c->transport->run || !km_tensor_dev(t)->host)
        return km_comm_wait(ctx, c, km_comm_start(ctx, c, op, t));
    if (!can_go(ctx, c, op, t)) return km_ctx_status(ctx);
    return c->transport->run(ctx, c, op, t);
}

km_status km_comm_run(km_ctx *ctx, km_comm *c, km_comm_op op, km_tensor *t) {
    if (km_failed(ctx) || !c) return km_ctx_status(ctx);
    km_params p = {.n = {[KM_N_COMM_OP] = op}, .stream = (uint64_t)(uintptr_t)c};
    km_call call = {.op = KM_OP_CUSTOM, .n_in = 1, .in = &t, .p = &p};
    km_lane *lane = t->storage->lane;
    return lane->device->host ? km_host_run(ctx, lane, run_kernel, &call) : run_kernel(ctx, &call);
}

/* ---- Host memory ---- */

km_status km_comm_barrier(km_comm *c, km_error *err) {
    return c && c->mpi ? km_mpi_barrier(c->mpi, err) : KM_OK;
}

km_status km_comm_broadcast(km_comm *c, int root, void *data, size_t bytes, km_error *err) {
    return c && c->mpi ? km_mpi_broadcast(c->mpi, root, data, bytes, err) : KM_OK;
}

km_status km_comm_sum(km_comm *c, double *x, int n, km_error *err) {
    if (!c || !c->mpi || n < 1) return KM_OK;
    size_t bytes = (size_t)n * sizeof *x;
    double *all = km_calloc((size_t)c->size, bytes);
    if (!all) return km_error_set(err, KM_ERR_MEMORY, "comm: out of memory");
    memcpy(all + (size_t)n * (size_t)c->rank, x, bytes);
    km_status s = km_mpi_gather(c->mpi, all, bytes, err);
    for (int i = 0; i < n && s == KM_OK; i++) {
        x[i] = 0;
        for (int r = 0; r < c->size; r++) x[i] += all[(size_t)n * (size_t)r + (size_t)i];
    }
    km_free(all);
    return s;
}
