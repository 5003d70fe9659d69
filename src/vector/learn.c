/* Learning anchors and a coder from a sample. */
#include "vector/learn.h"
#include "base/alloc.h"
#include "tensor/dtype.h"
#include "vector/anchors.h"
#include <math.h>
#include <string.h>

enum {
    PER_ANCHOR = 40,     /* vectors of the sample for each anchor */
    SAMPLE = 20000,      /* at least, where there are as many */
    CODER_SAMPLE = 65536 /* vectors that the coder is trained on, at most */
};

#define TOLERANCE 1e-4 /* of the anchors' energy */

/* Training holds about sixteen matrices of anchors in f32, for which this part of a budget is kept. */
#define ANCHOR_BYTES 64.0
#define ANCHOR_PART 0.4

bool km_tell(const km_index_options *o, const char *stage, int64_t done, int64_t total) {
    return !o->progress || o->progress(o->user, stage, done, total);
}

km_status km_stopped(km_error *err) { return km_error_set(err, KM_ERR_STATE, "stopped"); }

km_status km_index_check_options(const km_index_options *o, int64_t total, int64_t dim,
                                 km_error *err) {
    int sizes = (o->bytes != 0) + (o->ratio != 0) + (o->recall != 0);
    if (total < 1) return km_error_set(err, KM_ERR_RANGE, "there are no vectors");
    if (dim < 1 || dim > KM_CODER_MAX_DIM)
        return km_error_set(err, KM_ERR_RANGE, "vectors of %lld dimensions; an index takes 1 to %d",
                            (long long)dim, KM_CODER_MAX_DIM);
    if (sizes > 1)
        return km_error_set(err, KM_ERR_RANGE,
                            "bytes, ratio and recall: only one can be asked for");
    if (sizes && o->mode == KM_INDEX_ANCHORS_ONLY)
        return km_error_set(
            err, KM_ERR_RANGE,
            "anchors-only keeps no codes, so neither bytes, ratio nor recall can be "
            "asked for");
    if (o->bytes != 0 && !(o->bytes >= 1 && o->bytes <= 8.0 * (double)dim + 16))
        return km_error_set(err, KM_ERR_RANGE,
                            "bytes %g is out of range: codes of %lld dimensions take 1 to %lld",
                            o->bytes, (long long)dim, (long long)(8 * dim + 16));
    if (o->ratio != 0 && !(o->ratio > 0 && o->ratio < INFINITY))
        return km_error_set(err, KM_ERR_RANGE, "ratio %g is out of range: it is above 0", o->ratio);
    if (o->recall != 0 && !(o->recall > 0 && o->recall < 1))
        return km_error_set(err, KM_ERR_RANGE,
                            "recall %g is out of range: it is above 0 and below 1", o->recall);
    if (o->anchors < 0 || o->anchors > 1 << 24)
        return km_error_set(err, KM_ERR_RANGE,
                            "anchors %lld is out of range: it is 1 to %d, or 0 for a choice",
                            (long long)o->anchors, 1 << 24);
    return o->training ? km_anchors_check(o->training, err) : KM_OK;
}

double km_memory_budget(const km_index_options *o) {
    return o->memory ? (double)o->memory : (double)((size_t)2 << 30);
}

double km_memory_fixed(int64_t dim) { return 10e6 + 24.0 * (double)dim * (double)dim; }

double km_memory_least(const km_index_options *o, int64_t dim) {
    double anchors = ANCHOR_BYTES * (double)o->anchors * (double)dim / ANCHOR_PART;
    return km_memory_fixed(dim) + (anchors > 16e6 ? anchors : 16e6);
}

/* Anchors are part of the index: at most a tenth of what the codes take. */
static int64_t choose_anchors(const km_index_options *o, int64_t total, int64_t dim) {
    int64_t k = o->anchors;
    double room =
        ANCHOR_PART * (km_memory_budget(o) - km_memory_fixed(dim)) / (ANCHOR_BYTES * (double)dim);
    if (k == 0) {
        double code = o->bytes > 0   ? o->bytes
                      : o->ratio > 0 ? 4.0 * (double)dim / o->ratio
                                     : (double)dim / 2;
        double most = 0.1 * (double)total * code / (2 * (double)dim);
        k = km_anchors_auto(total) / 2;
        if (o->mode != KM_INDEX_ANCHORS_ONLY && (double)k > most) k = (int64_t)most;
        if ((double)k > room) k = (int64_t)room;
    }
    return k < 1 ? 1 : k > total ? total : k;
}

int64_t km_learn_sample(const km_index_options *o, int64_t total, int64_t dim, double memory) {
    int64_t n = PER_ANCHOR * choose_anchors(o, total, dim);
    if (n < SAMPLE) n = SAMPLE;
    /* The sample, a copy for the device, and residuals. */
    double room = memory / (3.5 * 4 * (double)dim);
    if ((double)n > room) n = room < 1 ? 1 : (int64_t)room;
    return n < total ? n : total;
}

/* ---- Anchors ---- */

static bool on_round(void *user, int round, int rounds, double energy) {
    (void)energy;
    return km_tell(user, "anchors", round, rounds);
}

km_anchor_training km_training_of(const km_index_options *o) {
    km_anchor_training t = o->training ? *o->training : km_anchor_training_defaults();
    if (t.tolerance == 0) t.tolerance = TOLERANCE;
    return t;
}

static float *learn_anchors(const km_learn *l, int64_t *cells, int *rounds, double *energy,
                            km_error *err) {
    const km_index_options *o = l->options;
    km_anchors a = {0};
    km_anchor_options how = {.count = choose_anchors(o, l->total, l->dim),
                             .metric = KM_METRIC_L2, /* cosine: of rows scaled to length 1 */
                             .seed = o->seed,
                             .lloyd = o->lloyd,
                             .training = km_training_of(o),
                             .progress = on_round,
                             .user = (void *)(uintptr_t)o};
    float *centre = NULL;
    km_status s = km_anchors_train(l->ctx, l->sample, l->n, l->dim, &how, l->comm, &a);
    if (s == KM_OK) {
        centre = km_alloc(sizeof *centre * (size_t)(a.count * l->dim));
        if (centre && km_anchors_read(l->ctx, &a, centre) != KM_OK) {
            km_free(centre);
            centre = NULL;
        }
        *cells = a.count;
        *rounds = a.rounds;
        *energy = a.energy;
    }
    if (!centre && km_ctx_status(l->ctx) != KM_OK)
        km_error_set(err, km_ctx_status(l->ctx), "%s", km_ctx_error(l->ctx));
    else if (!centre)
        km_no_memory_for(err, "the anchors");
    km_anchors_release(&a);
    return centre;
}

/* The length that rows have, if it is one (km_index). Zeros, which embeddings of nothing are, get an
 * anchor to themselves: they would make another's cell a mixed one. The same on all ranks. */
static float common_length(const km_learn *l, float **anchors, int64_t *cells, km_error *err) {
    float length = km_comm_rank(l->comm) == 0 ? km_common_length(l->sample, l->n, l->dim, err) : 0;
    bool many = l->comm && km_comm_size(l->comm) > 1;
    double zeros = 0;
    for (int64_t i = 0; i < l->n && zeros == 0; i++) {
        const float *x = l->sample + i * l->dim;
        int64_t j = 0;
        while (j < l->dim && x[j] == 0) j++;
        zeros = j == l->dim;
    }
    if (many && (km_comm_broadcast(l->comm, 0, &length, sizeof length, err) != KM_OK ||
                 km_comm_sum(l->comm, &zeros, 1, err) != KM_OK))
        return 0;
    if (!(length > 0) || zeros == 0 || *cells < 2) return length;
    float *more = km_realloc(*anchors, sizeof *more * (size_t)((*cells + 1) * l->dim));
    if (!more) {
        km_no_memory_for(err, "the anchors");
        return 0;
    }
    memset(more + *cells * l->dim, 0, sizeof *more * (size_t)l->dim);
    *anchors = more;
    (*cells)++;
    return length;
}

/* ---- Codes ---- */

typedef struct coding {
    const km_learn *l;
    const float *anchors;
    int64_t cells;
    bool half;
    float length;    /* that rows have; 0: none, or not asked for */
    float *residual; /* (n, dim) of rows spread over the sample */
    int64_t n;
} coding;

static km_status take_residuals(coding *c, km_error *err) {
    const km_learn *l = c->l;
    int64_t n = l->n < CODER_SAMPLE ? l->n : CODER_SAMPLE, dim = l->dim;
    float *rows = km_alloc(sizeof *rows * (size_t)(n * dim + 1));
    int32_t *cell = km_alloc(sizeof *cell * (size_t)(n + 1));
    km_anchors a = {0};
    km_status s = KM_OK;
    if (!rows || !cell) s = km_no_memory_for(err, "a sample of residuals");
    for (int64_t i = 0; s == KM_OK && i < n; i++) {
        int64_t from = (int64_t)((double)i * (double)l->n / (double)n);
        memcpy(rows + i * dim, l->sample + from * dim, sizeof *rows * (size_t)dim);
    }
    if (s == KM_OK &&
        (km_anchors_from(l->ctx, c->anchors, c->cells, dim, KM_METRIC_L2, &a) != KM_OK ||
         km_anchors_assign(l->ctx, &a, rows, n, cell, NULL) != KM_OK))
        s = km_error_set(err, km_ctx_status(l->ctx), "%s", km_ctx_error(l->ctx));
    km_anchors_release(&a);
    for (int64_t i = 0; s == KM_OK && i < n; i++)
        for (int64_t j = 0; j < dim; j++) rows[i * dim + j] -= c->anchors[cell[i] * dim + j];
    km_free(cell);
    if (s != KM_OK) {
        km_free(rows);
        rows = NULL;
    }
    c->residual = rows;
    c->n = n;
    return s;
}

static km_coder *train_coder(const coding *c, double bytes, km_code_turn turn, km_error *err) {
    const km_index_options *o = c->l->options;
    km_coder_options how = {.dim = c->l->dim,
                            .bytes = bytes < 1 ? 1 : bytes,
                            .mode = o->mode == KM_INDEX_DENSE ? KM_CODE_DENSE : KM_CODE_FAST,
                            .turn = turn,
                            .seed = o->seed,
                            .rows = c->l->total};
    return km_coder_train(c->l->ctx->threads, c->residual, c->n, &how, err);
}

/* A frame with its own copy of the anchors, and the coder. */
static km_index *frame(const coding *c, km_coder *coder, km_error *err) {
    const km_learn *l = c->l;
    size_t n = sizeof(float) * (size_t)(c->cells * l->dim);
    float *anchors = km_alloc(n);
    if (!anchors) {
        km_coder_free(coder);
        km_no_memory_for(err, "the anchors");
        return NULL;
    }
    memcpy(anchors, c->anchors, n);
    km_index *x = km_index_frame(l->ctx->threads, l->options->metric, (km_rerank)l->options->rerank,
                                 l->dim, anchors, c->cells, coder, err);
    if (x) {
        x->half = c->half;
        x->length = c->length;
        x->dtype = l->dtype;
        x->seed = l->options->seed;
    }
    return x;
}

/* recall@10 at full crowding of an index without rows, which is closed: the crowd of some held-out
 * queries is all that could be found instead of their neighbours. */
static double try_index(const coding *c, km_index *x, km_error *err) {
    const km_learn *l = c->l;
    const km_crowd *w = l->crowd;
    enum { K = KM_HELDOUT_K + 1 };
    int64_t n = w->queries * K;
    uint64_t *found = km_alloc(sizeof *found * (size_t)n);
    float *dist = km_alloc(sizeof *dist * (size_t)n);
    km_status s = found && dist ? KM_OK : km_no_memory(err);
    double recall = NAN;
    if (s == KM_OK) s = km_index_append(l->ctx, x, w->rows, w->n, NULL, err);
    if (s == KM_OK)
        s = km_index_find(x, l->held->queries, w->queries, K, NULL, l->ctx->threads, found, dist,
                          err);
    for (int64_t i = 0; s == KM_OK && i < n; i++)
        if (found[i] != KM_NO_ID) found[i] = w->number[found[i]];
    if (s == KM_OK) recall = km_heldout_score(l->held, w->queries, found).recall;
    km_free(found);
    km_free(dist);
    km_index_close(x);
    return recall;
}

/* Of the file that the whole index will be, with this coder. */
static double whole_size(const coding *c, const km_coder *coder) {
    const km_learn *l = c->l;
    enum { META = 600 };
    km_kmx_head h = {.dim = l->dim,
                     .rows = l->total,
                     .cells = c->cells,
                     .code_bytes = (int64_t)km_coder_bytes(coder),
                     .id_bits = km_id_bits((uint64_t)l->total - 1),
                     .anchor_dtype = c->half ? KM_F16 : KM_F32,
                     .rerank = (km_rerank)l->options->rerank};
    return km_file_size(&h, META, (double)km_coder_written(coder));
}

/* Coders of one kind, smaller and smaller until the whole fits; NULL when none does (no error). */
static km_coder *fit_coder(const coding *c, double room, km_code_turn turn, km_error *err) {
    double bytes = room / (double)c->l->total;
    for (int attempt = 0; attempt < 6 && bytes >= 1; attempt++) {
        km_coder *coder = train_coder(c, floor(bytes), turn, err);
        if (!coder) return NULL;
        double over = whole_size(c, coder) - room;
        if (over <= 0) return coder;
        double own = (double)km_coder_bytes(coder);
        km_coder_free(coder);
        bytes = fmin(own, bytes) - fmax(1, ceil(over / (double)c->l->total));
    }
    return NULL;
}

/* A transform that is learnt takes room itself; whether it is worth it, the error tells. */
static km_coder *coder_by_ratio(const coding *c, km_error *err) {
    const km_learn *l = c->l;
    double room =
        (double)l->total * (double)l->dim * (double)km_dtype_size(l->dtype) / l->options->ratio;
    km_coder *a = fit_coder(c, room, KM_TURN_AUTO, err);
    km_coder *b = err->code == KM_OK ? fit_coder(c, room, KM_TURN_HADAMARD, err) : NULL;
    if (err->code == KM_OK && !a && !b)
        km_error_set(err, KM_ERR_RANGE,
                     "a ratio of %g leaves no room for codes: ids, anchors%s and the file's frame "
                     "take more than %.1f bytes for each of %lld vectors",
                     l->options->ratio,
                     l->options->rerank != KM_VECTORS_NONE ? ", vectors for re-ranking" : "",
                     room / (double)l->total, (long long)l->total);
    bool first = a && (!b || km_coder_error(a) <= km_coder_error(b));
    km_coder_free(first ? b : a);
    return first ? a : b;
}

static double try_size(const coding *c, double bytes, km_code_turn turn, double *whole,
                       km_error *err) {
    km_coder *coder = train_coder(c, bytes, turn, err);
    if (!coder) return NAN;
    *whole = whole_size(c, coder);
    km_index *x = frame(c, coder, err);
    return x ? try_index(c, x, err) : NAN;
}

/* The smallest codes that reach what is asked for, with transforms of one kind, or the largest. */
static double smallest_code(const coding *c, km_code_turn turn, double *whole, bool *reached,
                            km_error *err) {
    enum { SIZES = 256 };
    double size[SIZES], dim = (double)c->l->dim;
    int lo = 0, n = 0;
    for (double b = ceil(dim / 32) + 1; b <= dim + 1 && n < SIZES; b = fmax(b + 1, floor(b * 1.06)))
        size[n++] = b;
    *whole = INFINITY;
    *reached = false;
    for (int hi = n - 1; lo < hi && err->code == KM_OK;) {
        int mid = (lo + hi) / 2;
        double own, got = try_size(c, size[mid], turn, &own, err);
        if (!km_tell(c->l->options, "codes", n - (hi - lo), n)) km_stopped(err);
        if (!(got >= c->l->options->recall)) {
            lo = mid + 1;
            continue;
        }
        hi = mid;
        *whole = own;
        *reached = true;
    }
    return size[lo];
}

/* The smallest whole: a transform that is learnt takes room itself. What nothing is said gives is no
 * smaller where it is better. */
static km_coder *coder_by_recall(const coding *c, km_error *err) {
    const km_learn *l = c->l;
    double own = ceil((double)l->dim / 2), bytes = own, whole = 0, other;
    km_code_turn turn = KM_TURN_AUTO;
    if (l->crowd) {
        bool reached, too;
        bytes = smallest_code(c, turn, &whole, &reached, err);
        double plain =
            err->code == KM_OK ? smallest_code(c, KM_TURN_HADAMARD, &other, &too, err) : 0;
        if (err->code == KM_OK && too && (!reached || other < whole)) {
            bytes = plain;
            turn = KM_TURN_HADAMARD;
            whole = other;
        }
        double got = err->code == KM_OK ? try_size(c, own, KM_TURN_AUTO, &other, err) : NAN;
        if (got >= l->options->recall && other <= whole) {
            bytes = own;
            turn = KM_TURN_AUTO;
        }
    }
    return err->code == KM_OK ? train_coder(c, bytes, turn, err) : NULL;
}

/* Rank 0 trains, the others receive. */
static km_coder *share_coder(km_comm *comm, km_coder *coder, km_error *err) {
    if (!comm || km_comm_size(comm) == 1) return coder;
    uint64_t n = coder ? km_coder_written(coder) : 0;
    if (km_comm_broadcast(comm, 0, &n, sizeof n, err) != KM_OK || n == 0 || n > (1u << 31)) {
        km_coder_free(coder);
        km_error_set(err, KM_ERR_STATE, "rank 0 could not train the codes");
        return NULL;
    }
    uint8_t *bytes = km_alloc((size_t)n);
    if (bytes && coder) km_coder_write(coder, bytes);
    km_status s = bytes ? km_comm_broadcast(comm, 0, bytes, (size_t)n, err) : km_no_memory(err);
    if (s == KM_OK && !coder) coder = km_coder_read(bytes, (size_t)n, err);
    km_free(bytes);
    return coder;
}

static km_coder *learn_coder(coding *c, km_error *err) {
    const km_index_options *o = c->l->options;
    km_coder *coder = NULL;
    if (km_comm_rank(c->l->comm) == 0 && take_residuals(c, err) == KM_OK) {
        coder = o->ratio > 0    ? coder_by_ratio(c, err)
                : o->recall > 0 ? coder_by_recall(c, err)
                : o->bytes > 0  ? train_coder(c, o->bytes, KM_TURN_AUTO, err)
                                : train_coder(c, ceil((double)c->l->dim / 2), KM_TURN_AUTO, err);
        km_free(c->residual);
    }
    return share_coder(c->l->comm, coder, err);
}

km_index *km_index_learn(const km_learn *l, km_error *err) {
    const km_index_options *o = l->options;
    int rounds = 0;
    coding c = {.l = l};
    double energy = 0;
    if (o->metric == KM_METRIC_COSINE) km_unit(l->sample, l->n, l->dim);
    float *anchors = learn_anchors(l, &c.cells, &rounds, &energy, err);
    if (!anchors) return NULL;
    km_trim(l->ctx); /* what the training of anchors took is not there beside that of the coder */
    if (o->metric != KM_METRIC_L2) c.length = common_length(l, &anchors, &c.cells, err);
    if (err->code != KM_OK) {
        km_free(anchors);
        return NULL;
    }
    c.half = km_anchors_to_half(anchors, c.cells * l->dim);
    c.anchors = anchors;
    km_coder *coder = NULL;
    km_index *x = NULL;
    if (!km_tell(o, "codes", 0, 1))
        km_stopped(err);
    else if (o->mode == KM_INDEX_ANCHORS_ONLY || (coder = learn_coder(&c, err)))
        x = frame(&c, coder, err);
    if (x) {
        json_object_set_new(x->meta, "measured",
                            json_pack("{s:i, s:f}", "rounds", rounds, "energy", energy));
        x->energy = energy;
        if (err->code != KM_OK) {
            km_index_close(x);
            x = NULL;
        }
    }
    km_free(anchors);
    return x;
}
