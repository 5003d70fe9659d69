/* k-means++ in batches. Rows are drawn by their squared distance to the anchors before the batch, and
 * a row is taken with the odds that the batch so far has left it: its distance now over its distance
 * then. That is exactly the draw one by one, at the price of one pass of products over the sample for
 * each batch, and a batch may be half as large as all before it. */
#include "vector/anchors.h"
#include "base/alloc.h"
#include "base/rng.h"
#include "ops/nearest.h"
#include <string.h>

#define ROWS_EACH 16 /* of the sample, for each anchor */
#define ROWS_LEAST 8192

int64_t km_seed_sample_rows(int64_t n, int64_t k) {
    int64_t rows = k * ROWS_EACH > ROWS_LEAST ? k * ROWS_EACH : ROWS_LEAST;
    return n < rows ? n : rows;
}

typedef struct seeding {
    km_ctx *ctx;
    const float *x;         /* (n, d) */
    km_tensor *rows, *work; /* the same on the device */
    int64_t n, d;
    uint64_t seed, draws;
    double *upto; /* (n): sums of distances up to and with this row */
    float *near;  /* (n): squared distance to the nearest anchor */
    float *dist;  /* (n) */
    float *batch; /* (k, d) */
} seeding;

static double unit(seeding *s) { /* [0, 1), 53 bits */
    km_philox4 r = km_philox(s->seed, 0x5eed, s->draws++);
    return ((double)(r.v[0] >> 5) * 67108864.0 + (double)(r.v[1] >> 6)) * 0x1p-53;
}

static double between(const seeding *s, int64_t a, int64_t b) {
    const float *x = s->x + a * s->d, *y = s->x + b * s->d;
    float sum[8] = {0}; /* independent chains, for vectors */
    int64_t e = 0;
    for (; e + 8 <= s->d; e += 8)
        for (int u = 0; u < 8; u++) sum[u] += (x[e + u] - y[e + u]) * (x[e + u] - y[e + u]);
    for (; e < s->d; e++) sum[0] += (x[e] - y[e]) * (x[e] - y[e]);
    return (double)((sum[0] + sum[1]) + (sum[2] + sum[3])) +
           (double)((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

/* The row where the sums of distances pass `at`. */
static int64_t find(const seeding *s, double at) {
    int64_t lo = 0, hi = s->n - 1;
    while (lo < hi) {
        int64_t mid = lo + (hi - lo) / 2;
        if (s->upto[mid] > at)
            hi = mid;
        else
            lo = mid + 1;
    }
    return lo;
}

/* Up to `want` more rows; how many. */
static int64_t draw_batch(seeding *s, int64_t *pick, int64_t want) {
    double total = s->upto[s->n - 1];
    int64_t got = 0;
    /* The batch takes away more and more of the distances; after so many misses there is a new one. */
    for (int64_t miss = 0; got < want && (got == 0 || miss < 64 + 4 * want);) {
        int64_t row = find(s, unit(s) * total);
        double odds = 1;
        for (int64_t i = 0; i < got && odds > 0; i++) {
            double part = between(s, row, pick[i]) / (double)s->near[row];
            if (part < odds) odds = part;
        }
        if (!(s->near[row] > 0) || (odds < 1 && unit(s) >= odds)) {
            miss++;
            if (got == 0 && miss > 64) break;
            continue;
        }
        pick[got++] = row;
    }
    return got;
}

/* near = min(near, distance to the batch); upto. */
static km_status pass(seeding *s, const int64_t *pick, int64_t many, bool first) {
    km_ctx *ctx = s->ctx;
    km_tensor *id, *dist;
    for (int64_t i = 0; i < many; i++)
        memcpy(s->batch + i * s->d, s->x + pick[i] * s->d, sizeof(float) * (size_t)s->d);
    km_scope_begin(ctx);
    km_tensor *c = km_from_data(ctx, KM_F32, KM_SHAPE(many, s->d), s->batch);
    if (km_nearest_of(ctx, s->rows, c, s->work, first, true, &id, &dist) == KM_OK)
        km_read(ctx, dist, s->dist, sizeof(float) * (size_t)s->n);
    km_scope_end(ctx, NULL);
    if (km_failed(ctx)) return km_ctx_status(ctx);
    for (int64_t i = 0; i < many; i++) s->dist[pick[i]] = 0;
    double sum = 0;
    for (int64_t i = 0; i < s->n; i++) {
        if (first || s->dist[i] < s->near[i]) s->near[i] = s->dist[i];
        sum += (double)s->near[i];
        s->upto[i] = sum;
    }
    return KM_OK;
}

static int64_t pick_all(seeding *s, int64_t k, int64_t *pick) {
    int64_t got = 1;
    pick[0] = (int64_t)(unit(s) * (double)s->n);
    if (pass(s, pick, 1, true) != KM_OK) return -1;
    while (got < k && s->upto[s->n - 1] > 0) {
        int64_t want = got / 2 > 1 ? got / 2 : 1;
        int64_t more = draw_batch(s, pick + got, want < k - got ? want : k - got);
        if (more == 0) break;
        if (got + more < k && pass(s, pick + got, more, false) != KM_OK) return -1;
        got += more;
    }
    return got;
}

int64_t km_seed_pick(km_ctx *ctx, const float *x, int64_t n, int64_t d, int64_t k, uint64_t seed,
                     int64_t *pick) {
    if (km_failed(ctx)) return -1;
    if (n == 0 || k == 0) return 0;
    seeding s = {.ctx = ctx, .x = x, .n = n, .d = d, .seed = seed};
    size_t bytes = (size_t)n * (sizeof *s.upto + sizeof *s.near + sizeof *s.dist) +
                   (size_t)(k * d) * sizeof *s.batch;
    s.upto = km_alloc(bytes);
    int64_t got = -1;
    if (!s.upto) {
        km_fail(ctx, KM_ERR_MEMORY, "anchors: out of memory");
        return -1;
    }
    s.near = (float *)(void *)(s.upto + n);
    s.dist = s.near + n;
    s.batch = s.dist + n;
    km_scope_begin(ctx);
    s.rows = km_from_data(ctx, KM_F32, KM_SHAPE(n, d), x);
    s.work = s.rows ? km_nearest_work(ctx, s.rows) : NULL;
    if (!km_failed(ctx)) got = pick_all(&s, k, pick);
    km_release(s.work);
    km_scope_end(ctx, NULL);
    km_free(s.upto);
    return got;
}
