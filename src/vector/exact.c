/* Exact search. A block of rows times all queries gives inner products; from those, the norms make
 * distances, and each query keeps its nearest in a sorted list. */
#include "vector/exact.h"
#include "base/alloc.h"
#include "tensor/tensor.h"
#include "vector/index.h"
#include <math.h>
#include <string.h>

/* Rows that meet all queries at once: their products stay in the cache. */
enum { BLOCK = 4096, LEAST = 64, PRODUCTS = 1 << 19 };

typedef struct exact_hit {
    float dist;
    uint64_t id;
} exact_hit;

struct km_exact {
    km_ctx *ctx;
    km_metric metric;
    int64_t n, dim, k, block;
    km_tensor *queries;   /* kept: (n, dim) */
    float *norms;         /* (n) */
    exact_hit *best;      /* (n, k), sorted */
    int64_t *filled;      /* (n) */
    float *products;      /* (n, block) */
    float *row_norms;     /* (block) */
    const uint64_t *self; /* (n) or NULL */
};

static float square(const float *x, int64_t dim) {
    double sum = 0;
    for (int64_t j = 0; j < dim; j++) sum += (double)x[j] * x[j];
    return (float)sum;
}

km_exact *km_exact_new(km_ctx *ctx, const float *queries, int64_t n, int64_t dim, int64_t k,
                       km_metric metric, km_error *err) {
    km_exact *e = km_calloc(1, sizeof *e);
    float *copy = km_alloc(sizeof(float) * (size_t)(n * dim));
    if (e) {
        *e = (km_exact){.ctx = ctx, .metric = metric, .n = n, .dim = dim, .k = k};
        e->block = PRODUCTS / (n + 1) < LEAST   ? LEAST
                   : PRODUCTS / (n + 1) < BLOCK ? PRODUCTS / (n + 1)
                                                : BLOCK;
        e->norms = km_alloc(sizeof(float) * (size_t)n);
        e->best = km_alloc(sizeof(exact_hit) * (size_t)(n * k));
        e->filled = km_calloc((size_t)n, sizeof(int64_t));
        e->products = km_alloc(sizeof(float) * (size_t)(n * e->block));
        e->row_norms = km_alloc(sizeof(float) * (size_t)e->block);
    }
    bool ok = e && copy && e->norms && e->best && e->filled && e->products && e->row_norms;
    if (ok) {
        memcpy(copy, queries, sizeof(float) * (size_t)(n * dim));
        if (metric == KM_METRIC_COSINE) km_unit(copy, n, dim);
        for (int64_t i = 0; i < n; i++) e->norms[i] = square(copy + i * dim, dim);
        e->queries = km_keep_data(ctx, KM_F32, KM_SHAPE(n, dim), copy);
        km_step_end(ctx);
    }
    km_free(copy);
    if (ok && e->queries) return e;
    if (ok)
        km_error_set(err, km_ctx_status(ctx), "%s", km_ctx_error(ctx));
    else
        km_no_memory_for(err, "an exact search of %lld queries", (long long)n);
    km_exact_free(e);
    return NULL;
}

void km_exact_free(km_exact *e) {
    if (!e) return;
    km_release(e->queries);
    km_free(e->norms);
    km_free(e->best);
    km_free(e->filled);
    km_free(e->products);
    km_free(e->row_norms);
    km_free(e);
}

typedef struct exact_job {
    km_exact *e;
    int64_t n;
    uint64_t first;
    const uint64_t *ids; /* NULL: first, first + 1, ... */
} exact_job;

static void take(void *arg, int64_t begin, int64_t end, int worker) {
    const exact_job *j = arg;
    km_exact *e = j->e;
    (void)worker;
    for (int64_t q = begin; q < end; q++) {
        exact_hit *best = e->best + q * e->k;
        int64_t have = e->filled[q];
        const float *p = e->products + q * j->n;
        for (int64_t i = 0; i < j->n; i++) {
            float d = e->metric == KM_METRIC_IP       ? -p[i]
                      : e->metric == KM_METRIC_COSINE ? 1 - p[i]
                                                      : e->norms[q] - 2 * p[i] + e->row_norms[i];
            /* Ids come ascending, so at equal distance the one that is there stays before it. */
            if (!(d < INFINITY) || (have == e->k && !(d < best[have - 1].dist))) continue;
            uint64_t id = j->ids ? j->ids[i] : j->first + (uint64_t)i;
            if (e->self && id == e->self[q]) continue;
            int64_t at = have < e->k ? have : have - 1;
            for (; at > 0 && d < best[at - 1].dist; at--) best[at] = best[at - 1];
            best[at] = (exact_hit){d, id};
            if (have < e->k) have++;
        }
        e->filled[q] = have;
    }
}

void km_exact_pass_over(km_exact *e, const uint64_t *self) { e->self = self; }

static km_status feed(km_exact *e, float *rows, int64_t n, uint64_t first, const uint64_t *ids,
                      km_error *err) {
    if (e->metric == KM_METRIC_COSINE) km_unit(rows, n, e->dim);
    for (int64_t i = 0; i < n; i += e->block) {
        int64_t m = n - i < e->block ? n - i : e->block;
        const float *x = rows + i * e->dim;
        for (int64_t k = 0; k < m; k++) e->row_norms[k] = square(x + k * e->dim, e->dim);
        km_tensor *t = km_from_data(e->ctx, KM_F32, KM_SHAPE(m, e->dim), x);
        km_tensor *p = km_matmul(e->ctx, e->queries, km_transpose(e->ctx, t, 0, 1));
        km_read(e->ctx, p, e->products, sizeof(float) * (size_t)(e->n * m));
        km_step_end(e->ctx);
        if (km_ctx_status(e->ctx) != KM_OK)
            return km_error_set(err, km_ctx_status(e->ctx), "%s", km_ctx_error(e->ctx));
        exact_job j = {e, m, first + (uint64_t)i, ids ? ids + i : NULL};
        km_threads_for(e->ctx->threads, e->n, 4, take, &j);
    }
    return KM_OK;
}

km_status km_exact_feed(km_exact *e, float *rows, int64_t n, uint64_t first, km_error *err) {
    return feed(e, rows, n, first, NULL, err);
}

km_status km_exact_feed_ids(km_exact *e, float *rows, const uint64_t *ids, int64_t n,
                            km_error *err) {
    return feed(e, rows, n, 0, ids, err);
}

void km_exact_result(const km_exact *e, uint64_t *ids, float *dist) {
    for (int64_t q = 0; q < e->n; q++)
        for (int64_t i = 0; i < e->k; i++) {
            bool there = i < e->filled[q];
            ids[q * e->k + i] = there ? e->best[q * e->k + i].id : KM_NO_ID;
            dist[q * e->k + i] = there ? e->best[q * e->k + i].dist : INFINITY;
        }
}

double km_recall(const uint64_t *wanted, const uint64_t *found, int64_t n, int64_t stride,
                 int64_t k) {
    int64_t hits = 0, all = 0;
    for (int64_t q = 0; q < n; q++) {
        const uint64_t *w = wanted + q * stride, *f = found + q * stride;
        for (int64_t i = 0; i < k; i++) {
            if (w[i] == KM_NO_ID) continue;
            all++;
            for (int64_t j = 0; j < k; j++)
                if (f[j] == w[i]) {
                    hits++;
                    break;
                }
        }
    }
    return all ? (double)hits / (double)all : 1;
}
