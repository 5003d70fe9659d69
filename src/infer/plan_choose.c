/* Steps that choose their tokens where the logits are, and go on with them. */
#include "base/alloc.h"
#include "infer/plan_impl.h"
#include <string.h>

/* A step, and on: the tokens chosen are the next step's. */
static void step_and_choose(km_ctx *ctx, void *user) {
    km_plan_piece *a = user;
    km_tensor *after = NULL, *y = km_plan_run_part(a->m, a->in, &a->place);
    km_no_grad_begin(ctx);
    km_tensor *ids = km_sample_rows(ctx, y, a->settings, a->state, a->penalties, &after);
    km_assign(ctx, a->state, after);
    if (a->m->first == 0) {
        km_assign(ctx, a->in, ids);
        km_assign(ctx, a->rows, km_add(ctx, a->rows, a->next));
    }
    km_no_grad_end(ctx);
}

static bool has_penalties(const float *h) {
    return h[KM_SAMPLE_LAST] > 0 && ((h[KM_SAMPLE_REPEAT] > 0 && h[KM_SAMPLE_REPEAT] != 1) ||
                                     h[KM_SAMPLE_FREQUENCY] != 0 || h[KM_SAMPLE_PRESENCE] != 0);
}

/* Padding stays where it is. */
static void put_next(km_plan *p, km_plan_piece *a, int64_t n, int64_t padded) {
    int32_t one[2 * KM_STEP_ROWS];
    for (int64_t i = 0; i < padded; i++) one[2 * i] = 0, one[2 * i + 1] = i >= padded - n;
    km_write(a->m->ctx, a->next, one, sizeof *one * 2 * (size_t)padded);
    (void)p;
}

static km_status make_chooser(km_plan *p, km_plan_piece *a, int64_t padded) {
    km_ctx *ctx = a->m->ctx;
    if (a->next) return KM_OK;
    km_scope_begin(ctx);
    a->settings = km_keep(ctx, km_zeros(ctx, KM_F32, KM_SHAPE(padded, KM_SAMPLE_SETTINGS)));
    a->state = km_keep(ctx, km_zeros(ctx, KM_I32, KM_SHAPE(padded, KM_SAMPLE_STATE)));
    a->next = km_keep(ctx, km_zeros(ctx, KM_I32, KM_SHAPE(padded, 2)));
    km_scope_end(ctx, NULL);
    return km_plan_failed(p);
}

/* Row by row to the device, and back: the rows of choosers do not lie side by side. Padding chooses the
 * likeliest. */
static km_status put_choosers(km_plan *p, km_plan_piece *a, int64_t n, int64_t padded,
                              km_chooser *const *c) {
    km_ctx *ctx = a->m->ctx;
    size_t rows = (size_t)padded, pad = (size_t)(padded - n);
    float *settings = km_calloc(rows * KM_SAMPLE_SETTINGS, sizeof *settings);
    int32_t *state = km_calloc(rows * KM_SAMPLE_STATE, sizeof *state);
    if (!settings || !state) km_fail(p->ctx, KM_ERR_MEMORY, "plan: out of memory");
    bool penalties = false;
    for (size_t i = 0; settings && state && i < (size_t)n; i++) {
        memcpy(settings + (pad + i) * KM_SAMPLE_SETTINGS, c[i]->settings, sizeof c[i]->settings);
        memcpy(state + (pad + i) * KM_SAMPLE_STATE, c[i]->state, sizeof c[i]->state);
        penalties |= has_penalties(c[i]->settings);
    }
    a->penalties = penalties;
    if (km_plan_failed(p) == KM_OK) {
        km_write(ctx, a->settings, settings, sizeof *settings * rows * KM_SAMPLE_SETTINGS);
        km_write(ctx, a->state, state, sizeof *state * rows * KM_SAMPLE_STATE);
        put_next(p, a, n, padded);
    }
    km_free(settings);
    km_free(state);
    return km_plan_failed(p);
}

static km_status get_choosers(km_plan *p, km_plan_piece *a, int64_t n, int64_t padded,
                              km_chooser *const *c) {
    int32_t *state = km_alloc(sizeof *state * (size_t)padded * KM_SAMPLE_STATE);
    if (!state) return km_fail(p->ctx, KM_ERR_MEMORY, "plan: out of memory");
    km_read(a->m->ctx, a->state, state, sizeof *state * (size_t)padded * KM_SAMPLE_STATE);
    for (int64_t i = 0; i < n && km_plan_failed(p) == KM_OK; i++)
        memcpy(c[i]->state, state + (padded - n + i) * KM_SAMPLE_STATE, sizeof c[i]->state);
    km_free(state);
    return km_plan_failed(p);
}

km_status km_plan_choose(km_plan *p, const int32_t *ids, const int32_t *rows, int64_t n,
                         int64_t steps, km_chooser *const *chooser) {
    if (km_plan_failed(p) != KM_OK) return km_ctx_status(p->ctx);
    int64_t padded = km_plan_padded(p, n);
    km_plan_shape *s = km_plan_shape_of(p, padded, padded);
    if (!s) return km_plan_failed(p);
    km_plan_pad(p, ids, rows, n, padded);
    const void *in = p->ids;
    size_t bytes = sizeof *ids * (size_t)padded;
    int last = 0;
    if (steps < 1 || steps > (p->m->next ? 1 : KM_SAMPLE_RING))
        return km_fail(p->ctx, KM_ERR_RANGE, "plan: %lld steps at once", (long long)steps);
    if (km_plan_parts(p, s, &in, &bytes, &last) != KM_OK) return km_ctx_status(p->ctx);
    km_plan_piece *a = &s->part[last];
    if (make_chooser(p, a, padded) != KM_OK || put_choosers(p, a, n, padded, chooser) != KM_OK ||
        km_plan_put(p, s, last, in, bytes) != KM_OK)
        return km_ctx_status(p->ctx);
    uint64_t key = km_plan_key(p, a, a->penalties ? 2 : 1);
    for (int64_t i = 0; i < steps && !km_failed(a->m->ctx); i++)
        km_plan_run(p, a, &km_plan_way_of(a)->chosen, key, step_and_choose, padded, padded);
    return km_plan_failed(p) == KM_OK ? get_choosers(p, a, n, padded, chooser)
                                      : km_ctx_status(p->ctx);
}
