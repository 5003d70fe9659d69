/* Exact search. On the host, rows and queries meet as bytes first, whose products tell within known
 * bounds who may be near; only those are compared as they are. On a device a block of rows times all
 * queries gives inner products, from which norms make distances. Either way each query keeps its
 * nearest in a sorted list. */
#include "vector/exact.h"
#include "backend/cpu/codes.h"
#include "backend/cpu/quant_kernels.h"
#include "base/alloc.h"
#include "tensor/tensor.h"
#include "vector/index.h"
#include <math.h>
#include <string.h>

/* Rows that meet all queries at once: their products, or their codes, stay in the cache. */
enum { BLOCK = 4096, LEAST = 64, PRODUCTS = 1 << 19, CODES = 1 << 19 };
#define GUARD 2e-6f /* of what is added up: more than f32 may round it by */
#define TIED 1e-6f  /* of the distance: as near, but for rounding */

typedef struct exact_hit {
    float dist;
    uint64_t id;
} exact_hit;

struct km_exact {
    km_ctx *ctx;
    km_metric metric;
    int64_t n, dim, k, block;
    float *queries;       /* (n, dim) */
    exact_hit *best;      /* (n, k), sorted */
    int64_t *filled;      /* (n) */
    const uint64_t *self; /* (n) or NULL */

    /* On a device. */
    km_tensor *kept;  /* (n, dim) */
    float *norms;     /* (n) */
    float *products;  /* (n, block) */
    float *row_norms; /* (block) */

    /* On the host, where a distance is  own + rest of the row - times <row - mean, query - mean>:
     * about the queries' mean rows are shorter, and bytes tell more of them. */
    const km_quant_kernels *bytes;
    float *mean; /* (dim) */
    float *own;  /* (n) */
    float times;
    km_near_query *query; /* (n, rounded up to KM_NEAR_QUERIES) */
    int8_t *query_codes;
    km_near_tile *tile; /* (block / KM_NEAR_ROWS) */
    uint8_t *codes;     /* of the tiles */
};

static float square(const float *x, int64_t dim) {
    double sum = 0;
    for (int64_t j = 0; j < dim; j++) sum += (double)x[j] * x[j];
    return (float)sum;
}

static int64_t groups(const km_exact *e) { return (e->n + KM_NEAR_QUERIES - 1) / KM_NEAR_QUERIES; }

/* ---- Queries ---- */

/* Query i as codes; `tile` and x (dim) are room. */
static void code_query(km_exact *e, int64_t i, km_near_tile *tile, float *x) {
    int64_t bytes = 4 * tile->steps;
    const float *query = e->queries + i * e->dim;
    km_near_query *q = &e->query[i];
    int8_t *code = e->query_codes + bytes * i;
    double of_mean = 0, mean = 0;
    for (int64_t j = 0; j < e->dim; j++) {
        x[j] = query[j] - e->mean[j];
        of_mean += (double)query[j] * e->mean[j];
        mean += (double)e->mean[j] * e->mean[j];
    }
    e->own[i] = e->metric == KM_METRIC_L2 ? square(x, e->dim)
                                          : (float)(mean - of_mean) + (e->metric != KM_METRIC_IP);
    e->bytes->near_row(x, e->dim, 0, tile);
    *q = (km_near_query){.code = code,
                         .scale = e->times * tile->scale[0],
                         .lost = e->times * tile->lost[0] * (1 + GUARD),
                         .size = e->times * (tile->size[0] + tile->lost[0]) * (1 + GUARD),
                         .limit = -INFINITY};
    for (int64_t j = 0; j < bytes; j++) {
        code[j] = (int8_t)(tile->code[j / 4 * 4 * KM_NEAR_ROWS + j % 4] - e->bytes->near_offset);
        q->sum += code[j];
    }
}

static bool begin_host(km_exact *e) {
    int64_t steps = (e->dim + 3) / 4, all = groups(e) * KM_NEAR_QUERIES;
    e->bytes = km_quant_kernels_now();
    e->times = e->metric == KM_METRIC_L2 ? 2 : 1;
    e->block = CODES / (4 * steps) < LEAST ? LEAST : CODES / (4 * steps);
    e->block = (e->block < BLOCK ? e->block : BLOCK) / KM_NEAR_ROWS * KM_NEAR_ROWS;
    int64_t tiles = e->block / KM_NEAR_ROWS;
    e->mean = km_calloc((size_t)(2 * e->dim), sizeof(float));
    e->own = km_alloc(sizeof(float) * (size_t)e->n);
    e->query = km_calloc((size_t)all, sizeof *e->query);
    e->query_codes = km_alloc((size_t)(4 * steps * e->n));
    e->tile = km_calloc((size_t)tiles, sizeof *e->tile);
    e->codes = km_alloc((size_t)(4 * steps * e->block));
    if (!e->mean || !e->own || !e->query || !e->query_codes || !e->tile || !e->codes) return false;
    for (int64_t i = 0; i < tiles; i++) {
        e->tile[i].steps = steps;
        e->tile[i].code = e->codes + i * 4 * steps * KM_NEAR_ROWS;
    }
    for (int64_t j = 0; j < e->dim; j++) {
        double sum = 0;
        for (int64_t i = 0; i < e->n; i++) sum += e->queries[i * e->dim + j];
        e->mean[j] = isfinite((float)sum) ? (float)(sum / (double)e->n) : 0;
    }
    for (int64_t i = 0; i < e->n; i++) code_query(e, i, e->tile, e->mean + e->dim);
    for (int64_t i = e->n; i < all; i++) /* nobody is near to these */
        e->query[i] = (km_near_query){.code = e->query_codes, .limit = INFINITY};
    return true;
}

static bool begin_device(km_exact *e) {
    int64_t n = e->n;
    e->block = PRODUCTS / (n + 1) < LEAST   ? LEAST
               : PRODUCTS / (n + 1) < BLOCK ? PRODUCTS / (n + 1)
                                            : BLOCK;
    e->norms = km_alloc(sizeof(float) * (size_t)n);
    e->products = km_alloc(sizeof(float) * (size_t)(n * e->block));
    e->row_norms = km_alloc(sizeof(float) * (size_t)e->block);
    if (!e->norms || !e->products || !e->row_norms) return false;
    for (int64_t i = 0; i < n; i++) e->norms[i] = square(e->queries + i * e->dim, e->dim);
    e->kept = km_keep_data(e->ctx, KM_F32, KM_SHAPE(n, e->dim), e->queries);
    km_step_end(e->ctx);
    return e->kept != NULL;
}

km_exact *km_exact_new(km_ctx *ctx, const float *queries, int64_t n, int64_t dim, int64_t k,
                       km_metric metric, km_error *err) {
    km_exact *e = km_calloc(1, sizeof *e);
    if (e) {
        *e = (km_exact){.ctx = ctx, .metric = metric, .n = n, .dim = dim, .k = k};
        e->queries = km_alloc(sizeof(float) * (size_t)(n * dim));
        e->best = km_alloc(sizeof(exact_hit) * (size_t)(n * k));
        e->filled = km_calloc((size_t)n, sizeof(int64_t));
    }
    bool ok = e && e->queries && e->best && e->filled;
    if (ok) {
        memcpy(e->queries, queries, sizeof(float) * (size_t)(n * dim));
        if (metric == KM_METRIC_COSINE) km_unit(e->queries, n, dim);
        ok = ctx->device->host ? begin_host(e) : begin_device(e);
    }
    if (ok) return e;
    if (km_ctx_status(ctx) != KM_OK)
        km_error_set(err, km_ctx_status(ctx), "%s", km_ctx_error(ctx));
    else
        km_no_memory_for(err, "an exact search of %lld queries", (long long)n);
    km_exact_free(e);
    return NULL;
}

void km_exact_free(km_exact *e) {
    if (!e) return;
    km_release(e->kept);
    km_free(e->queries);
    km_free(e->best);
    km_free(e->filled);
    km_free(e->norms);
    km_free(e->products);
    km_free(e->row_norms);
    km_free(e->mean);
    km_free(e->own);
    km_free(e->query);
    km_free(e->query_codes);
    km_free(e->tile);
    km_free(e->codes);
    km_free(e);
}

void km_exact_pass_over(km_exact *e, const uint64_t *self) { e->self = self; }

/* ---- Rows ---- */

typedef struct exact_block { /* of rows that meet all queries */
    km_exact *e;
    const float *rows;
    int64_t n;
    uint64_t first;
    const uint64_t *ids; /* NULL: first, first + 1, ... */
} exact_block;

/* Ids come ascending, so at equal distance the one that is there stays before row i. */
static void offer(const exact_block *b, int64_t q, int64_t i, float d) {
    km_exact *e = b->e;
    exact_hit *best = e->best + q * e->k;
    int64_t have = e->filled[q];
    if (!(d < INFINITY) || (have == e->k && !(d < best[have - 1].dist))) return;
    uint64_t id = b->ids ? b->ids[i] : b->first + (uint64_t)i;
    if (e->self && id == e->self[q]) return;
    int64_t at = have < e->k ? have : have - 1;
    for (; at > 0 && d < best[at - 1].dist; at--) best[at] = best[at - 1];
    best[at] = (exact_hit){d, id};
    if (have < e->k) e->filled[q]++;
}

static void meet_products(void *arg, int64_t begin, int64_t end, int worker) {
    const exact_block *b = arg;
    const km_exact *e = b->e;
    (void)worker;
    for (int64_t q = begin; q < end; q++) {
        const float *p = e->products + q * b->n;
        for (int64_t i = 0; i < b->n; i++)
            offer(b, q, i,
                  e->metric == KM_METRIC_IP       ? -p[i]
                  : e->metric == KM_METRIC_COSINE ? 1 - p[i]
                                                  : e->norms[q] - 2 * p[i] + e->row_norms[i]);
    }
}

static km_status feed_device(exact_block *b, km_error *err) {
    km_exact *e = b->e;
    for (int64_t k = 0; k < b->n; k++) e->row_norms[k] = square(b->rows + k * e->dim, e->dim);
    km_tensor *t = km_from_data(e->ctx, KM_F32, KM_SHAPE(b->n, e->dim), b->rows);
    km_tensor *p = km_matmul(e->ctx, e->kept, km_transpose(e->ctx, t, 0, 1));
    km_read(e->ctx, p, e->products, sizeof(float) * (size_t)(e->n * b->n));
    km_step_end(e->ctx);
    if (km_ctx_status(e->ctx) != KM_OK)
        return km_error_set(err, km_ctx_status(e->ctx), "%s", km_ctx_error(e->ctx));
    km_threads_for(e->ctx->threads, e->n, 4, meet_products, b);
    return KM_OK;
}

/* Tiles of codes; rows that are not finite, and those that are not there, are far from everybody. */
static void code_rows(void *arg, int64_t begin, int64_t end, int worker) {
    const exact_block *b = arg;
    const km_exact *e = b->e;
    const km_code_kernels *simd = km_simd_codes();
    float x[256], *shifted = e->dim <= 256 ? x : km_alloc(sizeof *x * (size_t)e->dim);
    (void)worker;
    for (int64_t t = begin; t < end; t++)
        for (int r = 0; r < KM_NEAR_ROWS; r++) {
            km_near_tile *tile = &e->tile[t];
            int64_t i = t * KM_NEAR_ROWS + r;
            const float *row = b->rows + i * e->dim;
            float rest = INFINITY;
            if (i < b->n && shifted)
                rest = e->metric == KM_METRIC_L2 ? simd->gap(row, e->mean, e->dim)
                                                 : -simd->dot(row, e->mean, e->dim);
            bool fits = isfinite(rest);
            for (int64_t j = 0; shifted && j < e->dim; j++) {
                shifted[j] = fits ? row[j] - e->mean[j] : 0;
            }
            if (shifted) e->bytes->near_row(shifted, e->dim, r, tile);
            fits = fits && isfinite(tile->size[r]) && isfinite(tile->lost[r]);
            if (!fits) tile->scale[r] = tile->lost[r] = tile->size[r] = 0;
            tile->lost[r] += GUARD * tile->size[r];
            tile->rest[r] = fits ? rest - GUARD * fabsf(rest) : i < b->n ? -INFINITY : INFINITY;
        }
    if (shifted != x) km_free(shifted);
}

static float distance(const km_exact *e, const km_code_kernels *simd, int64_t q, const float *row) {
    const float *query = e->queries + q * e->dim;
    if (e->metric == KM_METRIC_L2) return simd->gap(query, row, e->dim);
    float p = simd->dot(query, row, e->dim);
    return e->metric == KM_METRIC_IP ? -p : 1 - p;
}

static void meet_bytes(void *arg, int64_t begin, int64_t end, int worker) {
    const exact_block *b = arg;
    const km_exact *e = b->e;
    const km_code_kernels *simd = km_simd_codes();
    (void)worker;
    for (int64_t g = begin; g < end; g++) {
        km_near_query *group = e->query + g * KM_NEAR_QUERIES;
        for (int64_t t = 0; t * KM_NEAR_ROWS < b->n; t++) {
            uint32_t left[KM_NEAR_QUERIES];
            e->bytes->near_tile(group, &e->tile[t], left);
            for (int i = 0; i < KM_NEAR_QUERIES; i++) {
                int64_t q = g * KM_NEAR_QUERIES + i;
                if (!left[i] || q >= e->n) continue;
                for (; left[i]; left[i] &= left[i] - 1) {
                    int64_t row = t * KM_NEAR_ROWS + __builtin_ctz(left[i]);
                    if (row < b->n) offer(b, q, row, distance(e, simd, q, b->rows + row * e->dim));
                }
                if (e->filled[q] < e->k) continue;
                float last = e->best[q * e->k + e->k - 1].dist, own = e->own[q];
                group[i].limit = own - last - GUARD * (fabsf(own) + fabsf(last));
            }
        }
    }
}

static km_status feed(km_exact *e, float *rows, int64_t n, uint64_t first, const uint64_t *ids,
                      km_error *err) {
    if (e->metric == KM_METRIC_COSINE) km_unit(rows, n, e->dim);
    km_status s = KM_OK;
    for (int64_t i = 0; s == KM_OK && i < n; i += e->block) {
        exact_block b = {e, rows + i * e->dim, n - i < e->block ? n - i : e->block,
                         first + (uint64_t)i, ids ? ids + i : NULL};
        if (!e->bytes) {
            s = feed_device(&b, err);
            continue;
        }
        km_threads_for(e->ctx->threads, (b.n + KM_NEAR_ROWS - 1) / KM_NEAR_ROWS, 4, code_rows, &b);
        km_threads_for(e->ctx->threads, groups(e), 1, meet_bytes, &b);
    }
    return s;
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

/* Of one query: how many are wanted, and found. */
static int64_t count_hits(const uint64_t *wanted, const uint64_t *found, int64_t k, int64_t *all) {
    int64_t hits = 0;
    for (int64_t i = 0; i < k; i++) {
        if (wanted[i] == KM_NO_ID) continue;
        ++*all;
        for (int64_t j = 0; j < k; j++)
            if (found[j] == wanted[i]) {
                hits++;
                break;
            }
    }
    return hits;
}

double km_recall(const uint64_t *wanted, const uint64_t *found, int64_t n, int64_t stride,
                 int64_t k) {
    int64_t hits = 0, all = 0;
    for (int64_t q = 0; q < n; q++)
        hits += count_hits(wanted + q * stride, found + q * stride, k, &all);
    return all ? (double)hits / (double)all : 1;
}

static bool listed(const uint64_t *list, int64_t n, uint64_t id) {
    for (int64_t i = 0; i < n; i++)
        if (list[i] == id) return true;
    return false;
}

double km_recall_tied(const uint64_t *near, const float *dist, int64_t deep, int64_t k,
                      const uint64_t *found, uint64_t self) {
    int64_t all = 0, right = 0, hits = 0, seen = 0;
    for (; right < deep && near[right] != KM_NO_ID; right++) {
        float last = dist[right < k ? right : k - 1];
        if (right >= k && !(dist[right] <= last + TIED * fabsf(last))) break;
        all += right < k;
    }
    for (int64_t i = 0; seen < k && i < k + (self != KM_NO_ID); i++) {
        if (found[i] == KM_NO_ID || found[i] == self) continue;
        seen++;
        hits += listed(near, right, found[i]);
    }
    return all ? (double)(hits < all ? hits : all) / (double)all : 1;
}
