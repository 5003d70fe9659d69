/* From vectors to cells and codes, a block at a time; and back. On a GPU a block is uploaded once, and
 * residuals are taken, turned and encoded there. */
#include "backend/cpu/nearest.h"
#include "base/alloc.h"
#include "tensor/dtype.h"
#include "ops/nearest.h"
#include "vector/anchors.h"
#include "vector/device_coder.h"
#include "vector/index.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DEVICE_BYTES 256e6 /* of vectors on a device at once, at most */
enum {
    FEW = 16
}; /* rows that meet the anchors as they lie: laying them out for more takes longer */

struct km_index_encoder {
    const km_index *x;
    km_ctx *ctx;
    km_anchors anchors;
    km_device_coder *device; /* NULL: the CPU encodes */
    int64_t
        device_rows; /* at once; beside them lie their anchors, residuals and notes of a search */
    int64_t block;
    int32_t *cell;
    float *dist, *residual; /* (block), (block, dim) */
    float *decoded;         /* (block, dim), made when it is first measured */
    uint8_t *codes, *vectors;
};

km_index_encoder *km_index_encoder_new(km_ctx *ctx, const km_index *x, int64_t block,
                                       km_error *err) {
    km_index_encoder *e = km_calloc(1, sizeof *e);
    if (e) {
        *e = (km_index_encoder){.x = x, .ctx = ctx, .block = block};
        e->cell = km_alloc(sizeof *e->cell * (size_t)block);
        e->dist = km_alloc(sizeof *e->dist * (size_t)block);
        e->residual = km_alloc(sizeof *e->residual * (size_t)(block * x->dim));
        e->codes = km_alloc((size_t)block * x->code_bytes + 1);
        e->vectors = km_alloc((size_t)block * x->vector_bytes + 1);
    }
    if (!e || !e->cell || !e->dist || !e->residual || !e->codes || !e->vectors) {
        km_error_set(err, KM_ERR_MEMORY, "no memory to encode %lld vectors at a time",
                     (long long)block);
        km_index_encoder_free(e);
        return NULL;
    }
    if (ctx->device->host && block <= FEW) return e;
    /* The rows of cosine are scaled here, once; to anchors, L2 then says the same. On the host the
     * anchors serve where they lie: the index outlives the encoder. */
    if (ctx->device->host)
        e->anchors = (km_anchors){.ctx = ctx,
                                  .count = x->cells,
                                  .dim = x->dim,
                                  .metric = KM_METRIC_L2,
                                  .centre = km_vectors_in(ctx, x->anchors, x->cells, x->dim)};
    else
        km_anchors_from(ctx, x->anchors, x->cells, x->dim, KM_METRIC_L2, &e->anchors);
    if (!e->anchors.centre) {
        km_error_set(err, km_ctx_status(ctx), "%s", km_ctx_error(ctx));
        km_index_encoder_free(e);
        return NULL;
    }
    if (x->coder && !ctx->device->host) {
        double bytes = fmin(DEVICE_BYTES, 0.1 * km_room_left(ctx));
        e->device_rows = (int64_t)(bytes / (4.0 * (double)x->dim));
        if (e->device_rows < 1024) e->device_rows = 1024;
        e->device = km_device_coder_new(ctx, x->coder, &(km_error){0});
        if (!e->device) km_ctx_clear_error(ctx);
    }
    return e;
}

void km_index_encoder_free(km_index_encoder *e) {
    if (!e) return;
    km_anchors_release(&e->anchors);
    km_device_coder_free(e->device);
    km_free(e->cell);
    km_free(e->dist);
    km_free(e->residual);
    km_free(e->decoded);
    km_free(e->codes);
    km_free(e->vectors);
    km_free(e);
}

typedef struct rows_job {
    km_index_encoder *e;
    const float *rows;
    bool residuals;
} rows_job;

/* What is kept for re-ranking: f16, or a scale and int8. */
static void keep_vector(const km_index *x, const float *v, uint8_t *out) {
    if (x->rerank == KM_RERANK_F16) {
        for (int64_t j = 0; j < x->dim; j++) {
            uint16_t h = km_f32_to_f16(v[j]);
            memcpy(out + 2 * j, &h, 2);
        }
        return;
    }
    float most = 0;
    for (int64_t j = 0; j < x->dim; j++) most = fabsf(v[j]) > most ? fabsf(v[j]) : most;
    float scale = most / 127, inverse = most > 0 ? 127 / most : 0;
    memcpy(out, &scale, 4);
    for (int64_t j = 0; j < x->dim; j++) {
        float q = rintf(v[j] * inverse);
        out[4 + j] = (uint8_t)(int8_t)(q > 127 ? 127 : q < -127 ? -127 : q);
    }
}

static void keep_rows(void *arg, int64_t begin, int64_t end, int worker) {
    const rows_job *j = arg;
    km_index_encoder *e = j->e;
    int64_t dim = e->x->dim;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        const float *v = j->rows + i * dim, *a = e->x->anchors + e->cell[i] * dim;
        float *r = e->residual + i * dim;
        for (int64_t k = 0; k < dim && j->residuals; k++) r[k] = v[k] - a[k];
        if (e->x->vector_bytes) keep_vector(e->x, v, e->vectors + (size_t)i * e->x->vector_bytes);
    }
}

static km_status measure(km_index_encoder *e, int64_t n, km_encoded *out, km_error *err) {
    const km_index *x = e->x;
    if (!x->coder) {
        out->lost = out->energy;
        return KM_OK;
    }
    if (!e->decoded) e->decoded = km_alloc(sizeof(float) * (size_t)(e->block * x->dim));
    if (!e->decoded || km_coder_decode(x->coder, e->ctx->threads, e->codes, n, e->decoded) != KM_OK)
        return km_error_set(err, KM_ERR_MEMORY, "no memory to decode %lld vectors", (long long)n);
    for (int64_t i = 0; i < n * x->dim; i++) {
        double d = (double)e->residual[i] - e->decoded[i];
        out->lost += d * d;
    }
    return KM_OK;
}

/* Cells, distances and codes of rows that are uploaded once. */
static km_status run_on_device(km_index_encoder *e, const float *rows, int64_t first, int64_t n) {
    km_ctx *ctx = e->ctx;
    int64_t dim = e->x->dim;
    km_tensor *id, *dist;
    km_scope_begin(ctx);
    km_tensor *x = km_vectors_in(ctx, rows + first * dim, n, dim);
    if (x && km_nearest_of(ctx, x, e->anchors.centre, NULL, true, false, &id, &dist) == KM_OK) {
        km_tensor *residual = km_sub(ctx, x, km_index_select(ctx, e->anchors.centre, 0, id));
        km_device_coder_run(e->device, residual, dist, e->codes + (size_t)first * e->x->code_bytes);
        km_read(ctx, id, e->cell + first, sizeof *e->cell * (size_t)n);
        km_read(ctx, dist, e->dist + first, sizeof *e->dist * (size_t)n);
    }
    km_scope_end(ctx, NULL);
    km_release(x);
    return km_ctx_status(ctx);
}

/* What the nearest op says of the same rows. */
static void assign_few(km_index_encoder *e, const float *rows, int64_t n) {
    const km_nearest_kernels *k = km_simd_nearest();
    int64_t dim = e->x->dim;
    for (int64_t c = 0; c < e->x->cells; c++)
        for (int64_t i = 0; i < n; i++) {
            float dist = k->distance(rows + i * dim, e->x->anchors + c * dim, dim);
            if (c > 0 && !(dist < e->dist[i])) continue;
            e->dist[i] = dist;
            e->cell[i] = (int32_t)c;
        }
}

static km_status assign_rows(km_index_encoder *e, const float *rows, int64_t n) {
    km_status s = KM_OK;
    if (!e->anchors.centre) {
        assign_few(e, rows, n);
        return km_ctx_status(e->ctx);
    }
    for (int64_t i = 0; s == KM_OK && e->device && i < n; i += e->device_rows)
        s = run_on_device(e, rows, i, n - i < e->device_rows ? n - i : e->device_rows);
    if (s == KM_ERR_MEMORY) { /* the CPU encodes from now on */
        km_ctx_clear_error(e->ctx);
        km_device_coder_free(e->device);
        e->device = NULL;
    } else if (e->device) {
        return s;
    }
    return km_anchors_assign(e->ctx, &e->anchors, rows, n, e->cell, e->dist);
}

km_status km_index_encoder_run(km_index_encoder *e, float *rows, int64_t n, bool measured,
                               km_encoded *out, km_error *err) {
    const km_index *x = e->x;
    *out = (km_encoded){e->cell, e->codes, e->vectors, 0, 0};
    if (x->metric == KM_METRIC_COSINE) km_unit(rows, n, x->dim);
    if (assign_rows(e, rows, n) != KM_OK)
        return km_error_set(err, km_ctx_status(e->ctx), "%s", km_ctx_error(e->ctx));
    km_index_note_lengths(x, rows, e->cell, n);
    rows_job job = {e, rows, !e->device || measured};
    if (job.residuals || x->vector_bytes) km_threads_for(e->ctx->threads, n, 256, keep_rows, &job);
    for (int64_t i = 0; i < n; i++) out->energy += e->dist[i];
    if (x->coder && !e->device &&
        km_coder_encode(x->coder, e->ctx->threads, e->residual, n, e->codes) != KM_OK)
        return km_error_set(err, KM_ERR_MEMORY, "no memory to encode %lld vectors", (long long)n);
    return measured ? measure(e, n, out, err) : KM_OK;
}

/* ---- Back ---- */

typedef struct wanted {
    km_row_place at;
    int64_t index; /* where it goes */
} wanted;

static int by_place(const void *a, const void *b) {
    const wanted *x = a, *y = b;
    if (x->at.segment != y->at.segment) return x->at.segment < y->at.segment ? -1 : 1;
    return (x->at.row > y->at.row) - (x->at.row < y->at.row);
}

static int64_t cell_of(const km_index *x, const km_segment *g, int64_t row) {
    int64_t lo = 0, hi = x->cells; /* start[lo] <= row < start[hi] */
    while (hi - lo > 1) {
        int64_t mid = lo + (hi - lo) / 2;
        if ((int64_t)g->start[mid] <= row)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

void km_index_cells(const km_index *x, const km_snapshot *v, const km_row_place *places, int64_t n,
                    int32_t *cells) {
    for (int64_t i = 0; i < n; i++)
        cells[i] = (int32_t)cell_of(x, v->at[places[i].segment], places[i].row);
}

/* Codes and cells of the wanted rows, in the order of their places: codes are packed by cell, so
 * each cell is unpacked once. */
static km_status gather(const km_index *x, const km_snapshot *v, const wanted *list, int64_t n,
                        uint8_t *codes, int32_t *cells, km_error *err) {
    size_t code = x->code_bytes, room = 0;
    uint8_t *plain = NULL;
    km_status s = KM_OK;
    for (int64_t i = 0; s == KM_OK && i < n;) {
        const km_segment *g = v->at[list[i].at.segment];
        int64_t c = cell_of(x, g, list[i].at.row), first = (int64_t)g->start[c];
        size_t need = (size_t)(g->start[c + 1] - g->start[c]) * code + 1;
        if (need > room) {
            km_free(plain);
            plain = km_alloc(room = need);
        }
        s = plain ? km_segment_codes(x, g, c, plain, err) : km_no_memory(err);
        for (int32_t seg = list[i].at.segment; s == KM_OK && i < n; i++) {
            if (list[i].at.segment != seg || list[i].at.row >= (int64_t)g->start[c + 1]) break;
            cells[list[i].index] = (int32_t)c;
            memcpy(codes + (size_t)list[i].index * code,
                   plain + (size_t)(list[i].at.row - first) * code, code);
        }
    }
    km_free(plain);
    return s;
}

km_status km_index_restore(const km_index *x, const km_snapshot *v, km_threads *t,
                           const km_row_place *places, int64_t n, float *out, km_error *err) {
    size_t code = x->code_bytes;
    uint8_t *codes = km_alloc((size_t)n * code + 1);
    int32_t *cells = km_alloc(sizeof *cells * (size_t)(n + 1));
    wanted *list = km_alloc(sizeof *list * (size_t)(n + 1));
    km_status s = KM_OK;
    if (!codes || !cells || !list) s = km_no_memory(err);
    for (int64_t i = 0; s == KM_OK && i < n; i++) list[i] = (wanted){places[i], i};
    if (s == KM_OK) qsort(list, (size_t)n, sizeof *list, by_place);
    if (s == KM_OK) s = gather(x, v, list, n, codes, cells, err);
    if (s == KM_OK && code && km_coder_decode(x->coder, t, codes, n, out) != KM_OK)
        s = km_no_memory(err);
    for (int64_t i = 0; s == KM_OK && i < n; i++) {
        const float *a = x->anchors + cells[i] * x->dim;
        float *o = out + i * x->dim;
        for (int64_t j = 0; j < x->dim; j++) o[j] = code ? o[j] + a[j] : a[j];
    }
    km_free(codes);
    km_free(cells);
    km_free(list);
    return km_snapshot_intact(v, s, err);
}
