/* The frame of an index, and what is asked about it. */
#include "vector/index.h"
#include "base/alloc.h"
#include "base/sized.h"
#include "tensor/dtype.h"
#include "vector/coder_impl.h"
#include <math.h>
#include <string.h>

void km_unit(float *x, int64_t n, int64_t dim) {
    for (int64_t i = 0; i < n; i++, x += dim) {
        double sum = 0;
        for (int64_t j = 0; j < dim; j++) sum += (double)x[j] * x[j];
        float scale = sum > 0 ? (float)(1 / sqrt(sum)) : 0;
        for (int64_t j = 0; j < dim; j++) x[j] *= scale;
    }
}

/* f16 has 11 bits of mantissa: the rounding is far below a residual, except where values are so
 * small or so large that f16 has no room for them. Residuals are taken from the rounded anchors, so
 * nothing is lost; anchors are just a little off their means. */
bool km_anchors_to_half(float *anchors, int64_t n) {
    double sum = 0, error = 0;
    for (int64_t i = 0; i < n; i++) {
        float v = km_f16_to_f32(km_f32_to_f16(anchors[i]));
        if (!isfinite(v)) return false;
        sum += (double)anchors[i] * anchors[i];
        error += ((double)v - anchors[i]) * ((double)v - anchors[i]);
    }
    if (error > 1e-6 * sum) return false;
    for (int64_t i = 0; i < n; i++) anchors[i] = km_f16_to_f32(km_f32_to_f16(anchors[i]));
    return true;
}

typedef struct turn_job {
    const km_index *x;
    float *space; /* (workers, KM_TURN_ROWS, dim) */
} turn_job;

/* Groups of KM_TURN_ROWS anchors. */
static void turn_anchors(void *arg, int64_t begin, int64_t end, int worker) {
    const turn_job *j = arg;
    const km_index *x = j->x;
    float *rows = j->space + worker * KM_TURN_ROWS * x->dim;
    for (int64_t g = begin; g < end; g++) {
        int64_t first = g * KM_TURN_ROWS, n = x->cells - first;
        if (n > KM_TURN_ROWS) n = KM_TURN_ROWS;
        memset(rows, 0, sizeof *rows * (size_t)(KM_TURN_ROWS * x->dim));
        memcpy(rows, x->anchors + first * x->dim, sizeof *rows * (size_t)(n * x->dim));
        km_coder_turn_rows(x->coder, rows, x->turned + first * x->axes);
    }
}

static bool turn_all(km_index *x, km_threads *t) {
    if (!x->coder) return true;
    size_t each = sizeof(float) * (size_t)(KM_TURN_ROWS * x->dim);
    int64_t groups = (x->cells + KM_TURN_ROWS - 1) / KM_TURN_ROWS;
    x->axes = km_coder_turned(x->coder) - x->dim;
    x->turned = km_alloc(sizeof(float) * (size_t)(groups * KM_TURN_ROWS * x->axes));
    turn_job job = {x, km_alloc(each * (size_t)km_threads_count(t))};
    bool ok = x->turned && job.space;
    if (ok) km_threads_for(t, groups, 2, turn_anchors, &job);
    km_free(job.space);
    return ok;
}

km_index *km_index_frame(km_threads *t, km_metric metric, km_rerank rerank, int64_t dim,
                         float *anchors, int64_t cells, km_coder *coder, km_error *err) {
    km_index *x = km_calloc(1, sizeof *x);
    bool ok = x;
    if (x) {
        x->dim = dim;
        x->cells = cells;
        x->anchors = anchors;
        x->coder = coder;
        x->meta = json_object();
        x->mixed = km_calloc((size_t)cells, 1);
        x->rows = km_snapshot_new(0, NULL);
        ok = x->meta && x->mixed && x->rows && turn_all(x, t);
    }
    if (!ok) {
        if (x) {
            km_free(x->rows);
            km_free(x->turned);
            km_free((void *)x->mixed);
            json_decref(x->meta);
        }
        km_free(x);
        km_free(anchors);
        km_coder_free(coder);
        km_no_memory_for(err, "an index of %lld anchors", (long long)cells);
        return NULL;
    }
    pthread_mutex_init(&x->swap, NULL);
    pthread_mutex_init(&x->change, NULL);
    pthread_mutex_init(&x->pool_lock, NULL);
    x->metric = metric;
    x->rerank = rerank;
    x->mode = !coder                                  ? KM_INDEX_ANCHORS_ONLY
              : km_coder_mode(coder) == KM_CODE_DENSE ? KM_INDEX_DENSE
                                                      : KM_INDEX_FAST;
    x->code_bytes = coder ? km_coder_bytes(coder) : 0;
    x->vector_bytes = km_kmx_vector_bytes(&(km_kmx_head){.rerank = rerank, .dim = dim});
    atomic_init(&x->users, 1);
    km_handle_add(&x->handle, KM_HANDLE_INDEX);
    return x;
}

void km_index_close(km_index *x) {
    if (km_handle_remove(x, KM_HANDLE_INDEX)) km_index_drop(x);
}

void km_index_drop(km_index *x) {
    if (atomic_fetch_sub(&x->users, 1) > 1) return;
    km_index_end_joins(x);
    km_snapshot_drop(x->rows);
    km_free(x->anchors);
    km_free(x->turned);
    km_free((void *)x->mixed);
    km_coder_free(x->coder);
    json_decref(x->meta);
    km_threads_free(x->pool);
    pthread_mutex_destroy(&x->pool_lock);
    pthread_mutex_destroy(&x->change);
    pthread_mutex_destroy(&x->swap);
    km_free(x);
}

static void drop_index(void *index) { km_index_drop(index); }

bool km_index_usable(km_holding *held, const char *call, const km_index *x) {
    return km_hold(held, call, x, KM_HANDLE_INDEX, offsetof(km_index, users), drop_index);
}

int64_t km_index_live(const km_index *x) {
    km_snapshot *v = km_index_rows(x);
    int64_t dead, rows = km_snapshot_count(v, &dead);
    km_snapshot_drop(v);
    return rows - dead;
}

double km_file_size(const km_kmx_head *h, double meta, double coder) {
    double rows = (double)h->rows;
    double part[] = {meta,
                     8.0 * (double)(h->cells + 1),
                     (double)h->cells * (double)h->dim * (h->anchor_dtype == KM_F16 ? 2 : 4),
                     coder,
                     rows * (double)h->code_bytes,
                     (double)km_id_bytes(h->rows, h->id_bits),
                     h->dead ? (double)((h->rows + 7) / 8) : 0,
                     rows * (double)km_kmx_vector_bytes(h)};
    double sum = KM_KMX_PAGE, sections = 0, blocks = 0;
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        sum += KM_KMX_PAGE * ceil(part[i] / KM_KMX_PAGE);
        sections += part[i] > 0;
        blocks += ceil(part[i] / KM_KMX_BLOCK);
    }
    return sum + 64 * sections + 8 * blocks + 64; /* rows of the table, checksums, the trailer */
}

static double size_of(const km_index *x, const km_snapshot *v) {
    if (v->file_bytes > 0) return v->file_bytes;
    int64_t dead, rows = km_snapshot_count(v, &dead);
    int bits = 1;
    for (int i = 0; i < v->n; i++)
        if (v->at[i]->id_bits > bits) bits = v->at[i]->id_bits;
    char *meta = json_dumps(x->meta, JSON_COMPACT);
    km_kmx_head h = km_index_head(x, rows, dead, v->next_id, bits);
    double size = km_file_size(&h, meta ? (double)strlen(meta) : 0,
                               x->coder ? (double)km_coder_written(x->coder) : 0);
    free(meta);
    return size;
}

double km_index_size(const km_index *x) {
    km_snapshot *v = km_index_rows(x);
    double size = size_of(x, v);
    km_snapshot_drop(v);
    return size;
}

static km_index_info describe(const km_index *x) {
    km_snapshot *v = km_index_rows(x);
    int64_t dead, rows = km_snapshot_count(v, &dead);
    km_index_info i = {.size = sizeof i,
                       .count = rows - dead,
                       .deleted = dead,
                       .dim = x->dim,
                       .anchors = x->cells,
                       .metric = x->metric,
                       .mode = x->mode,
                       .rerank = (km_index_vectors)x->rerank,
                       .dtype = x->dtype,
                       .next_id = v->next_id,
                       .seed = x->seed,
                       .code_bytes = x->code_bytes,
                       .total_bytes = size_of(x, v),
                       .energy = x->energy,
                       .segments = v->n};
    km_snapshot_drop(v);
    return i;
}

km_status km_index_describe_sized(km_index *x, km_index_info *out, size_t size) {
    km_index_info own = {0};
    KM_HOLDING(held);
    if (km_index_usable(&held, "km_index_describe", x)) own = describe(x);
    return KM_HAND_OUT(out, size, &own, km_index_info);
}
