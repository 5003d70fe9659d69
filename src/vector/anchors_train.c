/* Learning anchors. A round assigns, sums up cells and moves the anchors, all on the device; its
 * settings are in a small tensor, so rounds with the same number of anchors are one captured step. The
 * host reads two numbers after each: the energy, and how many vectors changed their anchor. Vectors that
 * the device has no room for are lent to it in pieces, each coming over while the last is worked on. */
#include "base/alloc.h"
#include "base/rng.h"
#include "ops/nearest.h"
#include "vector/anchors.h"
#include "vector/maintain.h"
#include <math.h>
#include <string.h>

enum { KNOB_STEP, KNOB_REACH, KNOB_MOMENTUM, KNOBS };
enum { NEWS_ENERGY, NEWS_CHANGED, NEWS };

#define SLOTS 5 /* pieces that a device may hold at once */

typedef struct lent_rows { /* of the vectors: all of them, or what is lent at a time */
    km_tensor *x;          /* (n, d) */
    int64_t first, n;
} lent_rows;

typedef struct anchor_trainer {
    km_ctx *ctx;
    km_comm *comm;
    const km_anchor_options *o;
    int64_t n, d, k;
    double total;  /* rows of all ranks */
    float *sample; /* (sample_rows, d), the same on all ranks */
    int64_t sample_rows;
    lent_rows *pieces;
    int n_pieces;
    km_tensor *work; /* the device's notes on vectors that stay there */
    bool noted;
    km_tensor *id;             /* (n) i32 */
    km_tensor *centre, *speed; /* (k, d) */
    km_tensor *radius;         /* (k, 1): root mean square distance in the cell */
    km_tensor *count, *spread; /* (k) */
    km_tensor *knobs, *news;
    bool warm; /* robust means, partial steps */
    km_graph *graph;
} anchor_trainer;

static km_tensor *knob(km_ctx *ctx, anchor_trainer *t, int i) {
    return km_reshape(ctx, km_narrow(ctx, t->knobs, 0, i, 1), KM_SHAPE(1, 1));
}

static km_tensor *scalar(km_ctx *ctx, double v) { return km_full(ctx, KM_F32, KM_SHAPE(1, 1), v); }

/* How much a vector's pull counts: all of it up to `reach` times its cell's radius. (n, 1) */
static km_tensor *pull(km_ctx *ctx, anchor_trainer *t, int64_t n, km_tensor *id, km_tensor *dist) {
    if (!t->warm || t->o->training.robust == KM_ROBUST_MEAN) return NULL;
    km_tensor *far = km_mul(ctx, km_index_select(ctx, t->radius, 0, id), knob(ctx, t, KNOB_REACH));
    km_tensor *at = km_sqrt(ctx, km_reshape(ctx, dist, KM_SHAPE(n, 1))), *one = scalar(ctx, 1);
    km_tensor *inside = km_le(ctx, at, far), *beyond = scalar(ctx, 0);
    if (t->o->training.robust == KM_ROBUST_HUBER)
        beyond = km_div(ctx, far, km_maximum(ctx, at, scalar(ctx, 1e-30)));
    return km_reshape(ctx, km_where(ctx, inside, one, beyond), KM_SHAPE(n));
}

static void sum_ranks(km_ctx *ctx, anchor_trainer *t, km_tensor *x) {
    if (x && !km_comm_alone(t->comm)) km_comm_run(ctx, t->comm, KM_COMM_ALL_REDUCE, x);
}

/* Each anchor towards its cell's mean; one without a cell stays. */
static km_tensor *move(km_ctx *ctx, anchor_trainer *t, km_tensor *target) {
    if (t->warm) {
        km_tensor *step = km_mul(ctx, km_sub(ctx, target, t->centre), knob(ctx, t, KNOB_STEP));
        step = km_add(ctx, step, km_mul(ctx, t->speed, knob(ctx, t, KNOB_MOMENTUM)));
        km_assign(ctx, t->speed, step);
        target = km_add(ctx, t->centre, step);
    }
    return t->o->metric == KM_METRIC_COSINE ? km_unit_rows(ctx, target) : target;
}

/* Vectors to their nearest anchors: what the cells add up to, and how many vectors went to another. The
 * sums' mass is NULL where all weigh the same. */
static km_status assign_all(km_ctx *ctx, anchor_trainer *t, km_cell_sums_result *all,
                            km_tensor **changed) {
    bool fresh = !t->noted;
    for (int i = 0; i < t->n_pieces; i++) {
        const lent_rows *p = &t->pieces[i];
        km_tensor *id = NULL, *dist = NULL;
        km_cell_sums_result r = {0};
        if (km_nearest_of(ctx, p->x, t->centre, t->work, fresh, true, &id, &dist) != KM_OK) break;
        km_tensor *w = pull(ctx, t, p->n, id, dist);
        if (km_cell_sums(ctx, p->x, id, w, dist, t->k, &r) != KM_OK) break;
        if (!w) r.mass = NULL;
        km_tensor *old = t->n_pieces == 1 ? t->id : km_narrow(ctx, t->id, 0, p->first, p->n);
        km_tensor *moved = km_sum(ctx, km_cast(ctx, km_ne(ctx, id, old), KM_F32), NULL, 0, false);
        *changed = i ? km_add(ctx, *changed, moved) : moved;
        if (i) {
            r.sum = km_add(ctx, all->sum, r.sum);
            if (w) r.mass = km_add(ctx, all->mass, r.mass);
            r.count = km_add(ctx, all->count, r.count);
            r.spread = km_add(ctx, all->spread, r.spread);
        }
        *all = r;
        km_assign(ctx, old, id);
    }
    return km_ctx_status(ctx);
}

static void round_step(km_ctx *ctx, void *user) {
    anchor_trainer *t = user;
    km_tensor *changed = NULL;
    km_cell_sums_result r = {0};
    if (assign_all(ctx, t, &r, &changed) != KM_OK) return;
    sum_ranks(ctx, t, r.sum);
    if (r.mass) sum_ranks(ctx, t, r.mass);
    sum_ranks(ctx, t, r.count);
    sum_ranks(ctx, t, r.spread);
    km_shape column = KM_SHAPE(t->k, 1);
    km_tensor *mass = km_reshape(ctx, r.mass ? r.mass : r.count, column), *zero = scalar(ctx, 0);
    km_tensor *some = km_gt(ctx, mass, zero), *count = km_reshape(ctx, r.count, column);
    km_tensor *mean = km_div(ctx, r.sum, km_where(ctx, some, mass, scalar(ctx, 1)));
    km_tensor *target = km_where(ctx, some, mean, t->centre), *moved = move(ctx, t, target);
    km_tensor *each = km_div(ctx, r.spread, km_full(ctx, KM_F32, KM_SHAPE(1), t->total));
    km_tensor *energy = km_sum(ctx, each, NULL, 0, false);
    if (!t->warm && t->o->metric != KM_METRIC_COSINE) {
        /* What the move to the means takes off, were nothing assigned anew. */
        km_tensor *by = km_sub(ctx, moved, t->centre);
        km_tensor *gain =
            km_mul(ctx, km_sum(ctx, km_mul(ctx, by, by), (const int[]){1}, 1, true), count);
        energy = km_sub(ctx, energy,
                        km_sum(ctx, km_mul_scalar(ctx, gain, 1 / t->total), NULL, 0, false));
    }
    km_assign(ctx, km_narrow(ctx, t->news, 0, NEWS_ENERGY, 1),
              km_reshape(ctx, energy, KM_SHAPE(1)));
    km_assign(ctx, km_narrow(ctx, t->news, 0, NEWS_CHANGED, 1),
              km_reshape(ctx, changed, KM_SHAPE(1)));
    km_tensor *square =
        km_div(ctx, km_reshape(ctx, r.spread, column), km_maximum(ctx, count, scalar(ctx, 1)));
    km_assign(ctx, t->radius, km_sqrt(ctx, square));
    km_assign(ctx, t->count, r.count);
    km_assign(ctx, t->spread, r.spread);
    km_assign(ctx, t->centre, moved);
}

/* ---- One training ---- */

static km_tensor *kept(km_ctx *ctx, km_dtype dtype, km_shape shape) {
    return km_keep(ctx, km_zeros(ctx, dtype, shape));
}

static void drop_cells(anchor_trainer *t) {
    km_release(t->centre);
    km_release(t->speed);
    km_release(t->radius);
    km_release(t->count);
    km_release(t->spread);
    t->centre = t->speed = t->radius = t->count = t->spread = NULL;
}

/* k anchors at centre (k, d). */
static km_status take_cells(anchor_trainer *t, const float *centre, int64_t k) {
    km_ctx *ctx = t->ctx;
    drop_cells(t);
    t->k = k;
    t->centre = km_keep_data(ctx, KM_F32, KM_SHAPE(k, t->d), centre);
    t->speed = kept(ctx, KM_F32, KM_SHAPE(k, t->d));
    t->radius = km_keep(ctx, km_full(ctx, KM_F32, KM_SHAPE(k, 1), INFINITY));
    t->count = kept(ctx, KM_F32, KM_SHAPE(k));
    t->spread = kept(ctx, KM_F32, KM_SHAPE(k));
    km_step_end(ctx);
    return km_ctx_status(ctx);
}

/* Rows spread evenly over all ranks' rows, a random one of each stretch. */
static km_status take_sample(anchor_trainer *t, const float *x, int64_t k) {
    km_ctx *ctx = t->ctx;
    int64_t all = (int64_t)t->total, first = 0;
    if (!km_comm_alone(t->comm)) {
        double before[64] = {0};
        int rank = km_comm_rank(t->comm), size = km_comm_size(t->comm);
        if (size > 64) return km_fail(ctx, KM_ERR_UNSUPPORTED, "anchors: more than 64 ranks");
        for (int r = rank + 1; r < size; r++) before[r] = (double)t->n;
        if (km_comm_sum(t->comm, before, size, &ctx->error) != KM_OK) return km_ctx_status(ctx);
        first = (int64_t)before[rank];
    }
    t->sample_rows = km_seed_sample_rows(all, k);
    t->sample = km_calloc((size_t)(t->sample_rows * t->d + 1), sizeof *t->sample);
    if (!t->sample) return km_fail(ctx, KM_ERR_MEMORY, "anchors: out of memory");
    for (int64_t i = 0; i < t->sample_rows; i++) {
        int64_t from = (int64_t)((double)i * (double)all / (double)t->sample_rows);
        int64_t to = (int64_t)((double)(i + 1) * (double)all / (double)t->sample_rows);
        km_philox4 r = km_philox(t->o->seed, 0x5a3e, (uint64_t)i);
        int64_t row = from + (to > from ? (int64_t)(r.v[0] % (uint64_t)(to - from)) : 0) - first;
        if (row >= 0 && row < t->n)
            memcpy(t->sample + i * t->d, x + row * t->d, sizeof *x * (size_t)t->d);
    }
    if (km_comm_alone(t->comm)) return KM_OK;
    km_tensor *s = km_from_data(ctx, KM_F32, KM_SHAPE(t->sample_rows, t->d), t->sample);
    sum_ranks(ctx, t, s);
    if (s) km_read(ctx, s, t->sample, sizeof *t->sample * (size_t)(t->sample_rows * t->d));
    km_step_end(ctx);
    return km_ctx_status(ctx);
}

static km_status first_anchors(anchor_trainer *t, int64_t k) {
    km_ctx *ctx = t->ctx;
    int64_t *pick = km_alloc(sizeof *pick * (size_t)k), got = -1;
    float *centre = km_alloc(sizeof *centre * (size_t)(k * t->d));
    if (pick && centre)
        got = km_seed_pick(ctx, t->sample, t->sample_rows, t->d, k, t->o->seed, pick);
    else
        km_fail(ctx, KM_ERR_MEMORY, "anchors: out of memory");
    for (int64_t i = 0; i < got; i++)
        memcpy(centre + i * t->d, t->sample + pick[i] * t->d, sizeof *centre * (size_t)t->d);
    if (got > 0) take_cells(t, centre, got);
    km_free(centre);
    km_free(pick);
    return km_ctx_status(ctx);
}

/* Temperatures fall over the first half of the rounds, in a straight line or by a factor each. */
static double heat_at(const anchor_trainer *t, int round, int rounds) {
    double heat = t->o->training.temperature > 0 ? t->o->training.temperature : 0.5,
           part = (double)round / (0.5 * rounds);
    if (t->o->lloyd || part >= 1) return 0;
    return t->o->training.cooling > 0 ? heat * pow(t->o->training.cooling, round)
                                      : heat * (1 - part);
}

static km_status run_round(anchor_trainer *t, int round, int rounds, double *energy,
                           double *changed) {
    km_ctx *ctx = t->ctx;
    double heat = heat_at(t, round, rounds);
    float knobs[KNOBS] = {[KNOB_STEP] = (float)(1 - 0.5 * heat),
                          [KNOB_REACH] = (float)(heat > 0 ? 1 / heat : INFINITY),
                          [KNOB_MOMENTUM] = (float)(t->o->training.momentum * heat)};
    float news[NEWS] = {0};
    t->warm = heat > 0;
    if (t->warm) km_write(ctx, t->knobs, knobs, sizeof knobs);
    if (!t->noted || !km_comm_alone(t->comm)) { /* talking is no part of a captured step */
        round_step(ctx, t);
        km_step_end(ctx);
        t->noted = true;
    } else {
        km_graph_run(ctx, &t->graph, (uint64_t)t->k * 2 + t->warm, round_step, t);
    }
    if (km_read(ctx, t->news, news, sizeof news) != KM_OK) return km_ctx_status(ctx);
    *energy = (double)news[NEWS_ENERGY];
    *changed = (double)news[NEWS_CHANGED];
    if (!km_comm_alone(t->comm)) km_comm_sum(t->comm, changed, 1, &ctx->error);
    return km_ctx_status(ctx);
}

/* Every few rounds until two thirds of them are done, so that the rest can settle. */
static bool due(const anchor_trainer *t, int round, int rounds) {
    int every = t->o->training.maintain_every ? t->o->training.maintain_every
                : rounds / 8 > 2              ? rounds / 8
                                              : 2;
    return !t->o->lloyd && every > 0 && rounds >= 4 && (round + 1) % every == 0 &&
           round + 1 <= rounds * 2 / 3;
}

static km_status maintain(anchor_trainer *t, int round, km_anchors *out) {
    km_ctx *ctx = t->ctx;
    size_t cells = (size_t)t->k, bytes = sizeof(float) * cells * (size_t)t->d;
    float *centre = km_alloc(bytes + sizeof(float) * cells), *count = centre + cells * (size_t)t->d;
    if (!centre) return km_fail(ctx, KM_ERR_MEMORY, "anchors: out of memory");
    km_read(ctx, t->centre, centre, bytes);
    km_read(ctx, t->count, count, sizeof(float) * cells);
    km_maintenance m = {.sample = t->sample,
                        .rows = t->sample_rows,
                        .d = t->d,
                        .total = t->total,
                        .centre = centre,
                        .count = count,
                        .k = t->k,
                        .merge_below = t->o->training.merge,
                        .split_above = t->o->training.split,
                        .seed = t->o->seed + (uint64_t)round};
    if (km_maintain(ctx, &m) == KM_OK && m.changed) {
        if (m.k != t->k) {
            take_cells(t, centre, m.k);
        } else { /* in place: a captured round holds on to the addresses */
            km_write(ctx, t->centre, centre, bytes);
            km_assign(ctx, t->speed, km_zeros(ctx, KM_F32, KM_SHAPE(1, 1)));
            km_assign(ctx, t->radius, km_full(ctx, KM_F32, KM_SHAPE(1, 1), INFINITY));
            km_step_end(ctx);
        }
        out->merged += m.merged;
        out->split += m.split;
        out->reseeded += m.reseeded;
    }
    km_free(centre);
    return km_ctx_status(ctx);
}

/* Whether a cold round leaves nothing to do. */
static bool settled(const anchor_trainer *t, int round, int rounds, const km_anchor_round *r,
                    double before) {
    if (t->warm || (!t->o->lloyd && round + 1 < rounds * 2 / 3)) return false;
    return (round > 0 && r->reassigned == 0) ||
           (t->o->training.tolerance > 0 && before - r->energy < t->o->training.tolerance * before);
}

static km_status all_rounds(anchor_trainer *t, km_anchors *out) {
    int rounds = t->o->training.rounds > 0 ? t->o->training.rounds : 25;
    double before = INFINITY, last = 0;
    for (int i = 0; i < rounds; i++) {
        double changed = 0, energy = 0;
        if (run_round(t, i, rounds, &energy, &changed) != KM_OK) return km_ctx_status(t->ctx);
        out->energy = energy;
        out->rounds = i + 1;
        km_anchor_round r = {.round = i + 1,
                             .temperature = heat_at(t, i, rounds),
                             .energy = energy,
                             .change = last > 0 ? energy / last - 1 : 0,
                             .reassigned = (int64_t)changed};
        bool go_on = !t->o->progress || t->o->progress(t->o->user, i + 1, rounds, energy);
        bool tend = go_on && due(t, i, rounds);
        int64_t merged = out->merged, split = out->split;
        if (tend && maintain(t, i, out) != KM_OK) return km_ctx_status(t->ctx);
        r.merged = out->merged - merged;
        r.split = out->split - split;
        r.anchors = t->k;
        r.converged = go_on && !tend && settled(t, i, rounds, &r, before);
        if (t->o->training.report) t->o->training.report(t->o->training.user, &r);
        if (!go_on || r.converged) break;
        if (!tend && !t->warm && (t->o->lloyd || i + 1 >= rounds * 2 / 3)) before = energy;
        last = energy;
    }
    return KM_OK;
}

/* Vectors of a piece, n for all at once. Beside vectors the device has notes on them, half as large, and
 * a few numbers for each. */
static int64_t piece_rows(const anchor_trainer *t) {
    double room = km_room_left(t->ctx) - 32.0 * (double)t->k * (double)t->d;
    if (t->o->piece > 0) return t->o->piece < t->n ? t->o->piece : t->n;
    double row = 4.0 * (double)t->d, notes = 0.5 * row + 256;
    if ((row + notes) * (double)t->n <= 0.9 * room) return t->n;
    room -= 32.0 *
            (double)t->n; /* what all rows have there: ids, and what becomes of them in a round */
    int64_t rows = (int64_t)(0.8 * room / (SLOTS * row + notes));
    return rows < 1024 ? 1024 : rows;
}

static void nothing(void *owner) { (void)owner; }

static km_status open_data(anchor_trainer *t, const float *x) {
    km_ctx *ctx = t->ctx;
    int64_t rows = piece_rows(t);
    int64_t count = rows >= t->n ? 1 : (t->n + rows - 1) / rows;
    t->pieces = km_calloc((size_t)count, sizeof *t->pieces);
    if (!t->pieces) return km_fail(ctx, KM_ERR_MEMORY, "anchors: out of memory");
    for (int64_t i = 0; i < count && !km_failed(ctx); i++) {
        lent_rows *p = &t->pieces[t->n_pieces++];
        p->first = i * rows;
        p->n = count == 1 || t->n - p->first < rows ? t->n - p->first : rows;
        p->x = count == 1 ? km_vectors_in(ctx, x, t->n, t->d)
                          : km_wrap(ctx, "vectors", KM_F32, KM_SHAPE(p->n, t->d),
                                    x + p->first * t->d, nothing, NULL);
    }
    if (count == 1 && t->pieces[0].x) t->work = km_nearest_work(ctx, t->pieces[0].x);
    t->id = km_keep(ctx, km_full(ctx, KM_I32, KM_SHAPE(t->n), -1));
    t->knobs = kept(ctx, KM_F32, KM_SHAPE(KNOBS));
    t->news = kept(ctx, KM_F32, KM_SHAPE(NEWS));
    km_step_end(ctx);
    return km_ctx_status(ctx);
}

static float *scaled_rows(km_ctx *ctx, const float *x, int64_t n, int64_t d) {
    float *y = km_alloc(sizeof *y * (size_t)(n * d + 1));
    if (!y) km_fail(ctx, KM_ERR_MEMORY, "anchors: out of memory");
    for (int64_t i = 0; y && i < n; i++) {
        double s = 0;
        for (int64_t e = 0; e < d; e++) s += (double)x[i * d + e] * (double)x[i * d + e];
        double by = s > 0 ? 1 / sqrt(s) : 0;
        for (int64_t e = 0; e < d; e++) y[i * d + e] = (float)((double)x[i * d + e] * by);
    }
    return y;
}

/* From the first anchors to the last. x is scaled where the metric wants it. */
static km_status train(km_ctx *ctx, const float *x, int64_t n, int64_t d, double total, int64_t k,
                       const km_anchor_options *o, km_comm *comm, km_anchors *out) {
    anchor_trainer t = {.ctx = ctx, .comm = comm, .o = o, .n = n, .d = d, .total = total};
    *out = (km_anchors){0};
    if (take_sample(&t, x, k) == KM_OK && first_anchors(&t, k) == KM_OK &&
        open_data(&t, x) == KM_OK && all_rounds(&t, out) == KM_OK) {
        out->ctx = ctx;
        out->centre = t.centre;
        out->count = t.k;
        out->dim = d;
        out->metric = o->metric;
        t.centre = NULL;
    }
    km_graph_free(t.graph);
    drop_cells(&t);
    if (t.n_pieces > 1) km_sync(ctx); /* nothing reads what was lent any more */
    for (int i = 0; i < t.n_pieces; i++) km_release(t.pieces[i].x);
    km_free(t.pieces);
    km_release(t.work);
    km_release(t.id);
    km_release(t.knobs);
    km_release(t.news);
    km_free(t.sample);
    return km_ctx_status(ctx);
}

/* Multiply-adds of a training that is over at once. */
#define LITTLE_WORK 1e9

static bool was_set(const km_anchor_training *t) {
    return t->robust != KM_ROBUST_HUBER || t->temperature > 0 || t->cooling > 0 ||
           t->momentum > 0 || t->maintain_every != 0 || t->merge > 0 || t->split > 0;
}

km_status km_anchors_train(km_ctx *ctx, const float *x, int64_t n, int64_t d,
                           const km_anchor_options *options, km_comm *comm, km_anchors *out) {
    km_anchor_options o = options ? *options : (km_anchor_options){0};
    *out = (km_anchors){0};
    if (km_failed(ctx)) return km_ctx_status(ctx);
    if (d < 1 || n < 0 || (n && !x))
        return km_fail(ctx, KM_ERR_SHAPE, "anchors: %lld vectors of %lld dimensions", (long long)n,
                       (long long)d);
    float *scaled = NULL;
    double total = (double)n;
    km_no_grad_begin(ctx);
    if (!km_comm_alone(comm)) km_comm_sum(comm, &total, 1, &ctx->error);
    if (!km_failed(ctx) && total < 1)
        km_fail(ctx, KM_ERR_SHAPE, "anchors: no vectors to learn from");
    int64_t k = o.count > 0 ? o.count : km_anchors_auto((int64_t)total);
    if ((double)k > total) k = (int64_t)total;
    if (!km_failed(ctx) && o.metric == KM_METRIC_COSINE) x = scaled = scaled_rows(ctx, x, n, d);
    if (!km_failed(ctx)) train(ctx, x, n, d, total, k, &o, comm, out);
    /* With few anchors chance decides which way ends lower; where it costs nothing, both are tried.
     * Whoever set how it cools or what is merged gets what that gives. */
    double work = total * (double)k * (double)d * (o.training.rounds > 0 ? o.training.rounds : 25);
    if (!km_failed(ctx) && !o.lloyd && !was_set(&o.training) && work < LITTLE_WORK) {
        km_anchors plain;
        o.lloyd = true;
        o.progress = NULL;
        o.training.report = NULL;
        bool better = train(ctx, x, n, d, total, k, &o, comm, &plain) == KM_OK &&
                      plain.energy < out->energy && plain.count <= k;
        km_anchors worse = better ? *out : plain;
        if (better) *out = plain;
        km_anchors_release(&worse);
    }
    if (km_failed(ctx)) km_anchors_release(out);
    km_free(scaled);
    km_no_grad_end(ctx);
    return km_ctx_status(ctx);
}
