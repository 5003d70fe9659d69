/* Buckets of parameters and gradients, reduced as they get ready. */
#include "nn/reducer.h"
#include "autograd/ready.h"
#include "base/alloc.h"
#include "base/util.h"
#include "ops/op.h"
#include <string.h>

int64_t km_reducer_bucket_bytes = (int64_t)25 << 20;
#define ALIGN 64 /* elements: parameters begin, and parts split, at multiples */

typedef struct bucket {
    int first, end;     /* parameters first .. end - 1 */
    int64_t part;       /* elements to a rank */
    km_tensor *p, *g;   /* kept, flat, part * ranks elements */
    int waiting;        /* parameters whose gradient has not come yet */
    km_comm_work *work; /* under way */
} bucket;

struct km_reducer {
    km_ctx *ctx;
    km_comm *comm;
    km_param *const *param;
    int n;
    int64_t *at;        /* of each parameter in its bucket */
    int *home;          /* its bucket */
    bool *came, *there; /* its gradient came; it had one */
    bucket *bucket;
    int n_buckets;
    bool armed;
    km_tensor *sums; /* kept, (ranks) */
};

static int64_t count_of(const km_reducer *r, int i) {
    return km_shape_count(r->param[i]->t->shape);
}

/* ---- Making it ---- */

/* Which parameters go together. */
static void plan(km_reducer *r) {
    int ranks = km_comm_size(r->comm);
    int64_t room = 0;
    bucket *b = NULL;
    for (int i = 0; i < r->n; i++) {
        km_dtype d = r->param[i]->t->dtype;
        int64_t size = (int64_t)km_dtype_size(d);
        if (!b || r->param[b->first]->t->dtype != d || room * size >= km_reducer_bucket_bytes) {
            b = &r->bucket[r->n_buckets++];
            *b = (bucket){.first = i};
            room = 0;
        }
        r->at[i] = room;
        r->home[i] = r->n_buckets - 1;
        room += km_round_up(count_of(r, i), ALIGN);
        b->end = i + 1;
        b->part = km_round_up((room + ranks - 1) / ranks, ALIGN);
    }
}

/* A view of parameter i's place in a bucket's tensor. */
static km_tensor place(const km_reducer *r, int i, const km_tensor *flat) {
    const km_tensor *t = r->param[i]->t;
    km_tensor v = {.ctx = r->ctx,
                   .storage = flat->storage,
                   .dtype = flat->dtype,
                   .shape = t->shape,
                   .offset = flat->offset + r->at[i]};
    km_shape_strides(v.shape, v.stride);
    return v;
}

/* The parameter's elements move into the bucket; its handle follows. */
static km_status move_in(km_ctx *ctx, km_reducer *r, int i) {
    km_tensor *t = r->param[i]->t, to = place(r, i, r->bucket[r->home[i]].p);
    if (km_copy_into(ctx, t, &to) != KM_OK) return km_ctx_status(ctx);
    km_storage_retain(to.storage);
    km_storage_release(ctx, t->storage);
    t->storage = to.storage;
    t->offset = to.offset;
    return KM_OK;
}

km_reducer *km_reducer_new(km_ctx *ctx, km_param *const *param, int n, km_comm *comm) {
    if (km_failed(ctx)) return NULL;
    km_reducer *r = km_calloc(1, sizeof *r);
    int mark = ctx->n_step;
    if (r) {
        *r = (km_reducer){.ctx = ctx, .comm = comm, .param = param, .n = n};
        r->at = km_calloc((size_t)n, sizeof *r->at);
        r->home = km_calloc((size_t)n, sizeof *r->home);
        r->came = km_calloc((size_t)n * 2, sizeof *r->came);
        r->bucket = km_calloc((size_t)n, sizeof *r->bucket);
    }
    if (!r || !r->at || !r->home || !r->came || !r->bucket) {
        km_fail(ctx, KM_ERR_MEMORY, "optimizer: out of memory");
        km_reducer_free(r);
        return NULL;
    }
    r->there = r->came + n;
    plan(r);
    int64_t ranks = km_comm_size(comm);
    r->sums = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(ranks)));
    for (int k = 0; k < r->n_buckets && !km_failed(ctx); k++) {
        bucket *b = &r->bucket[k];
        km_shape flat = KM_SHAPE(b->part * ranks);
        b->p = km_keep(ctx, km_zeros(ctx, param[b->first]->t->dtype, flat));
        b->g = km_keep(ctx, km_zeros(ctx, param[b->first]->t->dtype, flat));
        for (int i = b->first; i < b->end && !km_failed(ctx); i++) move_in(ctx, r, i);
        if (!km_failed(ctx)) km_comm_run(ctx, comm, KM_COMM_BROADCAST, b->p);
        km_step_drop(ctx, mark, NULL, 0);
    }
    km_step_drop(ctx, mark, NULL, 0);
    if (!km_failed(ctx)) return r;
    km_reducer_free(r);
    return NULL;
}

void km_reducer_free(km_reducer *r) {
    if (!r) return;
    if (r->armed) km_on_gradient(r->ctx, NULL, NULL);
    for (int k = 0; k < r->n_buckets; k++) {
        if (r->bucket[k].work) km_comm_wait(r->ctx, r->comm, r->bucket[k].work);
        km_release(r->bucket[k].p);
        km_release(r->bucket[k].g);
    }
    km_release(r->sums);
    km_free(r->at);
    km_free(r->home);
    km_free(r->came);
    km_free(r->bucket);
    km_free(r);
}

/* ---- Who owns what ---- */

/* The elements of parameter i that rank owns: [*first, *first + *count). */
static void owned(const km_reducer *r, int i, int rank, int64_t *first, int64_t *count) {
    const bucket *b = &r->bucket[r->home[i]];
    int64_t from = b->part * rank - r->at[i], to = from + b->part, n = count_of(r, i);
    if (from < 0) from = 0;
    if (to > n) to = n;
    *first = from;
    *count = to > from ? to - from : 0;
}

int km_reducer_pieces(const km_reducer *r) { return r->n; }

int km_reducer_piece(const km_reducer *r, int i, int64_t *first, int64_t *count) {
    owned(r, i, km_comm_rank(r->comm), first, count);
    return i;
}

bool km_reducer_gradient(const km_reducer *r, int param, int64_t first, int64_t count,
                         km_tensor *view) {
    const bucket *b = &r->bucket[r->home[param]];
    *view = (km_tensor){.ctx = r->ctx,
                        .storage = b->g->storage,
                        .dtype = b->g->dtype,
                        .shape = KM_SHAPE(count),
                        .stride = {1},
                        .offset = b->g->offset + r->at[param] + first};
    return r->there[param];
}

/* ---- Gradients ---- */

static void send(km_ctx *ctx, km_reducer *r, bucket *b) {
    b->work = km_comm_start(ctx, r->comm, KM_COMM_REDUCE_SCATTER, b->g);
}

/* Takes parameter i's gradient over and, with the last one of a bucket, sends that off. */
static void take(km_ctx *ctx, km_reducer *r, int i) {
    km_tensor *g = km_grad(r->param[i]->t);
    bucket *b = &r->bucket[r->home[i]];
    km_tensor to = place(r, i, b->g);
    int mark = ctx->n_step;
    if (r->came[i] || km_failed(ctx)) return;
    r->came[i] = true;
    r->there[i] = g != NULL;
    if (g) {
        km_copy_into(ctx, g, &to);
        km_zero_grad(ctx, &r->param[i]->t, 1);
    } else {
        km_tensor *zero = km_fill_on(ctx, km_tensor_dev(b->g), to.dtype, to.shape, 0);
        if (zero) km_copy_into(ctx, zero, &to);
    }
    km_step_drop(ctx, mark, NULL, 0);
    if (--b->waiting == 0 && !km_failed(ctx)) send(ctx, r, b);
}

static void ready(void *user, km_ctx *ctx, km_tensor *parameter) {
    km_reducer *r = user;
    for (int i = r->n - 1; i >= 0; i--) /* they come from the end */
        if (r->param[i]->t == parameter && km_grad(parameter)) {
            take(ctx, r, i);
            return;
        }
}

/* Before a step; what a failed one left under way is waited for first. */
static void reset(km_reducer *r) {
    memset(r->came, 0, (size_t)r->n * sizeof *r->came);
    for (int k = 0; k < r->n_buckets; k++) {
        r->bucket[k].waiting = r->bucket[k].end - r->bucket[k].first;
        if (r->bucket[k].work) km_comm_wait(r->ctx, r->comm, r->bucket[k].work);
        r->bucket[k].work = NULL;
    }
}

void km_reducer_arm(km_ctx *ctx, km_reducer *r) {
    reset(r);
    r->armed = true;
    km_on_gradient(ctx, ready, r);
}

km_status km_reducer_finish(km_ctx *ctx, km_reducer *r) {
    if (!r->armed) reset(r);
    km_on_gradient(ctx, NULL, NULL);
    r->armed = false;
    for (int i = r->n - 1; i >= 0 && !km_failed(ctx); i--) {
        if (r->came[i] && km_grad(r->param[i]->t))
            return km_fail(ctx, KM_ERR_STATE,
                           "optimizer: a gradient of %.200s came after it was sent to other ranks",
                           r->param[i]->name);
        take(ctx, r, i);
    }
    for (int k = 0; k < r->n_buckets; k++) {
        bucket *b = &r->bucket[k];
        if (b->work) km_comm_wait(ctx, r->comm, b->work);
        b->work = NULL;
    }
    return km_ctx_status(ctx);
}

km_tensor *km_reducer_sums(km_ctx *ctx, km_reducer *r, km_tensor *sums) {
    km_tensor *total = km_sum(ctx, sums, NULL, 0, true);
    km_tensor slot = {.ctx = ctx,
                      .storage = r->sums->storage,
                      .dtype = KM_F32,
                      .shape = KM_SHAPE(1),
                      .stride = {1},
                      .offset = r->sums->offset + km_comm_rank(r->comm)};
    if (!total || km_copy_into(ctx, total, &slot) != KM_OK) return NULL;
    return km_comm_run(ctx, r->comm, KM_COMM_ALL_GATHER, r->sums) == KM_OK ? r->sums : NULL;
}

/* ---- Parameters and state ---- */

km_status km_reducer_share(km_ctx *ctx, km_reducer *r) {
    for (int k = 0; k < r->n_buckets && !km_failed(ctx); k++)
        r->bucket[k].work = km_comm_start(ctx, r->comm, KM_COMM_ALL_GATHER, r->bucket[k].p);
    for (int k = 0; k < r->n_buckets; k++) {
        if (r->bucket[k].work) km_comm_wait(ctx, r->comm, r->bucket[k].work);
        r->bucket[k].work = NULL;
    }
    return km_ctx_status(ctx);
}

km_status km_reducer_join(km_ctx *ctx, km_reducer *r, int param, float *data) {
    for (int rank = 0; rank < km_comm_size(r->comm) && !km_failed(ctx); rank++) {
        int64_t first, count;
        owned(r, param, rank, &first, &count);
        if (count > 0)
            km_comm_broadcast(r->comm, rank, data + first, (size_t)count * sizeof *data,
                              &ctx->error);
    }
    return km_ctx_status(ctx);
}
