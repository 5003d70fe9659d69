/* The transformer that the benchmarks train: written with the public interface, forward, loss,
 * backward and a plain gradient descent update, as a user would write it. */
#include "cli/bench/model.h"
#include "base/alloc.h"

#define EPS 1e-5
#define RATE 0.05

typedef struct layer {
    km_tensor *norm1_w, *norm1_b, *qkv_w, *qkv_b, *out_w, *out_b;
    km_tensor *norm2_w, *norm2_b, *up_w, *up_b, *down_w, *down_b;
} layer;

struct km_bench_model {
    km_net_size size;
    km_tensor *tokens, *positions; /* (vocabulary, width), (tokens, width) */
    km_tensor *norm_w, *norm_b;
    km_tensor *ids, *targets; /* (batch, tokens) i32 */
    layer *layers;
    km_tensor **all; /* every parameter */
    int n;
    double parameters, in_products;
};

/* ---- Parameters ---- */

static km_tensor *parameter(km_ctx *ctx, km_bench_model *m, km_tensor *value) {
    km_tensor *p = km_keep(ctx, value);
    km_require_grad(ctx, p, true);
    if (p) m->all[m->n++] = p;
    if (p) m->parameters += (double)km_tensor_count(p);
    return p;
}

static km_tensor *weight(km_ctx *ctx, km_bench_model *m, int64_t rows, int64_t cols) {
    m->in_products += (double)(rows * cols);
    return parameter(ctx, m, km_normal(ctx, KM_F32, KM_SHAPE(rows, cols), 0, 0.02));
}

static km_tensor *vector(km_ctx *ctx, km_bench_model *m, int64_t n, double value) {
    return parameter(ctx, m, km_full(ctx, KM_F32, KM_SHAPE(n), value));
}

static km_tensor *random_ids(km_ctx *ctx, const km_net_size *s) {
    km_tensor *u = km_uniform(ctx, KM_F32, KM_SHAPE(s->batch, s->tokens), 0, s->vocabulary);
    return km_keep(ctx, km_cast(ctx, km_clamp(ctx, u, 0, s->vocabulary - 1), KM_I32));
}

void km_bench_model_free(km_ctx *ctx, km_bench_model *m) {
    if (!m) return;
    for (int i = 0; i < m->n; i++) km_release(m->all[i]);
    km_release(m->ids);
    km_release(m->targets);
    km_step_end(ctx);
    km_trim(ctx);
    km_free(m->layers);
    km_free(m->all);
    km_free(m);
}

km_bench_model *km_bench_model_new(km_ctx *ctx, const km_net_size *size) {
    km_bench_model *m = km_calloc(1, sizeof *m);
    if (m) m->layers = km_calloc((size_t)size->layers, sizeof *m->layers);
    if (m) m->all = km_calloc((size_t)(4 + 12 * size->layers), sizeof *m->all);
    if (!m || !m->layers || !m->all) {
        km_ctx_fail(ctx, KM_ERR_MEMORY, "out of memory");
        km_bench_model_free(ctx, m);
        return NULL;
    }
    int width = size->width;
    m->size = *size;
    km_seed(ctx, 1);
    m->tokens = weight(ctx, m, size->vocabulary, width);
    m->positions =
        parameter(ctx, m, km_normal(ctx, KM_F32, KM_SHAPE(size->tokens, width), 0, 0.02));
    for (int i = 0; i < size->layers; i++) {
        layer *l = &m->layers[i];
        l->norm1_w = vector(ctx, m, width, 1);
        l->norm1_b = vector(ctx, m, width, 0);
        l->qkv_w = weight(ctx, m, 3 * width, width);
        l->qkv_b = vector(ctx, m, 3 * width, 0);
        l->out_w = weight(ctx, m, width, width);
        l->out_b = vector(ctx, m, width, 0);
        l->norm2_w = vector(ctx, m, width, 1);
        l->norm2_b = vector(ctx, m, width, 0);
        l->up_w = weight(ctx, m, 4 * width, width);
        l->up_b = vector(ctx, m, 4 * width, 0);
        l->down_w = weight(ctx, m, width, 4 * width);
        l->down_b = vector(ctx, m, width, 0);
    }
    m->norm_w = vector(ctx, m, width, 1);
    m->norm_b = vector(ctx, m, width, 0);
    m->ids = random_ids(ctx, size);
    m->targets = random_ids(ctx, size);
    km_step_end(ctx);
    if (km_ctx_status(ctx) == KM_OK) return m;
    km_bench_model_free(ctx, m);
    return NULL;
}

double km_bench_model_parameters(const km_bench_model *m) { return m->parameters; }

/* Products: 2 operations a weight and position, three times with the backward pass; attention: the
 * lower half of (T, T), two products forward and five backward. */
double km_bench_model_flops(const km_bench_model *m) {
    const km_net_size *s = &m->size;
    double positions = (double)s->batch * s->tokens;
    return 6 * m->in_products * positions + 7.0 * s->layers * positions * s->tokens * s->width;
}

/* ---- The step ---- */

/* h (B, T, C) -> (B, T, C) */
static km_tensor *self_attention(km_ctx *ctx, const km_net_size *s, const layer *l, km_tensor *h) {
    km_scope_begin(ctx);
    km_tensor *qkv = km_linear(ctx, h, l->qkv_w, l->qkv_b, KM_ACT_NONE); /* (B, T, 3C) */
    qkv = km_reshape(ctx, qkv, KM_SHAPE(s->batch, s->tokens, 3, s->heads, s->width / s->heads));
    km_tensor *part[3];
    for (int i = 0; i < 3; i++) /* (B, H, T, D) */
        part[i] = km_transpose(ctx, km_select(ctx, qkv, 2, i), 1, 2);
    km_tensor *o = km_attention(ctx, part[0], part[1], part[2], true, 0);
    o = km_reshape(ctx, km_transpose(ctx, o, 1, 2), KM_SHAPE(s->batch, s->tokens, s->width));
    return km_scope_end(ctx, km_linear(ctx, o, l->out_w, l->out_b, KM_ACT_NONE));
}

static km_tensor *feed_forward(km_ctx *ctx, const layer *l, km_tensor *h) {
    km_scope_begin(ctx);
    km_tensor *up = km_linear(ctx, h, l->up_w, l->up_b, KM_ACT_GELU); /* (B, T, 4C) */
    return km_scope_end(ctx, km_linear(ctx, up, l->down_w, l->down_b, KM_ACT_NONE));
}

static km_tensor *forward(km_ctx *ctx, const km_bench_model *m) {
    km_tensor *x = km_add(ctx, km_embedding(ctx, m->tokens, m->ids), m->positions); /* (B, T, C) */
    km_tensor *h = km_layer_norm(ctx, x, m->layers[0].norm1_w, m->layers[0].norm1_b, EPS);
    for (int i = 0; i < m->size.layers; i++) {
        const layer *l = &m->layers[i];
        bool last = i + 1 == m->size.layers;
        km_tensor *a = self_attention(ctx, &m->size, l, h);
        h = km_add_layer_norm(ctx, a, x, l->norm2_w, l->norm2_b, EPS, &x);
        h = km_add_layer_norm(ctx, feed_forward(ctx, l, h), x,
                              last ? m->norm_w : m->layers[i + 1].norm1_w,
                              last ? m->norm_b : m->layers[i + 1].norm1_b, EPS, &x);
    }
    km_tensor *logits = km_linear(ctx, h, m->tokens, NULL, KM_ACT_NONE); /* (B, T, V) */
    return km_cross_entropy(ctx, logits, m->targets, -1, KM_MEAN);
}

double km_bench_model_step(km_ctx *ctx, const km_bench_model *m) {
    km_tensor *loss = forward(ctx, m);
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
