/* Indexes on a device. Rows are told apart in a turned space: anchors and queries are turned by one
 * orthonormal matrix, a class' axes and, where these leave out some directions, others that complete
 * them; anchors lie along those too. So each class of rows has a frame of its own, and is searched by
 * itself. An index that the device has no room for is lent to it in parts, which come over one while the
 * last is searched. What parts find is merged here. */
#include "vector/device_index.h"
#include "base/alloc.h"
#include "ops/scan_codes.h"
#include "vector/device_rows.h"
#include "vector/input.h"
#include <math.h>

#define MOST_DIM 4096   /* the matrix of a turn is dim x dim */
#define LEAST_ROWS 4096 /* of a part that is lent, where there are so many */
#define SLOTS 5         /* pieces of lent memory that a device holds at once, at most */
#define ANSWERS 32      /* of parts, that wait on the device to be read, at most, */
#define ANSWER_BYTES ((int64_t)32 << 20) /* in so many bytes where there are more than two */
#define SCRATCH ((double)(208 << 20))    /* of a scan: decoded rows and lists of candidates */

/* Rows of one class, on the device or lent to it. */
typedef struct class_part {
    int kind;
    int64_t first, n;
    km_tensor *codes, *scale, *cell;
} class_part;

struct km_device_index {
    km_ctx *ctx;
    km_index *x;
    km_device_rows rows;               /* all but ids only while parts are lent */
    km_coded frame[KM_CODER_CLASSES];  /* of each class; its rows are those of a part */
    km_tensor *turn[KM_CODER_CLASSES]; /* (dim, dim): a query times it is turned */
    km_tensor
        *mean; /* (1, dim): taken from anchors and queries where only differences count; or NULL */
    km_tensor *tables, *windows;
    class_part *parts;
    int n_parts;
    float length;  /* of all rows, or 0 (vector/index.h) */
    bool gaps;     /* squared distances are asked for; else products */
    int64_t chunk; /* rows decoded at a time; 0: what suits the device */
    bool lent;
};

/* ---- Frames ---- */

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

/* axes (dim, dim) of a class, a row an axis. */
static void fill_axes(const km_coder *c, const km_axes *a, float *axes, float *space) {
    int64_t dim = c->dim;
    if (c->signs) {
        for (int64_t j = 0; j < dim; j++) {
            memset(space, 0, sizeof *space * (size_t)dim);
            space[j] = 1;
            km_coder_turn(c, space, space + dim);
            for (int64_t i = 0; i < dim; i++) axes[i * dim + j] = space[2 * dim + i];
        }
        return;
    }
    memcpy(axes, a->axis, sizeof *axes * (size_t)(a->count * dim));
    complete(axes, a->count, dim);
}

/* Where columns lie in codes, and their amplitudes. */
static km_status put_columns(km_device_index *d, const km_axes *a, km_coded *f, km_error *err) {
    int64_t dim = d->x->dim;
    bool trellis = d->x->coder->trellis;
    int32_t *place = km_calloc((size_t)dim + 1, sizeof *place),
            *rate = km_calloc((size_t)dim, sizeof *rate);
    float *amp = km_calloc((size_t)dim, sizeof *amp);
    km_status s = place && rate && amp ? KM_OK : km_no_memory_for(err, "an index on a device");
    for (int64_t i = 0; s == KM_OK && i < dim; i++) {
        bool there = i < a->count;
        rate[i] = there ? a->bits[i] : 0;
        amp[i] = there ? a->amp[i] : 0;
        if (trellis)
            place[i] = there ? a->at[i] : 0;
        else
            place[i + 1] = place[i] + rate[i];
    }
    if (s == KM_OK) {
        f->place = km_keep_data(d->ctx, KM_I32, KM_SHAPE(dim + 1), place);
        f->amp = km_keep_data(d->ctx, KM_F32, KM_SHAPE(dim), amp);
        if (trellis) f->rate = km_keep_data(d->ctx, KM_I32, KM_SHAPE(dim), rate);
    }
    km_free(place);
    km_free(rate);
    km_free(amp);
    return s;
}

static km_status put_frame(km_device_index *d, int kind, km_error *err) {
    const km_index *x = d->x;
    km_ctx *ctx = d->ctx;
    int64_t dim = x->dim;
    km_coded *f = &d->frame[kind];
    float *axes = km_alloc(sizeof *axes * (size_t)(dim * dim));
    float *space = km_calloc((size_t)(dim + km_coder_turned(x->coder)), sizeof *space);
    km_status s = axes && space ? put_columns(d, &x->coder->axes[kind], f, err)
                                : km_no_memory_for(err, "an index on a device");
    if (s == KM_OK) {
        fill_axes(x->coder, &x->coder->axes[kind], axes, space);
        km_tensor *a = km_from_data(ctx, KM_F32, KM_SHAPE(dim, dim), axes);
        d->turn[kind] = km_keep(ctx, km_copy(ctx, km_transpose(ctx, a, 0, 1)));
        km_tensor *anchors = km_from_data(ctx, KM_F32, KM_SHAPE(x->cells, dim), x->anchors);
        if (d->mean) anchors = km_sub(ctx, anchors, d->mean);
        f->centre = km_keep(ctx, km_matmul(ctx, anchors, d->turn[kind]));
        f->tables = d->tables;
        f->windows = d->windows;
        f->lost = x->coder->lost;
    }
    km_free(axes);
    km_free(space);
    km_step_end(ctx);
    return s;
}

/* What all frames share: tables, and the anchors' mean. */
static km_status put_tables(km_device_index *d, km_error *err) {
    const km_index *x = d->x;
    const km_coder *c = x->coder;
    float *tables = km_calloc(KM_SCAN_TABLES * 256, sizeof *tables);
    float *mean = km_calloc((size_t)x->dim, sizeof *mean);
    km_status s = tables && mean ? KM_OK : km_no_memory_for(err, "an index on a device");
    if (s == KM_OK) {
        for (int b = 1; b <= KM_LEVEL_BITS && !c->trellis; b++)
            memcpy(tables + b * 256, c->levels[b], sizeof(float) << b);
        memcpy(tables + 9 * 256, c->scales, sizeof c->scales);
        for (int64_t i = 0; i < x->cells; i++)
            for (int64_t j = 0; j < x->dim; j++)
                mean[j] += x->anchors[i * x->dim + j] / (float)x->cells;
        d->tables = km_keep_data(d->ctx, KM_F32, KM_SHAPE(KM_SCAN_TABLES, 256), tables);
        if (c->trellis)
            d->windows =
                km_keep_data(d->ctx, KM_F32, KM_SHAPE(KM_TRELLIS_RATE + 1, KM_TRELLIS_STATES),
                             c->tables->window);
        if (d->gaps) d->mean = km_keep_data(d->ctx, KM_F32, KM_SHAPE(1, x->dim), mean);
    }
    km_free(tables);
    km_free(mean);
    return s;
}

/* ---- Parts ---- */

/* Rows of a part, or 0: all of a class, which stay on the device. What is lent must leave room for a scan,
 * and a device may hold several pieces of it, each as large as the largest. */
static int64_t rows_lent(km_device_index *d) {
    double row = (double)d->rows.stride + 5, need = row * (double)d->rows.n + SCRATCH;
    double room = km_room_left(d->ctx);
    if (need <= 0.9 * room) return 0;
    double decoded = (double)((d->x->dim + 63) / 64 * 64 * 2 + 4); /* bytes of a decoded row */
    if (room < 4 * SCRATCH) { /* smaller steps, smaller scratch */
        d->chunk = (int64_t)(0.25 * room / decoded);
        d->chunk = d->chunk < 1024 ? 1024 : d->chunk;
    }
    int64_t rows = (int64_t)(0.4 * room / SLOTS / row);
    return rows < LEAST_ROWS ? LEAST_ROWS : rows;
}

static void nothing(void *owner) { (void)owner; }

static km_tensor *rows_of(km_device_index *d, km_dtype dtype, km_shape shape, const void *data) {
    if (d->lent) return km_wrap(d->ctx, "rows", dtype, shape, data, nothing, NULL);
    return km_keep_data(d->ctx, dtype, shape, data);
}

static km_status put_parts(km_device_index *d, int64_t most, km_error *err) {
    km_device_rows *r = &d->rows;
    int64_t count = 0;
    d->lent = most > 0;
    for (int k = 0; k < d->x->coder->classes; k++) {
        int64_t n = r->start[k + 1] - r->start[k];
        count += !d->lent ? n > 0 : (n + most - 1) / most;
    }
    d->parts = km_calloc((size_t)count + 1, sizeof *d->parts);
    if (!d->parts) return km_no_memory_for(err, "an index on a device");
    for (int k = 0; k < d->x->coder->classes; k++) {
        int64_t end = r->start[k + 1];
        for (int64_t i = r->start[k], n; i < end; i += n) {
            n = d->lent && most < end - i ? most : end - i;
            class_part *p = &d->parts[d->n_parts++];
            *p = (class_part){.kind = k, .first = i, .n = n};
            p->codes = rows_of(d, KM_U8, KM_SHAPE(n, r->stride), r->codes + i * r->stride);
            p->scale = rows_of(d, KM_U8, KM_SHAPE(n), r->scale + i);
            p->cell = rows_of(d, KM_I32, KM_SHAPE(n), r->cell + i);
        }
    }
    if (d->lent) return KM_OK;
    km_free(r->codes); /* the device has them */
    km_free(r->scale);
    km_free(r->cell);
    r->codes = r->scale = NULL;
    r->cell = NULL;
    return KM_OK;
}

km_device_index *km_device_index_split(km_ctx *ctx, km_index *x, int64_t rows, km_error *err) {
    if (!x->coder || x->dim > MOST_DIM) {
        km_error_set(err, KM_ERR_UNSUPPORTED,
                     "only codes of up to %d dimensions are searched on a device", MOST_DIM);
        return NULL;
    }
    km_device_index *d = km_calloc(1, sizeof *d);
    if (!d) return km_no_memory_for(err, "an index on a device"), NULL;
    *d = (km_device_index){.ctx = ctx, .x = x};
    km_status s = km_device_rows_read(x, ctx->threads, &d->rows, err);
    d->length = km_index_is_mixed(x) ? 0 : x->length;
    d->gaps = x->metric == KM_METRIC_L2 || d->length > 0;
    if (s == KM_OK) s = put_tables(d, err);
    for (int k = 0; s == KM_OK && k < x->coder->classes; k++) s = put_frame(d, k, err);
    if (s == KM_OK) s = put_parts(d, rows > 0 ? rows : rows_lent(d), err);
    if (s == KM_OK && km_ctx_status(ctx) != KM_OK)
        s = km_error_set(err, km_ctx_status(ctx), "%s", km_ctx_error(ctx));
    km_step_end(ctx);
    if (s == KM_OK) return d;
    km_device_index_free(d);
    return NULL;
}

km_device_index *km_device_index_new(km_ctx *ctx, km_index *x, km_error *err) {
    return km_device_index_split(ctx, x, 0, err);
}

void km_device_index_free(km_device_index *d) {
    if (!d) return;
    for (int i = 0; i < d->n_parts; i++) {
        km_release(d->parts[i].codes);
        km_release(d->parts[i].scale);
        km_release(d->parts[i].cell);
    }
    for (int k = 0; k < KM_CODER_CLASSES; k++) {
        const km_coded *f = &d->frame[k];
        km_tensor *all[] = {d->turn[k], f->centre, f->place, f->amp, f->rate};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) km_release(all[i]);
    }
    km_release(d->mean);
    km_release(d->tables);
    km_release(d->windows);
    if (d->lent) km_sync(d->ctx); /* which may still be reading rows */
    km_device_rows_free(&d->rows);
    km_free(d->parts);
    km_free(d);
}

int km_device_index_parts(const km_device_index *d) { return d->lent ? d->n_parts : 0; }

/* ---- Searching ---- */

bool km_device_index_can(const km_device_index *d, int64_t k, const km_search_options *o) {
    if (!d || k < 1 || k > KM_SCAN_MOST) return false;
    return !o ||
           (!o->rerank && !o->allow && !o->deny && (o->probe <= 0 || o->probe >= d->x->cells));
}

/* What a part has found of some queries, on the device. */
typedef struct part_answer {
    const class_part *from;
    km_tensor *id, *dist;
} part_answer;

/* The room that merging takes: what a part found, and a list of k. */
typedef struct merge {
    int64_t queries, k;
    int32_t *found; /* (queries, k) rows of the part */
    float *far;     /* (queries, k) */
    int32_t *row;   /* (k) */
    float *dist;    /* (k) */
} merge;

/* The nearest k of row and dist (queries, k), sorted, and of an answer, which is given back. */
static km_status take_in(km_device_index *d, merge *m, part_answer *a, int32_t *row, float *dist) {
    int64_t k = m->k;
    km_read(d->ctx, a->id, m->found, sizeof *m->found * (size_t)(m->queries * k));
    km_read(d->ctx, a->dist, m->far, sizeof *m->far * (size_t)(m->queries * k));
    km_release(a->id);
    km_release(a->dist);
    for (int64_t q = 0; q < m->queries && !km_failed(d->ctx); q++) {
        const int32_t *found = m->found + q * k;
        const float *far = m->far + q * k;
        for (int64_t e = 0, i = 0, j = 0; e < k; e++) {
            bool old = row[q * k + i] >= 0 && (found[j] < 0 || dist[q * k + i] <= far[j]);
            m->row[e] = old            ? row[q * k + i]
                        : found[j] < 0 ? -1
                                       : found[j] + (int32_t)a->from->first;
            m->dist[e] = old ? dist[q * k + i] : far[j];
            if (old)
                i++;
            else
                j++;
        }
        memcpy(row + q * k, m->row, sizeof *row * (size_t)k);
        memcpy(dist + q * k, m->dist, sizeof *dist * (size_t)k);
    }
    return km_ctx_status(d->ctx);
}

/* Parts one after the other. Answers are read when many have come together: to wait for one is to let the
 * device wait while the next rows are copied. */
static km_status find_some(km_device_index *d, const float *queries, merge *m, int32_t *row,
                           float *dist) {
    km_ctx *ctx = d->ctx;
    part_answer some[ANSWERS];
    int64_t room = ANSWER_BYTES / (m->queries * m->k * 8), waiting = 0;
    room = room < 2 ? 2 : room > ANSWERS ? ANSWERS : room;
    km_tensor *q = km_from_data(ctx, KM_F32, KM_SHAPE(m->queries, d->x->dim), queries),
              *turned = NULL;
    if (d->mean) q = km_sub(ctx, q, d->mean);
    km_scan_codes_options o = {.product = !d->gaps, .chunk = d->chunk};
    for (int64_t i = 0; i < m->queries * m->k; i++) {
        row[i] = -1;
        dist[i] = INFINITY;
    }
    for (int i = 0; i < d->n_parts && !km_failed(ctx); i++) {
        const class_part *p = &d->parts[i];
        if (!turned || p->kind != p[-1].kind) turned = km_matmul(ctx, q, d->turn[p->kind]);
        km_coded rows = d->frame[p->kind];
        rows.codes = p->codes, rows.scale = p->scale, rows.cell = p->cell;
        part_answer *next = &some[waiting++];
        *next = (part_answer){.from = p};
        km_scope_begin(ctx);
        km_scan_coded(ctx, turned, &rows, m->k, &o, &next->id, &next->dist);
        next->id = km_keep(ctx, next->id);
        next->dist = km_keep(ctx, next->dist);
        km_scope_end(ctx, NULL);
        if (waiting < room && i + 1 < d->n_parts && !km_failed(ctx)) continue;
        for (int64_t a = 0; a < waiting; a++) take_in(d, m, &some[a], row, dist);
        waiting = 0;
    }
    km_step_end(ctx);
    return km_ctx_status(ctx);
}

/* To length 1, or to that of the rows; stretch (n) is what they were longer by. */
static void scale_queries(const km_device_index *d, float *q, int64_t n, float *stretch) {
    int64_t dim = d->x->dim;
    for (int64_t i = 0; i < n && d->length > 0; i++) {
        double sum = 0;
        for (int64_t j = 0; j < dim; j++) sum += (double)q[i * dim + j] * q[i * dim + j];
        stretch[i] = (float)sqrt(sum) / d->length;
    }
    km_unit(q, n, dim);
    for (int64_t i = 0; i < n * dim && d->length > 0; i++) q[i] *= d->length;
}

km_status km_device_index_find(km_device_index *d, const float *queries, int64_t n, int64_t k,
                               uint64_t *ids, float *dist, km_error *err) {
    int64_t dim = d->x->dim, bad = km_first_unfit_row(queries, n, dim, d->x->metric), block = 8192;
    if (bad >= 0)
        return km_error_set(
            err, KM_ERR_RANGE, "query %lld %s", (long long)bad,
            km_row_trouble((char[KM_TROUBLE_TEXT]){0}, queries + bad * dim, dim, d->x->metric));
    if (n < block) block = n > 0 ? n : 1;
    bool cosine = d->x->metric == KM_METRIC_COSINE, scaled = cosine || d->length > 0;
    float *unit = scaled ? km_alloc(sizeof *unit * (size_t)(block * dim)) : NULL;
    float *stretch = d->length > 0 ? km_alloc(sizeof *stretch * (size_t)block) : NULL;
    int32_t *row = km_alloc(sizeof *row * (size_t)(block * k));
    merge m = {.k = k,
               .found = km_alloc(sizeof *m.found * (size_t)(block * k)),
               .far = km_alloc(sizeof *m.far * (size_t)(block * k)),
               .row = km_alloc(sizeof *m.row * (size_t)k),
               .dist = km_alloc(sizeof *m.dist * (size_t)k)};
    km_status s = row && (unit || !scaled) && (stretch || !(d->length > 0)) && m.found && m.far &&
                          m.row && m.dist
                      ? KM_OK
                      : km_no_memory_for(err, "an index on a device");
    for (int64_t i = 0; s == KM_OK && i < n; i += block) {
        m.queries = n - i < block ? n - i : block;
        const float *q = queries + i * dim;
        if (scaled) {
            memcpy(unit, q, sizeof *unit * (size_t)(m.queries * dim));
            scale_queries(d, unit, m.queries, stretch);
            q = unit;
        }
        s = find_some(d, q, &m, row, dist + i * k);
        if (s != KM_OK) km_error_set(err, s, "%s", km_ctx_error(d->ctx));
        for (int64_t e = 0; s == KM_OK && e < m.queries * k; e++) {
            ids[i * k + e] = row[e] < 0 ? KM_NO_ID : d->rows.ids[row[e]];
            if (row[e] >= 0 && d->length > 0) {
                float of = stretch[e / k],
                      length = d->length * d->length; /* zero has no direction */
                float far = (dist[i * k + e] - length - (of > 0 ? length : 0)) / 2;
                dist[i * k + e] = !cosine ? of * far : of > 0 ? far : 0;
            }
            if (cosine && row[e] >= 0) dist[i * k + e] += 1;
        }
    }
    km_free(unit);
    km_free(stretch);
    km_free(row);
    km_free(m.found);
    km_free(m.far);
    km_free(m.row);
    km_free(m.dist);
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

km_status km_find_anywhere(km_device_index *d, km_index *x, const float *queries, int64_t n,
                           int64_t k, const km_search_options *o, km_threads *t, uint64_t *ids,
                           float *dist, km_error *err) {
    if (km_device_index_can(d, k, o)) {
        km_status s = km_device_index_find(d, queries, n, k, ids, dist, err);
        if (s != KM_ERR_MEMORY) return s;
        km_ctx_clear_error(d->ctx); /* the CPU has room */
        *err = (km_error){0};
    }
    return km_index_find(x, queries, n, k, o, t, ids, dist, err);
}
