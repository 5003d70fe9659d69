/* A whole training step: a small transformer written with the public interface, forward, loss,
 * backward and a plain gradient descent update, as a user would write it. */
#include "cli/bench.h"
#include <math.h>

enum { LAYERS = 6, WIDTH = 384, HEADS = 6, TOKENS = 256, VOCABULARY = 65, BATCH = 4 };
enum { WARM_STEPS = 2, MAX_STEPS = 50 };
#define EPS 1e-5
#define RATE 0.05

typedef struct layer {
    km_tensor *norm1_w, *norm1_b, *qkv_w, *qkv_b, *out_w, *out_b;
    km_tensor *norm2_w, *norm2_b, *up_w, *up_b, *down_w, *down_b;
} layer;

typedef struct model {
    km_tensor *tokens, *positions; /* (VOCABULARY, WIDTH), (TOKENS, WIDTH) */
    km_tensor *norm_w, *norm_b;
    layer layers[LAYERS];
    km_tensor *all[4 + 12 * LAYERS];
    int n;
    double parameters, in_products;
} model;

int km_bench_step_count(const km_bench *b) {
    (void)b;
    return 1;
}

/* ---- Parameters ---- */

static km_tensor *parameter(km_ctx *ctx, model *m, km_tensor *value) {
    km_tensor *p = km_keep(ctx, value);
    km_require_grad(ctx, p, true);
    if (p) m->all[m->n++] = p;
    if (p) m->parameters += (double)km_tensor_count(p);
    return p;
}

static km_tensor *weight(km_ctx *ctx, model *m, int64_t rows, int64_t cols) {
    m->in_products += (double)(rows * cols);
    return parameter(ctx, m, km_normal(ctx, KM_F32, KM_SHAPE(rows, cols), 0, 0.02));
}

static km_tensor *vector(km_ctx *ctx, model *m, int64_t n, double value) {
    return parameter(ctx, m, km_full(ctx, KM_F32, KM_SHAPE(n), value));
}

static void make_model(km_ctx *ctx, model *m) {
    *m = (model){0};
    m->tokens = weight(ctx, m, VOCABULARY, WIDTH);
    m->positions = parameter(ctx, m, km_normal(ctx, KM_F32, KM_SHAPE(TOKENS, WIDTH), 0, 0.02));
    for (int i = 0; i < LAYERS; i++) {
        layer *l = &m->layers[i];
        l->norm1_w = vector(ctx, m, WIDTH, 1);
        l->norm1_b = vector(ctx, m, WIDTH, 0);
        l->qkv_w = weight(ctx, m, 3 * WIDTH, WIDTH);
        l->qkv_b = vector(ctx, m, 3 * WIDTH, 0);
        l->out_w = weight(ctx, m, WIDTH, WIDTH);
        l->out_b = vector(ctx, m, WIDTH, 0);
        l->norm2_w = vector(ctx, m, WIDTH, 1);
        l->norm2_b = vector(ctx, m, WIDTH, 0);
        l->up_w = weight(ctx, m, 4 * WIDTH, WIDTH);
        l->up_b = vector(ctx, m, 4 * WIDTH, 0);
        l->down_w = weight(ctx, m, WIDTH, 4 * WIDTH);
        l->down_b = vector(ctx, m, WIDTH, 0);
    }
    m->norm_w = vector(ctx, m, WIDTH, 1);
    m->norm_b = vector(ctx, m, WIDTH, 0);
    km_step_end(ctx);
}

/* ---- The step ---- */

/* h (B, T, C) -> (B, T, C) */
static km_tensor *self_attention(km_ctx *ctx, const layer *l, km_tensor *h) {
    km_scope_begin(ctx);
    km_tensor *qkv = km_linear(ctx, h, l->qkv_w, l->qkv_b, KM_ACT_NONE); /* (B, T, 3C) */
    qkv = km_reshape(ctx, qkv, KM_SHAPE(BATCH, TOKENS, 3, HEADS, WIDTH / HEADS));
    km_tensor *part[3];
    for (int i = 0; i < 3; i++) /* (B, H, T, D) */
        part[i] = km_transpose(ctx, km_select(ctx, qkv, 2, i), 1, 2);
    km_tensor *o = km_attention(ctx, part[0], part[1], part[2], true, 0);
    o = km_reshape(ctx, km_transpose(ctx, o, 1, 2), KM_SHAPE(BATCH, TOKENS, WIDTH));
    return km_scope_end(ctx, km_linear(ctx, o, l->out_w, l->out_b, KM_ACT_NONE));
}

static km_tensor *feed_forward(km_ctx *ctx, const layer *l, km_tensor *h) {
    km_scope_begin(ctx);
    km_tensor *up = km_linear(ctx, h, l->up_w, l->up_b, KM_ACT_GELU); /* (B, T, 4C) */
    return km_scope_end(ctx, km_linear(ctx, up, l->down_w, l->down_b, KM_ACT_NONE));
}

static km_tensor *forward(km_ctx *ctx, const model *m, km_tensor *ids, km_tensor *targets) {
    km_tensor *x = km_add(ctx, km_embedding(ctx, m->tokens, ids), m->positions); /* (B, T, C) */
    km_tensor *h = km_layer_norm(ctx, x, m->layers[0].norm1_w, m->layers[0].norm1_b, EPS);
    for (int i = 0; i < LAYERS; i++) {
        const layer *l = &m->layers[i];
        bool last = i + 1 == LAYERS;
        h = km_add_layer_norm(ctx, self_attention(ctx, l, h), x, l->norm2_w, l->norm2_b, EPS, &x);
        h = km_add_layer_norm(ctx, feed_forward(ctx, l, h), x,
                              last ? m->norm_w : m->layers[i + 1].norm1_w,
                              last ? m->norm_b : m->layers[i + 1].norm1_b, EPS, &x);
    }
    km_tensor *logits = km_linear(ctx, h, m->tokens, NULL, KM_ACT_NONE); /* (B, T, V) */
    return km_cross_entropy(ctx, logits, targets, -1, KM_MEAN);
}

static double train_step(km_ctx *ctx, const model *m, km_tensor *ids, km_tensor *targets) {
    km_tensor *loss = forward(ctx, m, ids, targets);
    km_backward(ctx, loss);
    km_no_grad_begin(ctx);
    for (int i = 0; i < m->n; i++) { /* p = p - rate * gradient */
        km_scope_begin(ctx);
        km_tensor *change = km_mul_scalar(ctx, km_grad(m->all[i]), RATE);
        km_assign(ctx, m->all[i], km_sub(ctx, m->all[i], change));
        km_scope_end(ctx, NULL);
    }
    km_no_grad_end(ctx);
    km_zero_grad(ctx, m->all, m->n);
    double value = km_item(ctx, loss);
    km_step_end(ctx);
    return value;
}

/* ---- Measuring ---- */

static km_tensor *random_ids(km_ctx *ctx) {
    km_tensor *u = km_uniform(ctx, KM_F32, KM_SHAPE(BATCH, TOKENS), 0, VOCABULARY);
    return km_keep(ctx, km_cast(ctx, km_clamp(ctx, u, 0, VOCABULARY - 1), KM_I32));
}

bool km_bench_step(km_bench *b) {
    km_ctx *ctx = b->device ? b->device : b->cpu;
    km_progress_step(&b->progress, b->done++, "training step");
    if (km_bench_is_ref(b)) return true; /* it would take minutes */
    model m;
    km_trim(ctx);
    make_model(ctx, &m);
    km_tensor *ids = random_ids(ctx), *targets = random_ids(ctx);
    km_step_figures *f = &b->step;
    *f = (km_step_figures){.layers = LAYERS,
                           .width = WIDTH,
                           .heads = HEADS,
                           .vocabulary = VOCABULARY,
                           .batch = BATCH,
                           .tokens = TOKENS,
                           .parameters = m.parameters};
    double positions = BATCH * TOKENS;
    /* Products: 2 operations a weight and position, three times with the backward pass; attention:
     * the lower half of (T, T), two products forward and five backward. */
    f->flops = 6 * m.in_products * positions + 7.0 * LAYERS * positions * TOKENS * WIDTH;

    double seconds[MAX_STEPS];
    int wanted = (int)(b->repeat < MAX_STEPS ? b->repeat : MAX_STEPS);
    for (int i = 0; i < WARM_STEPS; i++) {
        double loss = train_step(ctx, &m, ids, targets);
        if (i == 0) f->first_loss = loss;
    }
    km_sync(ctx);
    km_stats_reset_peak(ctx);
    km_stats before = km_ctx_stats(ctx);
    for (int i = 0; i < wanted && km_ctx_status(ctx) == KM_OK; i++) {
        double start = km_now();
        f->last_loss = train_step(ctx, &m, ids, targets);
        km_sync(ctx);
        seconds[f->steps++] = km_now() - start;
    }
    km_stats after = km_ctx_stats(ctx);
    for (int i = 0; i < m.n; i++) km_release(m.all[i]);
    km_release(ids);
    km_release(targets);
    km_trim(ctx);
    if (km_ctx_status(ctx) != KM_OK) {
        km_error_set(&b->error, km_ctx_status(ctx), "training step: %s", km_ctx_error(ctx));
        return false;
    }
    if (!isfinite(f->last_loss)) {
        km_error_set(&b->error, KM_ERR_STATE, "training step: the loss is not a number");
        return false;
    }
    f->heap_allocs = (double)(after.heap_allocs - before.heap_allocs) / f->steps;
    f->pool_misses = (double)(after.pool_misses - before.pool_misses) / f->steps;
    f->peak_bytes = (double)after.peak_bytes;
    km_best_and_median(seconds, f->steps, &f->best, &f->median);
    f->measured = true;
    return true;
}
