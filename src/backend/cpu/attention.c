/* Attention forward. The work is cut into tasks of a few panels of queries that share their keys;
 * a task walks over the keys once, a block at a time, and keeps a running maximum, sum and weighted
 * sum of values for each query. Query heads that share a key head count as more queries. */
#include "backend/cpu/attention.h"
#include "backend/cpu/cpu.h"
#include "base/util.h"
#include <math.h>

#define KEYS 96    /* of a block: a multiple of every tile's rows */
#define PANELS 4   /* of a task at most */
#define STEP 2     /* tiles of keys that begin at the first query that sees one of them */
#define FEW_ROWS 4 /* up to here a query's weights are computed by dot products */

/* ---- Choosing kernels ---- */

extern const km_attention_kernels km_attention_kernels_base;
#ifndef KM_ISA_ONLY_BASE
extern const km_attention_kernels KM_OF_AVX2(km_attention_kernels),
    KM_OF_AVX512(km_attention_kernels);
#endif

const km_attention_kernels *km_attention_kernels_of(km_isa isa) {
    if (isa > km_cpu_isa()) return NULL;
#ifdef KM_ISA_ONLY_BASE
    return &km_attention_kernels_base;
#else
    static const km_attention_kernels *const tables[KM_ISA_COUNT] = {
        &km_attention_kernels_base, &KM_OF_AVX2(km_attention_kernels),
        &KM_OF_AVX512(km_attention_kernels), &KM_OF_AVX512(km_attention_kernels)};
    return tables[isa];
#endif
}

bool km_attention_describe(km_attention_call *a, const km_call *c, int first_in) {
    const km_tensor *q = c->in[first_in], *k = c->in[first_in + 1];
    km_dtype d = q->dtype;
    if (d != KM_F32 && d != KM_F16 && d != KM_BF16) return false;
    *a = (km_attention_call){
        .B = q->shape.dim[0],
        .H = q->shape.dim[1],
        .Hkv = k->shape.dim[1],
        .Tq = q->shape.dim[2],
        .Tk = k->shape.dim[2],
        .D = q->shape.dim[3],
        .causal = c->p->causal,
        .scale = (float)c->p->f[KM_F_SCALE],
        .dtype = d,
        .gemm = km_gemm_kernels_of(km_gemm_isa()),
        .kern = km_attention_kernels_of(km_gemm_isa()),
    };
    a->group = a->Hkv > 0 ? a->H / a->Hkv : 0;
    return true;
}

/* ---- A task ---- */

typedef struct attention_job {
    const km_attention_call *a;
    const km_call *c;
    int64_t rows;   /* queries that share a key head: group * Tq */
    int64_t panels; /* of a task */
    int64_t tasks;  /* to a key head */
    float *scratch;
    size_t floats; /* of scratch, for each thread */
} attention_job;

/* A panel's running state; lane i is query row + i of the rows that share the key head. */
typedef struct attention_panel {
    int64_t row, lanes;
    int64_t seen_most; /* keys, by any lane */
    int64_t seen_least;
    float *q;         /* (D, nr) */
    float *acc;       /* (D, nr) */
    float *max, *sum; /* (nr) */
} attention_panel;

static size_t panel_floats(const km_attention_call *a) {
    return (size_t)a->gemm->nr * (2 * (size_t)a->D + 2);
}

static size_t task_floats(const attention_job *j) {
    const km_attention_call *a = j->a;
    size_t nr = (size_t)a->gemm->nr, d = (size_t)a->D;
    size_t floats = (size_t)j->panels * panel_floats(a);
    floats += KEYS * nr;    /* scores */
    floats += 2 * KEYS * d; /* keys and values in f32 */
    floats += nr * d;       /* rows of q, rows of o */
    return (floats + 15) & ~(size_t)15;
}

/* Lanes i .. i + n - 1 are queries t .. t + n - 1 of head h. */
typedef struct lane_run {
    int64_t i, n, h, t;
} lane_run;

/* The run that begins at lane i. */
static lane_run run_at(const km_attention_call *a, const attention_panel *p, int64_t hk,
                       int64_t i) {
    int64_t row = p->row + i, t = row % a->Tq;
    return (lane_run){i, km_min64(p->lanes - i, a->Tq - t), hk * a->group + row / a->Tq, t};
}

static void begin_panel(const attention_job *j, attention_panel *p, int64_t b, int64_t hk,
                        float *rows) {
    const km_attention_call *a = j->a;
    const km_tensor *q = j->c->in[0];
    int64_t nr = a->gemm->nr;
    p->seen_most = 0;
    p->seen_least = a->Tk;
    for (lane_run r = run_at(a, p, hk, 0); r.n > 0; r = run_at(a, p, hk, r.i + r.n)) {
        int64_t least = km_attention_seen(a, r.t), most = km_attention_seen(a, r.t + r.n - 1);
        const void *from = km_attention_vec(q, b, r.h, r.t);
        if (most > p->seen_most) p->seen_most = most;
        if (least < p->seen_least) p->seen_least = least;
        if (r.n == p->lanes)
            a->gemm->pack_turned(p->q, from, a->dtype, q->stride[2], a->D, r.n);
        else
            a->gemm->widen(rows + r.i * a->D, a->D, from, a->dtype, q->stride[2], r.n, a->D);
    }
    if (run_at(a, p, hk, 0).n < p->lanes)
        a->gemm->pack_turned(p->q, rows, KM_F32, a->D, a->D, p->lanes);
    memset(p->acc, 0, (size_t)(a->D * nr) * sizeof *p->acc);
    for (int64_t i = 0; i < nr; i++) {
        p->max[i] = -INFINITY;
        p->sum[i] = 0;
    }
}

/* Of lanes that see more and more keys, the first that sees key j of the block. */
static int64_t first_to_see(const int32_t *seen, int64_t lanes, int64_t j) {
    int64_t i = 0;
    while (i < lanes - 1 && seen[i] <= j) i++;
    return i;
}

/* Keys first .. first + n - 1, whose rows are k and v. */
static void meet_keys(const km_attention_call *a, attention_panel *p, int64_t first, int64_t n,
                      const float *k, int64_t ldk, const float *v, int64_t ldv, float *s) {
    int64_t nr = a->gemm->nr, vl = a->gemm->vl, vecs = km_ceil_div(p->lanes, vl);
    n = km_min64(n, p->seen_most - first);
    if (n <= 0) return;
    int32_t seen[64];
    bool masked = p->seen_least < first + n;
    if (masked) {
        for (int64_t i = 0, t = p->row % a->Tq; i < vecs * vl; i++) {
            int64_t sees = km_attention_seen(a, t) - first;
            seen[i] = (int32_t)(sees < 0 ? 0 : km_min64(sees, n));
            if (++t == a->Tq) t = 0;
        }
    }
    bool corner = masked && a->group == 1; /* lanes are queries in order */
    for (int64_t j = 0, rows; j < n; j += rows) {
        rows = km_min64(corner ? STEP * a->gemm->mr : n, n - j);
        int64_t from = corner ? first_to_see(seen, vecs * vl, j) / vl * vl : 0;
        a->gemm->panel(rows, vecs * vl - from, a->D, k + j * ldk, ldk, 1, p->q + from, nr, NULL,
                       s + j * nr + from, nr, a->scale, 0);
    }
    a->kern->soften(s, n, seen, masked, vecs, p->max, p->sum, p->acc, a->D);
    int64_t half = corner && vecs * vl > nr / 2 ? nr / 2 : 0, sees = half ? seen[half - 1] : n;
    if (sees == n) half = 0;
    if (half) a->gemm->panel(a->D, half, sees, v, 1, ldv, s, nr, NULL, p->acc, nr, 1, 1);
    a->gemm->panel(a->D, vecs * vl - half, n, v, 1, ldv, s + half, nr, NULL, p->acc + half, nr, 1,
                   1);
}

static void end_panel(const attention_job *j, attention_panel *p, int64_t b, int64_t hk,
                      float *rows) {
    const km_attention_call *a = j->a;
    const km_tensor *o = j->c->out[0], *lse = j->c->n_out > 1 ? j->c->out[1] : NULL;
    km_finish end = {.dtype = a->dtype};
    float by[64], log_sum[64];
    lane_run whole = run_at(a, p, hk, 0);
    bool straight = a->dtype == KM_F32 && whole.n == p->lanes;
    a->kern->settle(p->max, p->sum, a->gemm->nr, log_sum, by);
    a->kern->turn_back(straight ? km_attention_vec(o, b, whole.h, whole.t) : rows,
                       straight ? o->stride[2] : a->D, p->acc, a->D, p->lanes, by);
    for (lane_run r = whole; r.n > 0; r = run_at(a, p, hk, r.i + r.n)) {
        if (!straight)
            a->gemm->finish(&end, rows + r.i * a->D, a->D, km_attention_vec(o, b, r.h, r.t), NULL,
                            o->stride[2], r.n, a->D);
        if (!lse) continue;
        float *to = (float *)km_tensor_ptr(lse) + b * lse->stride[0] + r.h * lse->stride[1];
        for (int64_t i = 0; i < r.n; i++) to[(r.t + i) * lse->stride[2]] = log_sum[r.i + i];
    }
}

static void run_task(const attention_job *j, int64_t index, float *scratch) {
    const km_attention_call *a = j->a;
    const km_tensor *k = j->c->in[1], *v = j->c->in[2];
    /* The last queries of a causal call see the most: they come first. */
    int64_t part = j->tasks - 1 - index % j->tasks, head = index / j->tasks;
    int64_t b = head / a->Hkv, hk = head % a->Hkv, nr = a->gemm->nr;
    attention_panel panels[PANELS];
    int64_t count = 0, most = 0;

    float *s = scratch, *k_copy = s + KEYS * nr, *v_copy = k_copy + KEYS * a->D;
    float *rows = v_copy + KEYS * a->D, *next = rows + nr * a->D;
    for (int64_t row = part * j->panels * nr; count < j->panels && row < j->rows; row += nr) {
        attention_panel *p = &panels[count++];
        *p = (attention_panel){.row = row, .lanes = km_min64(nr, j->rows - row)};
        p->q = next;
        p->acc = p->q + a->D * nr;
        p->max = p->acc + a->D * nr;
        p->sum = p->max + nr;
        next = p->sum + nr;
        begin_panel(j, p, b, hk, rows);
        if (p->seen_most > most) most = p->seen_most;
    }
    for (int64_t first = 0; first < most; first += KEYS) {
        int64_t n = km_min64(KEYS, most - first), ldk, ldv;
        const float *kr = km_attention_rows(a, k, b, hk, first, n, k_copy, &ldk);
        const float *vr = km_attention_rows(a, v, b, hk, first, n, v_copy, &ldv);
        for (int64_t i = 0; i < count; i++) meet_keys(a, &panels[i], first, n, kr, ldk, vr, ldv, s);
    }
    for (int64_t i = 0; i < count; i++) end_panel(j, &panels[i], b, hk, rows);
}

static void run_tasks(void *arg, int64_t begin, int64_t end, int worker) {
    const attention_job *j = arg;
    for (int64_t i = begin; i < end; i++) run_task(j, i, j->scratch + (size_t)worker * j->floats);
}

static km_status attention(km_ctx *ctx, const km_call *c) {
    km_attention_call a;
    if (!km_attention_describe(&a, c, 0)) return KM_ERR_UNSUPPORTED;
    if (a.B * a.H * a.Tq == 0) return KM_OK;
    if (a.group * a.Tq <= FEW_ROWS) return km_cpu_attention_few(ctx, &a, c);
    int64_t threads = km_threads_count(ctx->threads);
    attention_job j = {.a = &a, .c = c, .rows = a.group * a.Tq, .panels = PANELS};
    do {
        j.tasks = km_ceil_div(j.rows, j.panels * a.gemm->nr);
    } while (a.B * a.Hkv * j.tasks < 4 * threads && (j.panels /= 2) > 0);
    if (j.panels == 0) j.panels = 1;
    j.floats = task_floats(&j);
    j.scratch = km_ctx_scratch(ctx, sizeof(float) * j.floats * (size_t)threads);
    if (!j.scratch) return KM_ERR_MEMORY;
    km_threads_for(ctx->threads, a.B * a.Hkv * j.tasks, 1, run_tasks, &j);
    return KM_OK;
}

void km_cpu_register_attention(km_kernel *k) {
    k[KM_OP_ATTENTION] = attention;
    k[KM_OP_ATTENTION_GRAD] = km_cpu_attention_grad;
}
