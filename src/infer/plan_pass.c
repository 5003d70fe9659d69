/* One pass of any rows, and tokens chosen from its logits: apart from each other, so that the host can work
 * out what may be chosen (grammars) while a GPU is at work on the pass. */
#include "base/alloc.h"
#include "base/util.h"
#include "infer/plan_impl.h"
#include <string.h>

#define REPLAYED_CHUNK 128 /* rows of prompts alone: longer ones hide their launches */

/* As it is, for rows that no step of a captured size serves. */
static km_tensor *direct(km_plan *p, int64_t n, int64_t last, int64_t tail) {
    km_net *m = p->m;
    km_ctx *ctx = m->ctx;
    km_net_place place;
    if (km_plan_faulty()) km_fail(ctx, KM_ERR_GPU, "%s: a fault was asked for", km_ctx_device(ctx));
    km_tensor *x = km_from_data(ctx, KM_I32, KM_SHAPE(n), p->ids);
    km_tensor *rows = km_from_data(ctx, KM_I32, KM_SHAPE(n, 2), p->rows);
    if (km_cache_place(p->cache, 0, rows, last == n ? 0 : last, &place) != KM_OK) return NULL;
    place.at.mix = km_plan_mix_of(p, ctx, n);
    ctx->rows_tail = tail < n ? tail : 0;
    if (tail == n) ctx->rows_alone = KM_STEP_ROWS;
    km_tensor *y = km_keep(ctx, km_plan_run_part(m, x, &place));
    ctx->rows_alone = ctx->rows_tail = 0;
    if (!km_failed(ctx)) km_step_end(ctx);
    return y;
}

/* By the step of its size; the logits stay the step's until it runs again. */
static km_tensor *captured(km_plan *p, int64_t n, int64_t last, int64_t tail) {
    km_plan_shape *s = km_plan_shape_of(p, n, last);
    if (!s || km_plan_put(p, s, 0, p->ids, sizeof *p->ids * (size_t)n) != KM_OK) return NULL;
    km_plan_piece *a = &s->part[0];
    km_plan_run(p, a, &km_plan_way_of(a)->graph, km_plan_key(p, a, 1), km_plan_step, n, tail);
    return km_plan_way_of(a)->out;
}

km_status km_plan_pass(km_plan *p, const int32_t *ids, const int32_t *rows, int64_t n, int64_t last,
                       int64_t tail) {
    if (km_plan_failed(p) != KM_OK) return km_ctx_status(p->ctx);
    if (n < 1 || n > KM_PROMPT_CHUNK || last > n || tail > last || last < 1 || p->m->next)
        return km_fail(p->ctx, KM_ERR_RANGE, "plan: a pass of %lld rows", (long long)n);
    if (p->own) km_release(p->logits);
    p->logits = NULL;
    /* A host's mixed rows are too many to gain by a replay, and so are a GPU's long chunks. */
    bool step = p->host ? tail == n && n <= KM_HOST_CAPTURES
                        : n <= KM_STEP_ROWS && (tail > 0 || n <= REPLAYED_CHUNK);
    int64_t padded = step ? km_plan_padded(p, n) : n;
    /* Which rows have logits is part of what is captured, so it has few sizes, too. */
    int64_t most = tail == n ? padded : km_min64(km_plan_padded(p, last), padded);
    km_plan_pad(p, ids, rows, n, padded);
    p->own = !step;
    p->logits =
        step ? captured(p, padded, most, tail == n ? padded : tail) : direct(p, n, last, tail);
    p->wanted = last;
    return km_plan_failed(p);
}

/* The logits that are wanted, (wanted, vocab): a tensor of the step. */
static km_tensor *wanted(km_plan *p) {
    km_ctx *ctx = p->m->ctx;
    int64_t all = p->logits ? p->logits->shape.dim[0] : 0;
    return all == p->wanted ? p->logits : km_narrow(ctx, p->logits, 0, all - p->wanted, p->wanted);
}

km_status km_plan_logits(km_plan *p, int64_t i, float *to) {
    km_ctx *ctx = p->m->ctx;
    if (km_plan_failed(p) != KM_OK) return km_ctx_status(p->ctx);
    if (!p->logits || i < 0 || i >= p->wanted)
        return km_fail(p->ctx, KM_ERR_STATE, "plan: there are no logits of row %lld", (long long)i);
    km_scope_begin(ctx);
    km_read(ctx, km_narrow(ctx, wanted(p), 0, i, 1), to, sizeof *to * (size_t)p->m->config.vocab);
    km_scope_end(ctx, NULL);
    return km_plan_failed(p);
}

/* ---- Choosing ---- */

typedef struct pick_inputs { /* as the ops take them, on the host */
    float *settings;
    int32_t *state, *masks, *biases, *told;
    int64_t n_masks, words, n_biases, n_told, top;
    bool penalties;
} pick_inputs;

static void free_inputs(pick_inputs *in) {
    km_free(in->settings);
    km_free(in->state);
    km_free(in->masks);
    km_free(in->biases);
    km_free(in->told);
}

static bool make_inputs(const km_plan_pick *pick, int64_t n, pick_inputs *in) {
    size_t rows = (size_t)n;
    for (int64_t i = 0; i < n; i++) {
        const km_chooser *c = pick[i].chooser;
        if (!c) continue;
        int64_t words = (km_chooser_tokens(c) + 63) / 64 * 2;
        if (pick[i].mask) in->n_masks++, in->words = km_max64(in->words, words);
        in->n_biases += c->n_biases;
        in->n_told += c->told;
        if (c->told) in->top = km_max64(in->top, c->n_top);
    }
    in->settings = km_calloc(rows * KM_SAMPLE_SETTINGS, sizeof *in->settings);
    in->state = km_calloc(rows * KM_SAMPLE_STATE, sizeof *in->state);
    in->masks = km_calloc((size_t)(in->n_masks * in->words) + 1, sizeof *in->masks);
    in->biases = km_calloc((size_t)in->n_biases * 3 + 1, sizeof *in->biases);
    in->told = km_calloc((size_t)in->n_told * 2 + 1, sizeof *in->told);
    return in->settings && in->state && in->masks && in->biases && in->told;
}

static void fill_inputs(const km_plan_pick *pick, int64_t n, pick_inputs *in) {
    int64_t mask = 0, bias = 0;
    for (int64_t i = 0; i < n; i++) {
        const km_chooser *c = pick[i].chooser;
        if (!c) continue;
        float *how = in->settings + i * KM_SAMPLE_SETTINGS;
        memcpy(how, c->settings, sizeof c->settings);
        memcpy(in->state + i * KM_SAMPLE_STATE, c->state, sizeof c->state);
        in->penalties |= how[KM_SAMPLE_LAST] > 0;
        if (pick[i].mask) {
            size_t bytes = (size_t)(km_chooser_tokens(c) + 63) / 64 * 8;
            memcpy(in->masks + mask * in->words, pick[i].mask, bytes);
            how[KM_SAMPLE_MASK] = (float)++mask;
        }
        for (int k = 0; k < c->n_biases; k++, bias++) {
            in->biases[3 * bias] = (int32_t)i;
            in->biases[3 * bias + 1] = c->bias[k].id;
            memcpy(&in->biases[3 * bias + 2], &c->bias[k].add, sizeof c->bias[k].add);
        }
    }
}

/* Of those that want it, how likely the chosen token was and which were the likeliest. */
static km_status tell(km_plan *p, km_plan_pick *pick, int64_t n, pick_inputs *in, km_tensor *y) {
    km_ctx *ctx = p->m->ctx;
    int64_t at = 0, tokens = 0, width = 1 + in->top;
    for (int64_t i = 0; i < n; i++)
        if (pick[i].chooser && pick[i].chooser->told) {
            in->told[2 * at] = (int32_t)i;
            in->told[2 * at++ + 1] = pick[i].id;
            tokens = km_chooser_tokens(pick[i].chooser);
        }
    float *odds = km_alloc(sizeof *odds * (size_t)(at * width));
    int32_t *ids = km_alloc(sizeof *ids * (size_t)(at * in->top) + 1);
    if (!odds || !ids) km_fail(ctx, KM_ERR_MEMORY, "plan: out of memory");
    km_tensor *top = NULL, *which = km_from_data(ctx, KM_I32, KM_SHAPE(at, 2), in->told);
    km_tensor *all = km_logprobs(ctx, y, which, tokens, in->top, &top);
    if (odds && ids) {
        km_read(ctx, all, odds, sizeof *odds * (size_t)(at * width));
        if (in->top) km_read(ctx, top, ids, sizeof *ids * (size_t)(at * in->top));
    }
    at = 0;
    for (int64_t i = 0; i < n && !km_failed(ctx); i++) {
        const km_chooser *c = pick[i].chooser;
        if (!c || !c->told) continue;
        pick[i].logprob = odds[at * width];
        for (int k = 0; k < c->n_top && pick[i].top; k++)
            pick[i].top[k] = (km_logprob){ids[at * in->top + k], odds[at * width + 1 + k]};
        at++;
    }
    km_free(odds);
    km_free(ids);
    return km_plan_failed(p);
}

static km_status choose(km_plan *p, km_plan_pick *pick, int64_t n, pick_inputs *in) {
    km_ctx *ctx = p->m->ctx;
    int32_t id[KM_STEP_ROWS] = {0};
    km_tensor *y = wanted(p), *masks = NULL, *biases = NULL, *after = NULL;
    km_no_grad_begin(ctx);
    km_tensor *how = km_from_data(ctx, KM_F32, KM_SHAPE(n, KM_SAMPLE_SETTINGS), in->settings);
    km_tensor *state = km_from_data(ctx, KM_I32, KM_SHAPE(n, KM_SAMPLE_STATE), in->state);
    if (in->n_masks) masks = km_from_data(ctx, KM_I32, KM_SHAPE(in->n_masks, in->words), in->masks);
    if (in->n_biases) biases = km_from_data(ctx, KM_I32, KM_SHAPE(in->n_biases, 3), in->biases);
    km_tensor *ids = km_sample_edited(ctx, y, how, state, in->penalties, masks, biases, &after);
    km_read(ctx, ids, id, sizeof *id * (size_t)n);
    for (int64_t i = 0; i < n; i++) pick[i].id = id[i];
    if (in->n_told && !km_failed(ctx)) tell(p, pick, n, in, y);
    for (int64_t i = 0; i < n && !km_failed(ctx); i++)
        if (pick[i].chooser && id[i] >= 0) km_chooser_chose(pick[i].chooser, id[i]);
    km_no_grad_end(ctx);
    if (!km_failed(ctx)) km_step_end(ctx);
    return km_plan_failed(p);
}

km_status km_plan_pick_tokens(km_plan *p, km_plan_pick *pick, int64_t n) {
    if (km_plan_failed(p) != KM_OK) return km_ctx_status(p->ctx);
    if (!p->logits || n != p->wanted || n > KM_STEP_ROWS)
        return km_fail(p->ctx, KM_ERR_STATE, "plan: there are no logits of %lld rows",
                       (long long)n);
    pick_inputs in = {0};
    km_status s = KM_OK;
    if (make_inputs(pick, n, &in)) {
        fill_inputs(pick, n, &in);
        s = choose(p, pick, n, &in);
    } else {
        s = km_fail(p->ctx, KM_ERR_MEMORY, "plan: out of memory");
    }
    free_inputs(&in);
    return s;
}
