/* Attention backward. Scores are computed again from q, k and lse, a block of (queries, keys) at a
 * time; lanes are keys here, so that one layout of the weights p and the score gradients ds serves
 * all three products:
 *
 *   dv^T (D, keys) += do^T p      dk^T (D, keys) += q^T ds      dq (queries, D) += ds k
 *
 * A task owns a range of keys of one key head: it alone adds to their dk and dv. It sums dq in a
 * buffer of its own; where a head's keys are cut into several tasks these buffers are added up in
 * order afterwards. Nothing depends on which thread is faster. */
#include "backend/cpu/attention.h"
#include "base/util.h"
#include <math.h>

#define KEYS 128   /* of a block */
#define QUERIES 96 /* of a block */
#define STEP 2     /* tiles of queries that go on to the last key that one of them sees */

typedef struct attention_grad_job {
    const km_attention_call *a;
    const km_tensor *d_o, *q, *k, *v, *o, *lse, *dq, *dk, *dv;
    int64_t rows;   /* queries that share a key head: group * Tq */
    int64_t parts;  /* tasks to a key head */
    int64_t span;   /* keys of a part, a multiple of KEYS but for the last */
    bool straight;  /* dq needs no sums apart: one task to a head, and no query sees none */
    float *delta;   /* (B, Hkv, rows): do . o */
    float *dq_sums; /* (one per thread, or per task when parts > 1; rows, D) */
    size_t dq_floats;
    float *scratch;
    size_t floats; /* of scratch, for each thread */
} attention_grad_job;

/* What a task works with. */
typedef struct grad_block {
    int64_t b, hk;
    float *dq;               /* (rows, D); NULL: straight into its tensor */
    float *kt, *vt;          /* k^T and v^T in panels: (panels, D, nr) */
    float *kp;               /* k in panels of columns: (D / nr, keys, nr) */
    float *dkt, *dvt;        /* like kt */
    float *s, *dp;           /* (QUERIES, ld) */
    int64_t ld;              /* KEYS, or less where there are few: what is at hand stays near */
    float *q_copy, *do_copy; /* (QUERIES, D), for 16-bit operands; the first also dk, dv rows */
} grad_block;

static int64_t up(int64_t x, int64_t unit) { return km_ceil_div(x, unit) * unit; }
static size_t pad(int64_t floats) { return ((size_t)floats + 15) & ~(size_t)15; }

/* The block's buffers in `at`, or their total size when at is NULL. */
static size_t lay_out(const km_attention_call *a, grad_block *t, float *at) {
    int64_t nr = a->gemm->nr, wide = km_ceil_div(KEYS, nr) * nr * a->D;
    int64_t cols = km_ceil_div(a->D, nr) * nr, rows = KEYS > QUERIES ? KEYS : QUERIES;
    float **part[] = {&t->kt, &t->vt, &t->dkt,    &t->dvt,    &t->kp,
                      &t->s,  &t->dp, &t->q_copy, &t->do_copy};
    int64_t size[] = {wide,           wide,           wide,        wide,          cols * KEYS,
                      QUERIES * KEYS, QUERIES * KEYS, rows * a->D, QUERIES * a->D};
    size_t used = 0;
    for (int i = 0; i < 9; i++) {
        if (at) *part[i] = at + used;
        used += pad(size[i]);
    }
    return used;
}

/* ---- delta = do . o ---- */

static void run_delta(void *arg, int64_t begin, int64_t end, int worker) {
    const attention_grad_job *j = arg;
    const km_attention_call *a = j->a;
    for (int64_t i = begin; i < end; i++) { /* (b, h) */
        int64_t b = i / a->H, h = i % a->H;
        a->kern->row_dots(j->delta + i * a->Tq, km_attention_vec(j->d_o, b, h, 0),
                          j->d_o->stride[2], km_attention_vec(j->o, b, h, 0), j->o->stride[2],
                          a->dtype, a->Tq, a->D);
    }
}

/* ---- A block of queries against a block of keys ---- */

/* Of queries in order, the first that sees this key; n: none. */
static int64_t first_to_see(const int64_t *seen, int64_t n, int64_t key) {
    int64_t i = 0;
    while (i < n && seen[i] <= key) i++;
    return i;
}

/* Queries t .. t + n - 1 of head h against keys first .. first + keys - 1. */
static void meet(const attention_grad_job *j, const grad_block *x, int64_t h, int64_t t, int64_t n,
                 int64_t first, int64_t keys) {
    const km_attention_call *a = j->a;
    const km_gemm_kernels *g = a->gemm;
    int64_t nr = g->nr, D = a->D, ld = x->ld, ldq, ldo, seen[QUERIES];
    float lse[QUERIES];
    const float *q = km_attention_rows(a, j->q, x->b, h, t, n, x->q_copy, &ldq);
    const float *d_o = km_attention_rows(a, j->d_o, x->b, h, t, n, x->do_copy, &ldo);
    const float *delta = j->delta + (x->b * a->H + h) * a->Tq + t;
    const float *all =
        (const float *)km_tensor_ptr(j->lse) + x->b * j->lse->stride[0] + h * j->lse->stride[1];
    for (int64_t i = 0; i < n; i++) {
        seen[i] = km_attention_seen(a, t + i);
        lse[i] = all[(t + i) * j->lse->stride[2]];
    }
    keys = km_min64(keys, seen[n - 1] - first); /* later queries see no less */
    for (int64_t c = 0; c < keys; c += nr) {
        int64_t width = km_min64(nr, up(keys - c, g->vl));
        float *s = x->s + c, *dp = x->dp + c;
        for (int64_t i = first_to_see(seen, n, first + c), rows; i < n; i += rows) {
            rows = km_min64(a->causal ? STEP * g->mr : n, n - i);
            int64_t sees = km_min64(width, up(seen[i + rows - 1] - first - c, g->vl));
            g->panel(rows, sees, D, q + i * ldq, ldq, 1, x->kt + c * D, nr, NULL, s + i * ld, ld,
                     a->scale, 0);
            g->panel(rows, sees, D, d_o + i * ldo, ldo, 1, x->vt + c * D, nr, NULL, dp + i * ld, ld,
                     1, 0);
        }
        a->kern->grad_scores(s, dp, ld, n, first + c, width, seen, lse, delta);
        int64_t half = up(nr / 2, g->vl);
        for (int64_t k = 0, cols; k < width; k += cols) { /* fewer queries see the later keys */
            int64_t from = first_to_see(seen, n, first + c + k), to = c * D + k;
            cols = width - k;
            if (cols > half && first_to_see(seen, n, first + c + k + half) > from) cols = half;
            g->panel(D, cols, n - from, d_o + from * ldo, 1, ldo, s + from * ld + k, ld, NULL,
                     x->dvt + to, nr, 1, 1);
            g->panel(D, cols, n - from, q + from * ldq, 1, ldq, dp + from * ld + k, ld, NULL,
                     x->dkt + to, nr, a->scale, 1);
        }
    }
    /* Keys come in order: the first block of them begins dq. */
    bool begins = !x->dq && first == 0;
    int64_t ldd = x->dq ? D : j->dq->stride[2];
    float *dq = x->dq ? x->dq + ((h - x->hk * a->group) * a->Tq + t) * D
                      : km_attention_vec(j->dq, x->b, h, t);
    for (int64_t i = 0, rows; i < n; i += rows) {
        rows = km_min64(a->causal ? STEP * g->mr : n, n - i);
        int64_t sees = km_min64(keys, seen[i + rows - 1] - first);
        if (sees <= 0) continue;
        for (int64_t c = 0; c < D; c += nr)
            g->panel(rows, km_min64(nr, D - c), sees, x->dp + i * ld, ld, 1, x->kp + c * KEYS, nr,
                     NULL, dq + i * ldd + c, ldd, a->scale, begins ? 0 : 1);
    }
}

/* dk or dv of one block of keys, out of its panels. */
static void put_keys(const km_attention_call *a, const grad_block *x, const km_tensor *out,
                     const float *sums, int64_t first, int64_t keys) {
    static const float ones[64] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                   1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                   1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    bool straight = a->dtype == KM_F32;
    void *to = km_attention_vec(out, x->b, x->hk, first);
    float *rows = straight ? to : x->q_copy;
    int64_t nr = a->gemm->nr, ld = straight ? out->stride[2] : a->D;
    for (int64_t c = 0; c < keys; c += nr)
        a->kern->turn_back(rows + c * ld, ld, sums + c * a->D, a->D, km_min64(nr, keys - c), ones);
    if (!straight)
        a->gemm->finish(&(km_finish){.dtype = a->dtype}, rows, a->D, to, NULL, out->stride[2], keys,
                        a->D);
}

static void run_keys(const attention_grad_job *j, grad_block *x, int64_t first, int64_t keys) {
    const km_attention_call *a = j->a;
    int64_t D = a->D, nr = a->gemm->nr;
    const void *k = km_attention_vec(j->k, x->b, x->hk, first);
    const void *v = km_attention_vec(j->v, x->b, x->hk, first);
    size_t sums = sizeof(float) * (size_t)(km_ceil_div(keys, nr) * nr * D);
    a->gemm->pack_turned(x->kt, k, a->dtype, j->k->stride[2], D, keys);
    a->gemm->pack_turned(x->vt, v, a->dtype, j->v->stride[2], D, keys);
    for (int64_t c = 0; c < D; c += nr) {
        const void *col = (const char *)k + c * (int64_t)km_dtype_size(a->dtype);
        a->gemm->pack(x->kp + c * KEYS, col, a->dtype, j->k->stride[2], keys, km_min64(nr, D - c));
    }
    x->ld = km_min64(KEYS, up(keys, nr));
    memset(x->dkt, 0, sums);
    memset(x->dvt, 0, sums);
    int64_t start = 0; /* the first query that sees a key of the block */
    if (a->causal) start = first - (a->Tk - a->Tq);
    if (start < 0) start = 0;
    for (int64_t g = 0; g < a->group; g++)
        for (int64_t t = start; t < a->Tq; t += QUERIES)
            meet(j, x, x->hk * a->group + g, t, km_min64(QUERIES, a->Tq - t), first, keys);
    put_keys(a, x, j->dk, x->dkt, first, keys);
    put_keys(a, x, j->dv, x->dvt, first, keys);
}

/* ---- dq ---- */

static void put_queries(const attention_grad_job *j, int64_t head, const float *sums) {
    const km_attention_call *a = j->a;
    int64_t b = head / a->Hkv, hk = head % a->Hkv;
    for (int64_t g = 0; g < a->group; g++)
        a->gemm->finish(&(km_finish){.dtype = a->dtype}, sums + g * a->Tq * a->D, a->D,
                        km_attention_vec(j->dq, b, hk * a->group + g, 0), NULL, j->dq->stride[2],
                        a->Tq, a->D);
}

static void run_tasks(void *arg, int64_t begin, int64_t end, int worker) {
    const attention_grad_job *j = arg;
    const km_attention_call *a = j->a;
    grad_block x;
    lay_out(a, &x, j->scratch + (size_t)worker * j->floats);
    for (int64_t i = begin; i < end; i++) {
        int64_t head = i / j->parts, part = i % j->parts;
        x.b = head / a->Hkv;
        x.hk = head % a->Hkv;
        x.dq = NULL;
        if (!j->straight) {
            x.dq = j->dq_sums + (size_t)(j->parts > 1 ? i : worker) * j->dq_floats;
            memset(x.dq, 0, sizeof(float) * (size_t)(j->rows * a->D));
        }
        if (j->parts == 1) run_delta(arg, head * a->group, (head + 1) * a->group, worker);
        int64_t last = km_min64(a->Tk, (part + 1) * j->span);
        for (int64_t first = part * j->span; first < last; first += KEYS)
            run_keys(j, &x, first, km_min64(KEYS, last - first));
        if (j->parts == 1 && !j->straight) put_queries(j, head, x.dq);
    }
}

/* Adds up the parts' dq of key heads begin .. end - 1. */
static void join_parts(void *arg, int64_t begin, int64_t end, int worker) {
    const attention_grad_job *j = arg;
    for (int64_t head = begin; head < end; head++) {
        float *sum = j->dq_sums + (size_t)(head * j->parts) * j->dq_floats;
        for (int64_t p = 1; p < j->parts; p++) {
            const float *part = sum + (size_t)p * j->dq_floats;
            for (int64_t i = 0; i < j->rows * j->a->D; i++) sum[i] += part[i];
        }
        put_queries(j, head, sum);
    }
}

km_status km_cpu_attention_grad(km_ctx *ctx, const km_call *c) {
    km_attention_call a;
    if (!km_attention_describe(&a, c, 1)) return KM_ERR_UNSUPPORTED;
    attention_grad_job j = {.a = &a,
                            .d_o = c->in[0],
                            .q = c->in[1],
                            .k = c->in[2],
                            .v = c->in[3],
                            .o = c->in[4],
                            .lse = c->in[5],
                            .dq = c->out[0],
                            .dk = c->out[1],
                            .dv = c->out[2],
                            .rows = a.group * a.Tq,
                            .parts = 1};
    int64_t heads = a.B * a.Hkv, threads = km_threads_count(ctx->threads);
    if (heads == 0) return KM_OK;

    /* Enough tasks that each thread gets about the same, though a causal mask makes them uneven. */
    int64_t blocks = km_ceil_div(a.Tk, KEYS);
    if (heads % threads && heads < 4 * threads)
        j.parts = km_min64(blocks, km_ceil_div(4 * threads, heads));
    if (j.parts < 1) j.parts = 1;
    j.span = km_ceil_div(blocks, j.parts) * KEYS;
    if (j.span > 0) j.parts = km_ceil_div(a.Tk, j.span);
    if (j.parts < 1) j.parts = 1;

    j.straight = j.parts == 1 && a.dtype == KM_F32 && a.Tk > 0 && (!a.causal || a.Tk >= a.Tq);
    j.dq_floats = j.straight ? 0 : pad(j.rows * a.D);
    j.floats = lay_out(&a, &(grad_block){0}, NULL);
    size_t delta = pad(a.B * a.H * a.Tq);
    size_t dq = j.dq_floats * (size_t)(j.parts > 1 ? heads * j.parts : threads);
    j.delta = km_ctx_scratch(ctx, sizeof(float) * (delta + dq + j.floats * (size_t)threads));
    if (!j.delta) return KM_ERR_MEMORY;
    j.dq_sums = j.delta + delta;
    j.scratch = j.dq_sums + dq;

    if (j.parts > 1)
        km_threads_for(ctx->threads, a.B * a.H, km_ceil_div(a.B * a.H, 2 * threads), run_delta, &j);
    km_threads_for(ctx->threads, heads * j.parts, 1, run_tasks, &j);
    if (j.parts > 1) km_threads_for(ctx->threads, heads, 1, join_parts, &j);
    return KM_OK;
}
