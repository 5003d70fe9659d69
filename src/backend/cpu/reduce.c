/* Reductions of f32, f16 and bf16. Along rows when a reduced axis is the dense one, down columns
 * when a kept one is. Blocks are reduced in f32 (simd/reduce.c) and merged in double. Where there
 * are few results the reduced elements are cut into chunks too, by sizes alone, and the chunks'
 * states are merged in order: same bits for any number of threads. */
#include "backend/cpu/reduce.h"
#include "backend/cpu/cast.h"
#include "backend/cpu/simd/reduce.h"
#include "backend/cpu/stage.h"
#include "backend/cpu/walk.h"
#include <math.h>

#define FEW 16 /* results: below, chunks of one result go to several threads */
#define MAX_CHUNKS 64
#define MIN_CHUNK 32768 /* elements */
#define ROW_BLOCK 4096  /* elements reduced at once where they lie dense */
#define COLUMN_ROWS 32  /* rows reduced at once */
#define STAGED_ROWS 8   /* likewise, when they are converted on the way */

/* ---- What is known of some elements, and merging two of it ---- */

typedef struct state {
    double a, b; /* as in simd/reduce.h; var: the mean and the sum of squares about it */
    int64_t n, index;
} state;

static state from_block(km_op op, km_block b, int64_t n, int64_t at) {
    state s = {.a = (double)b.a, .b = (double)b.b, .n = n};
    if (op == KM_OP_ARGMAX) s.index = at + (int64_t)b.b;
    if (op == KM_OP_VAR) { /* from the rounded mean to the true one */
        double off = (double)b.c / (double)n;
        s.a += off;
        s.b -= off * (double)b.c;
        if (s.b < 0) s.b = 0;
    }
    return s;
}

static void merge(km_op op, state *s, const state *t) {
    if (t->n == 0) return;
    if (s->n == 0) {
        *s = *t;
        return;
    }
    double n = (double)(s->n + t->n), d = t->a - s->a;
    bool greater = t->a > s->a || (isnan(t->a) && !isnan(s->a));
    switch (op) {
    case KM_OP_VAR: /* Chan's rule */
        s->b += t->b + d * d * ((double)s->n * (double)t->n / n);
        s->a += d * ((double)t->n / n);
        break;
    case KM_OP_LOGSUMEXP:
        if (greater) {
            s->b = t->b + (s->b > 0 ? s->b * (double)expf((float)-d) : 0);
            s->a = t->a;
        } else if (t->b > 0) {
            s->b += t->b * (double)expf((float)d);
        }
        break;
    case KM_OP_MAX:
    case KM_OP_ARGMAX:
        if (greater) {
            s->a = t->a;
            s->index = t->index;
        }
        break;
    default: s->a += t->a; break;
    }
    s->n += t->n;
}

/* ---- The job ---- */

typedef struct reduce_job {
    const km_call *c;
    km_op op;
    km_dtype dtype;
    int64_t size;
    const char *x;
    km_reduce_axes kept, reduced;
    int64_t chunk, chunks; /* reduced elements (rows, for columns) per chunk, and how many */
    int64_t col_blocks;    /* columns only: blocks of KM_STAGE along the last kept axis */
    state *states;         /* of all chunks, when there is more than one */
} reduce_job;

/* What a result is, of so many elements. Over none: 0, NaN, NaN, 0, -inf, -inf. */
static double value(const reduce_job *j, const state *s) {
    double n = (double)j->reduced.count;
    switch (j->op) {
    case KM_OP_MEAN: return s->a / n;
    case KM_OP_VAR: return s->n ? s->b / fmax(n - (double)j->c->p->n[KM_N_CORRECTION], 0) : NAN;
    case KM_OP_MAX: return s->n ? s->a : -INFINITY;
    case KM_OP_LOGSUMEXP: return !s->n ? -INFINITY : isfinite(s->a) ? s->a + log(s->b) : s->a;
    default: return s->a;
    }
}

/* Results out_at and on, `stride` apart; at most KM_STAGE. */
static void finish(const reduce_job *j, const state *s, int64_t out_at, int64_t stride, int64_t n) {
    const km_tensor *out = j->c->out[0];
    char *p = (char *)km_tensor_ptr(out) + out_at * (int64_t)km_dtype_size(out->dtype);
    double v[KM_STAGE];
    if (j->op == KM_OP_ARGMAX) { /* over none: 0 */
        for (int64_t i = 0; i < n; i++) ((int64_t *)(void *)p)[i * stride] = s[i].index;
        return;
    }
    for (int64_t i = 0; i < n; i++) v[i] = value(j, &s[i]);
    km_cast_doubles(out->dtype, p, stride, v, n);
}

/* ---- Along rows ---- */

/* Elements [at, at + n) of the reduced ones, seen from base, as contiguous f32. */
static const float *gather(const reduce_job *j, const char *base, int64_t at, int64_t n,
                           float *buf) {
    const km_reduce_axes *r = &j->reduced;
    int64_t inner = r->dim[r->n - 1], stride = r->x[r->n - 1], done = 0;
    while (done < n) {
        int64_t col = (at + done) % inner, m = inner - col < n - done ? inner - col : n - done;
        const char *p = base + km_reduce_at(r, at + done, NULL) * j->size;
        const float *v = km_stage_in(j->dtype, p, stride, m, buf + done);
        if (m == n) return v;
        if (v != buf + done) memcpy(buf + done, v, (size_t)m * sizeof *v);
        done += m;
    }
    return buf;
}

static state reduce_elements(const reduce_job *j, const char *base, int64_t begin, int64_t end) {
    const km_reduce_axes *r = &j->reduced;
    bool dense = j->dtype == KM_F32 && r->n == 1 && r->x[0] == 1;
    int64_t step = dense ? ROW_BLOCK : KM_STAGE;
    state s = {0};
    float buf[KM_STAGE];
    for (int64_t at = begin; at < end; at += step) {
        int64_t n = end - at < step ? end - at : step;
        const float *x =
            dense ? (const float *)(const void *)base + at : gather(j, base, at, n, buf);
        state t = from_block(j->op, km_simd_reduce()->row[j->op](x, n), n, at);
        merge(j->op, &s, &t);
    }
    return s;
}

static void row_items(void *arg, int64_t begin, int64_t end, int worker) {
    const reduce_job *j = arg;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        int64_t result = i / j->chunks, first = i % j->chunks * j->chunk, out_at;
        int64_t last = first + j->chunk < j->reduced.count ? first + j->chunk : j->reduced.count;
        int64_t x_at = km_reduce_at(&j->kept, result, &out_at);
        const char *base = j->x ? j->x + x_at * j->size : NULL; /* an empty x has no memory */
        state s = reduce_elements(j, base, first, last);
        if (j->chunks == 1)
            finish(j, &s, out_at, 1, 1);
        else
            j->states[i] = s;
    }
}

static void along_rows(km_ctx *ctx, reduce_job *j) {
    int64_t results = j->kept.count, count = j->reduced.count;
    j->chunk = count > 0 ? count : 1;
    if (results < FEW && count > MIN_CHUNK) {
        int64_t share = (count + MAX_CHUNKS - 1) / MAX_CHUNKS;
        share = (share + ROW_BLOCK - 1) / ROW_BLOCK * ROW_BLOCK;
        j->chunk = share > MIN_CHUNK ? share : MIN_CHUNK;
    }
    j->chunks = count > 0 ? (count + j->chunk - 1) / j->chunk : 1;
    state states[FEW * MAX_CHUNKS];
    j->states = states;
    int64_t items = results * j->chunks, cost = j->op == KM_OP_LOGSUMEXP ? 8 : 2;
    km_threads_for(ctx->threads, items, km_cpu_grain(ctx, items, j->chunk * cost + 200), row_items,
                   j);
    if (j->chunks == 1) return;
    for (int64_t r = 0; r < results; r++) {
        state *s = &states[r * j->chunks];
        int64_t out_at;
        km_reduce_at(&j->kept, r, &out_at);
        for (int64_t k = 1; k < j->chunks; k++) merge(j->op, s, &s[k]);
        finish(j, s, out_at, 1, 1);
    }
}

/* ---- Down columns ---- */

/* Rows [begin, end) of `cols` columns from base on, merged into s[0 .. cols). */
static void reduce_rows(const reduce_job *j, const char *base, int64_t begin, int64_t end,
                        int64_t cols, state *s) {
    int64_t stride = j->kept.x[j->kept.n - 1];
    bool dense = j->dtype == KM_F32 && stride == 1;
    int step = dense ? COLUMN_ROWS : STAGED_ROWS;
    float buf[STAGED_ROWS][KM_STAGE], a[KM_STAGE], b[KM_STAGE], c[KM_STAGE];
    const float *rows[COLUMN_ROWS];
    memset(b, 0, sizeof b); /* not every op makes all three */
    memset(c, 0, sizeof c);
    for (int64_t at = begin; at < end; at += step) {
        int n = (int)(end - at < step ? end - at : step);
        for (int r = 0; r < n; r++) {
            const char *p = base + km_reduce_at(&j->reduced, at + r, NULL) * j->size;
            rows[r] = dense ? (const float *)(const void *)p
                            : km_stage_in(j->dtype, p, stride, cols, buf[r]);
        }
        km_simd_reduce()->columns[j->op](rows, n, cols, a, b, c);
        for (int64_t k = 0; k < cols; k++) {
            state t = from_block(j->op, (km_block){a[k], b[k], c[k]}, n, at);
            merge(j->op, &s[k], &t);
        }
    }
}

/* Columns of block i: where they begin among the results, and how many. */
static int64_t column_block(const reduce_job *j, int64_t i, int64_t *first) {
    int64_t width = j->kept.dim[j->kept.n - 1], col = i % j->col_blocks * KM_STAGE;
    *first = i / j->col_blocks * width + col;
    return width - col < KM_STAGE ? width - col : KM_STAGE;
}

static void finish_columns(const reduce_job *j, int64_t first, int64_t cols, const state *s) {
    int64_t out_at, stride = j->kept.out[j->kept.n - 1];
    km_reduce_at(&j->kept, first, &out_at);
    finish(j, s, out_at, stride, cols);
}

static void column_items(void *arg, int64_t begin, int64_t end, int worker) {
    const reduce_job *j = arg;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        int64_t first, cols = column_block(j, i / j->chunks, &first);
        int64_t row = i % j->chunks * j->chunk;
        int64_t last = row + j->chunk < j->reduced.count ? row + j->chunk : j->reduced.count;
        const char *base = j->x + km_reduce_at(&j->kept, first, NULL) * j->size;
        state own[KM_STAGE], *s = j->chunks == 1 ? own : j->states + i * KM_STAGE;
        memset(s, 0, (size_t)cols * sizeof *s);
        reduce_rows(j, base, row, last, cols, s);
        if (j->chunks == 1) finish_columns(j, first, cols, s);
    }
}

static km_status down_columns(km_ctx *ctx, reduce_job *j) {
    int64_t width = j->kept.dim[j->kept.n - 1], rows = j->reduced.count;
    int64_t block = width < KM_STAGE ? width : KM_STAGE;
    j->col_blocks = (width + KM_STAGE - 1) / KM_STAGE;
    int64_t blocks = j->kept.count / width * j->col_blocks;
    j->chunk = rows;
    if (blocks < FEW && rows * block > MIN_CHUNK) {
        int64_t share = (rows + MAX_CHUNKS - 1) / MAX_CHUNKS, least = MIN_CHUNK / block + 1;
        j->chunk = share > least ? share : least;
        j->chunk = (j->chunk + COLUMN_ROWS - 1) / COLUMN_ROWS * COLUMN_ROWS;
    }
    j->chunks = (rows + j->chunk - 1) / j->chunk;
    int64_t items = blocks * j->chunks, cost = j->op == KM_OP_LOGSUMEXP ? 10 : 3;
    if (j->chunks > 1) {
        j->states = km_ctx_scratch(ctx, (size_t)(items * KM_STAGE) * sizeof *j->states);
        if (!j->states) return ctx->error.code;
    }
    km_threads_for(ctx->threads, items, km_cpu_grain(ctx, items, j->chunk * block * cost),
                   column_items, j);
    if (j->chunks == 1) return KM_OK;
    for (int64_t i = 0; i < blocks; i++) {
        int64_t first, cols = column_block(j, i, &first);
        state *s = j->states + i * j->chunks * KM_STAGE;
        for (int64_t k = 1; k < j->chunks; k++)
            for (int64_t col = 0; col < cols; col++) merge(j->op, &s[col], &s[k * KM_STAGE + col]);
        finish_columns(j, first, cols, s);
    }
    return KM_OK;
}

static km_status reduce(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *out = c->out[0];
    if (!km_stageable(x->dtype)) return km_cpu_reduce_integers(ctx, c);
    if (c->op == KM_OP_ARGMAX ? out->dtype != KM_I64 : !km_stageable(out->dtype))
        return KM_ERR_UNSUPPORTED;
    reduce_job j = {.c = c,
                    .op = c->op,
                    .dtype = x->dtype,
                    .size = (int64_t)km_dtype_size(x->dtype),
                    .x = x->storage->data ? km_tensor_ptr(x) : NULL};
    km_reduce_plan(c, &j.kept, &j.reduced);
    if (j.kept.count == 0) return KM_OK;
    int64_t kept_step = j.kept.x[j.kept.n - 1], reduced_step = j.reduced.x[j.reduced.n - 1];
    bool columns = j.reduced.count > 1 && j.kept.count > 1 && kept_step > 0 &&
                   (reduced_step == 0 || kept_step < reduced_step);
    if (columns) return down_columns(ctx, &j);
    along_rows(ctx, &j);
    return KM_OK;
}

void km_cpu_register_reduce(km_kernel *k) {
    const km_reduce_rows *rows = km_simd_reduce();
    for (int op = 0; op < KM_OP_COUNT; op++)
        if (rows->row[op]) k[op] = reduce;
}
