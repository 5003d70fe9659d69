/* Steps of a running model. Their inputs are kept tensors that are written before each run, so that
 * nothing about a step but its number of rows is fixed when it is captured. */
#include "infer/plan.h"
#include "base/alloc.h"

typedef struct shape { /* a step of so many rows */
    km_plan *plan;
    int64_t n;
    km_tensor *ids, *rows; /* kept: (n), (n, 2) */
    km_tensor *logits;     /* kept: (n, vocab) */
    km_graph *graph;
    km_model_place place;
} shape;

struct km_plan {
    km_ctx *ctx;
    km_model *m;
    km_cache *cache;
    shape few[KM_FEW_ROWS + 1];
    int32_t *rows; /* (KM_PROMPT_CHUNK, 2), of a prompt's chunk */
};

km_plan *km_plan_new(km_ctx *ctx, km_model *m, km_cache *cache) {
    if (km_failed(ctx)) return NULL;
    km_plan *p = km_calloc(1, sizeof *p);
    if (p) p->rows = km_calloc(2 * KM_PROMPT_CHUNK, sizeof *p->rows);
    if (!p || !p->rows) {
        km_free(p);
        km_fail(ctx, KM_ERR_MEMORY, "plan: out of memory");
        return NULL;
    }
    p->ctx = ctx;
    p->m = m;
    p->cache = cache;
    return p;
}

void km_plan_free(km_plan *p) {
    if (!p) return;
    for (int i = 0; i <= KM_FEW_ROWS; i++) {
        km_graph_free(p->few[i].graph);
        km_release(p->few[i].logits);
        km_release(p->few[i].ids);
        km_release(p->few[i].rows);
    }
    km_free(p->rows);
    km_free(p);
}

/* The logits after the rows that `place` wants, f32. */
static km_tensor *logits_of(km_plan *p, km_tensor *ids, const km_model_place *place) {
    km_ctx *ctx = p->ctx;
    km_no_grad_begin(ctx);
    km_tensor *y = km_model_logits(ctx, p->m, km_model_forward(ctx, p->m, ids, place));
    y = km_cast(ctx, y, KM_F32);
    km_no_grad_end(ctx);
    return y;
}

static void step(km_ctx *ctx, void *user) {
    shape *s = user;
    km_tensor *y = logits_of(s->plan, s->ids, &s->place);
    km_release(s->logits); /* of the run before */
    s->logits = km_keep(ctx, y);
}

static shape *shape_of(km_plan *p, int64_t n) {
    shape *s = &p->few[n];
    if (s->plan) return s;
    km_scope_begin(p->ctx);
    s->n = n;
    s->ids = km_keep(p->ctx, km_zeros(p->ctx, KM_I32, KM_SHAPE(n)));
    s->rows = km_keep(p->ctx, km_zeros(p->ctx, KM_I32, KM_SHAPE(n, 2)));
    km_scope_end(p->ctx, NULL);
    if (km_failed(p->ctx)) return NULL;
    s->plan = p;
    return s;
}

km_status km_plan_few(km_plan *p, const int32_t *ids, const int32_t *rows, int64_t n,
                      float *logits) {
    km_ctx *ctx = p->ctx;
    if (km_failed(ctx)) return km_ctx_status(ctx);
    shape *s = shape_of(p, n);
    if (!s) return km_ctx_status(ctx);
    km_write(ctx, s->ids, ids, sizeof *ids * (size_t)n);
    km_write(ctx, s->rows, rows, sizeof *rows * 2 * (size_t)n);
    if (km_cache_place(p->cache, s->rows, 0, &s->place) != KM_OK) return km_ctx_status(ctx);
    if (km_graph_run(ctx, &s->graph, 1, step, s) != KM_OK) return km_ctx_status(ctx);
    return km_read(ctx, s->logits, logits, sizeof *logits * (size_t)(n * p->m->config.vocab));
}

km_status km_plan_prompt(km_plan *p, const int32_t *ids, int64_t n, int sequence, int64_t position,
                         float *logits) {
    km_ctx *ctx = p->ctx;
    km_model_place place;
    if (km_failed(ctx)) return km_ctx_status(ctx);
    if (n > KM_PROMPT_CHUNK) return km_fail(ctx, KM_ERR_RANGE, "plan: a chunk is too long");
    for (int64_t i = 0; i < n; i++) {
        p->rows[2 * i] = sequence;
        p->rows[2 * i + 1] = (int32_t)(position + i);
    }
    km_tensor *x = km_from_data(ctx, KM_I32, KM_SHAPE(n), ids);
    km_tensor *rows = km_from_data(ctx, KM_I32, KM_SHAPE(n, 2), p->rows);
    if (km_cache_place(p->cache, rows, 1, &place) != KM_OK) return km_ctx_status(ctx);
    if (logits)
        km_read(ctx, logits_of(p, x, &place), logits,
                sizeof *logits * (size_t)p->m->config.vocab);
    else
        km_model_forward(ctx, p->m, x, &place);
    if (!km_failed(ctx)) km_step_end(ctx);
    return km_ctx_status(ctx);
}

km_tensor *km_plan_logits(const km_plan *p, int64_t n) { return p->few[n].logits; }
