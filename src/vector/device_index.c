/* Indexes on a device. Rows are told apart in the turned space: anchors and queries are turned by one
 * orthonormal matrix, the coder's axes and, where these leave out some directions, others that complete
 * them; anchors lie along those too. */
#include "vector/device_index.h"
#include "base/alloc.h"
#include "ops/scan_codes.h"
#include "vector/coder_impl.h"
#include "vector/input.h"
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#define MOST_DIM 4096 /* the matrix of a turn is dim x dim */

struct km_device_index {
    km_ctx *ctx;
    km_index *x;
    km_coded rows;
    km_tensor *turn;  /* (dim, dim): a query times it is turned */
    km_tensor *mean;  /* (1, dim): taken from anchors and queries where only differences count; or NULL */
    uint64_t *ids;    /* of a row */
    int64_t n;
};

static km_status no_memory(km_error *err) {
    return km_error_set(err, KM_ERR_MEMORY, "no memory for an index on a device");
}

/* ---- The turn ---- */

static void take_away(float *v, const float *axis, int64_t dim) {
    double sum = 0;
    for (int64_t j = 0; j < dim; j++) sum += (double)v[j] * axis[j];
    for (int64_t j = 0; j < dim; j++) v[j] -= (float)sum * axis[j];
}

/* axes (dim, dim), the first `count` of them orthonormal: fills in the others. */
static void complete(float *axes, int64_t count, int64_t dim) {
    int64_t next = 0; /* unit vectors are tried in turn; enough of them are no sums of the axes */
    for (int64_t i = count; i < dim; i++) {
        float *v = axes + i * dim;
        double norm = 0;
        while (norm < 0.25 / (double)dim && next < dim) {
            memset(v, 0, sizeof *v * (size_t)dim);
            v[next++] = 1;
            for (int again = 0; again < 2; again++)
                for (int64_t k = 0; k < i; k++) take_away(v, axes + k * dim, dim);
            norm = 0;
            for (int64_t j = 0; j < dim; j++) norm += (double)v[j] * v[j];
        }
        float by = norm > 0 ? (float)(1 / sqrt(norm)) : 0;
        for (int64_t j = 0; j < dim; j++) v[j] *= by;
    }
}

/* axes (dim, dim), a row an axis. */
static void fill_axes(const km_coder *c, float *axes, float *space) {
    int64_t dim = c->dim, count = c->axes[0].count;
    if (c->signs) {
        for (int64_t j = 0; j < dim; j++) {
            memset(space, 0, sizeof *space * (size_t)dim);
            space[j] = 1;
            km_coder_turn(c, space, space + dim);
            for (int64_t i = 0; i < dim; i++) axes[i * dim + j] = space[2 * dim + i];
        }
        return;
    }
    memcpy(axes, c->axes[0].axis, sizeof *axes * (size_t)(count * dim));
    complete(axes, count, dim);
}

/* ---- Rows ---- */

typedef struct unpack_job {
    const km_index *x;
    const int32_t *place;
    int64_t stride, first; /* of the segment */
    const km_segment *g;
    uint8_t *codes, *scale;
    int32_t *cell;
    uint64_t *ids;
    atomic_int failed;
} unpack_job;

static void unpack_cells(void *arg, int64_t begin, int64_t end, int worker) {
    unpack_job *j = arg;
    const km_index *x = j->x;
    const km_coder *c = x->coder;
    (void)worker;
    for (int64_t cell = begin; cell < end && !atomic_load(&j->failed); cell++) {
        int64_t first = (int64_t)j->g->start[cell], n = (int64_t)j->g->start[cell + 1] - first;
        uint8_t *plain = n ? km_alloc((size_t)n * x->code_bytes) : NULL;
        km_error err = {0};
        if (n && (!plain || km_segment_codes(x, j->g, cell, plain, &err) != KM_OK))
            atomic_store(&j->failed, err.code ? (int)err.code : (int)KM_ERR_MEMORY);
        for (int64_t i = 0; i < n && !atomic_load(&j->failed); i++) {
            const uint8_t *code = plain + (size_t)i * x->code_bytes;
            int64_t to = j->first + first + i;
            uint8_t *out = j->codes + to * j->stride;
            memset(out, 0, (size_t)j->stride);
            for (int64_t a = 0; a < c->axes[0].count; a++)
                km_bits_put(out, j->place[a], c->axes[0].bits[a], km_stage_get(&c->stage, code, a));
            j->scale[to] = code[0];
            j->cell[to] = km_segment_is_dead(j->g, first + i) ? -1 : (int32_t)cell;
            j->ids[to] = km_id_get(j->g->ids, first + i, j->g->id_bits);
        }
        km_free(plain);
    }
}

static km_tensor *upload(km_ctx *ctx, km_dtype dtype, km_shape shape, const void *data) {
    return data ? km_keep(ctx, km_from_data(ctx, dtype, shape, data)) : NULL;
}

static km_status put_rows(km_device_index *d, km_error *err) {
    const km_index *x = d->x;
    const km_axes *a = &x->coder->axes[0];
    int64_t dim = x->dim;
    int32_t *place = km_calloc((size_t)dim + 1, sizeof *place);
    float *amp = km_calloc((size_t)dim, sizeof *amp);
    float *tables = km_calloc(KM_SCAN_TABLES * 256, sizeof *tables);
    for (int64_t i = 0; place && amp && i < dim; i++) {
        place[i + 1] = place[i] + (i < a->count ? a->bits[i] : 0);
        if (i < a->count) amp[i] = a->amp[i];
    }
    for (int b = 1; tables && b <= KM_LEVEL_BITS; b++)
        memcpy(tables + b * 256, x->coder->levels[b], sizeof(float) << b);
    if (tables) memcpy(tables + 9 * 256, x->coder->scales, sizeof x->coder->scales);
    unpack_job j = {.x = x, .place = place, .ids = d->ids};
    j.stride = place ? (place[dim] + 31) / 32 * 4 : 0;
    j.codes = km_alloc((size_t)(d->n * j.stride) + 8);
    j.scale = km_alloc((size_t)d->n + 1);
    j.cell = km_alloc(sizeof *j.cell * (size_t)(d->n + 1));
    km_status s = place && amp && tables && j.codes && j.scale && j.cell ? KM_OK : no_memory(err);
    for (int i = 0; s == KM_OK && i < x->n_segments; i++) {
        j.g = &x->segments[i];
        km_threads_for(d->ctx->threads, x->cells, 1, unpack_cells, &j);
        j.first += j.g->rows;
        if (atomic_load(&j.failed))
            s = km_error_set(err, (km_status)atomic_load(&j.failed), "the codes of the index cannot be read");
    }
    if (s == KM_OK) {
        d->rows.codes = upload(d->ctx, KM_U8, KM_SHAPE(d->n, j.stride), j.codes);
        d->rows.scale = upload(d->ctx, KM_U8, KM_SHAPE(d->n), j.scale);
        d->rows.cell = upload(d->ctx, KM_I32, KM_SHAPE(d->n), j.cell);
        d->rows.place = upload(d->ctx, KM_I32, KM_SHAPE(dim + 1), place);
        d->rows.amp = upload(d->ctx, KM_F32, KM_SHAPE(dim), amp);
        d->rows.tables = upload(d->ctx, KM_F32, KM_SHAPE(KM_SCAN_TABLES, 256), tables);
        d->rows.lost = x->coder->lost;
    }
    km_free(place);
    km_free(amp);
    km_free(tables);
    km_free(j.codes);
    km_free(j.scale);
    km_free(j.cell);
    return s;
}

static km_status put_frame(km_device_index *d, km_error *err) {
    const km_index *x = d->x;
    int64_t dim = x->dim;
    float *axes = km_alloc(sizeof *axes * (size_t)(dim * dim));
    float *space = km_calloc((size_t)(dim + km_coder_turned(x->coder)), sizeof *space);
    float *mean = km_calloc((size_t)dim, sizeof *mean);
    km_status s = axes && space && mean ? KM_OK : no_memory(err);
    if (s == KM_OK) {
        fill_axes(x->coder, axes, space);
        for (int64_t c = 0; c < x->cells; c++)
            for (int64_t j = 0; j < dim; j++) mean[j] += x->anchors[c * dim + j] / (float)x->cells;
        km_ctx *ctx = d->ctx;
        km_tensor *a = km_from_data(ctx, KM_F32, KM_SHAPE(dim, dim), axes);
        d->turn = km_keep(ctx, km_copy(ctx, km_transpose(ctx, a, 0, 1)));
        km_tensor *anchors = km_from_data(ctx, KM_F32, KM_SHAPE(x->cells, dim), x->anchors);
        if (x->metric == KM_METRIC_L2) {
            d->mean = upload(ctx, KM_F32, KM_SHAPE(1, dim), mean);
            anchors = km_sub(ctx, anchors, d->mean);
        }
        d->rows.centre = km_keep(ctx, km_matmul(ctx, anchors, d->turn));
    }
    km_free(axes);
    km_free(space);
    km_free(mean);
    return s;
}

km_device_index *km_device_index_new(km_ctx *ctx, km_index *x, km_error *err) {
    if (!x->coder || x->coder->trellis || x->coder->classes != 1 || x->dim > MOST_DIM) {
        km_error_set(err, KM_ERR_UNSUPPORTED, "only fast codes of up to %d dimensions are searched on a device",
                     MOST_DIM);
        return NULL;
    }
    km_device_index *d = km_calloc(1, sizeof *d);
    if (!d) return no_memory(err), NULL;
    *d = (km_device_index){.ctx = ctx, .x = x};
    for (int i = 0; i < x->n_segments; i++) d->n += x->segments[i].rows;
    d->ids = km_alloc(sizeof *d->ids * (size_t)(d->n + 1));
    km_status s = !d->ids ? no_memory(err) : d->n > INT32_MAX
        ? km_error_set(err, KM_ERR_UNSUPPORTED, "too many rows for a device") : put_rows(d, err);
    if (s == KM_OK) s = put_frame(d, err);
    if (s == KM_OK && km_ctx_status(ctx) != KM_OK)
        s = km_error_set(err, km_ctx_status(ctx), "%s", km_ctx_error(ctx));
    km_step_end(ctx);
    if (s == KM_OK) return d;
    km_device_index_free(d);
    return NULL;
}

void km_device_index_free(km_device_index *d) {
    if (!d) return;
    km_tensor *all[] = {d->rows.codes, d->rows.scale, d->rows.cell, d->rows.place, d->rows.amp,
                        d->rows.tables, d->rows.centre, d->turn, d->mean};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) km_release(all[i]);
    km_free(d->ids);
    km_free(d);
}

/* ---- Searching ---- */

bool km_device_index_can(const km_device_index *d, int64_t k, const km_search_options *o) {
    if (!d || k < 1 || k > KM_SCAN_MOST) return false;
    return !o || (!o->rerank && !o->allow && !o->deny && (o->probe <= 0 || o->probe >= d->x->cells));
}

static km_status find_some(km_device_index *d, const float *queries, int64_t n, int64_t k, int32_t *row,
                           float *dist) {
    km_ctx *ctx = d->ctx;
    km_tensor *q = km_from_data(ctx, KM_F32, KM_SHAPE(n, d->x->dim), queries), *id, *near;
    if (d->mean) q = km_sub(ctx, q, d->mean);
    km_scan_codes_options o = {.product = d->x->metric != KM_METRIC_L2};
    km_scan_coded(ctx, km_matmul(ctx, q, d->turn), &d->rows, k, &o, &id, &near);
    km_read(ctx, id, row, sizeof *row * (size_t)(n * k));
    km_read(ctx, near, dist, sizeof *dist * (size_t)(n * k));
    km_step_end(ctx);
    return km_ctx_status(ctx);
}

km_status km_device_index_find(km_device_index *d, const float *queries, int64_t n, int64_t k,
                               uint64_t *ids, float *dist, km_error *err) {
    int64_t dim = d->x->dim, bad = km_first_bad_row(queries, n, dim), block = 8192;
    if (bad >= 0)
        return km_error_set(err, KM_ERR_RANGE, "query %lld holds a NaN or an infinity", (long long)bad);
    if (n < block) block = n > 0 ? n : 1;
    bool cosine = d->x->metric == KM_METRIC_COSINE;
    float *unit = cosine ? km_alloc(sizeof *unit * (size_t)(block * dim)) : NULL;
    int32_t *row = km_alloc(sizeof *row * (size_t)(block * k));
    km_status s = row && (unit || !cosine) ? KM_OK : no_memory(err);
    for (int64_t i = 0; s == KM_OK && i < n; i += block) {
        int64_t m = n - i < block ? n - i : block;
        const float *q = queries + i * dim;
        if (cosine) {
            memcpy(unit, q, sizeof *unit * (size_t)(m * dim));
            km_unit(unit, m, dim);
            q = unit;
        }
        s = find_some(d, q, m, k, row, dist + i * k);
        if (s != KM_OK) km_error_set(err, s, "%s", km_ctx_error(d->ctx));
        for (int64_t e = 0; s == KM_OK && e < m * k; e++) {
            ids[i * k + e] = row[e] < 0 ? KM_NO_ID : d->ids[row[e]];
            if (cosine && row[e] >= 0) dist[i * k + e] += 1;
        }
    }
    km_free(unit);
    km_free(row);
    return s;
}

/* ---- Wherever it can be done ---- */

km_device_index *km_device_index_for(km_ctx *ctx, km_index *x) {
    km_error err = {0};
    if (!ctx || km_failed(ctx) || ctx->device->host) return NULL;
    km_device_index *d = km_device_index_new(ctx, x, &err);
    if (!d) km_ctx_clear_error(ctx);
    return d;
}

km_status km_find_anywhere(km_device_index *d, km_index *x, const float *queries, int64_t n, int64_t k,
                           const km_search_options *o, km_threads *t, uint64_t *ids, float *dist,
                           km_error *err) {
    if (km_device_index_can(d, k, o)) return km_device_index_find(d, queries, n, k, ids, dist, err);
    return km_index_find(x, queries, n, k, o, t, ids, dist, err);
}
