/* First values of the parameters. They are made on the host in double precision, one Philox block
 * for four of them, and rounded to f32 before anything else, so that neither the device nor the
 * dtype nor the order of the parameters has a say in them. */
#include "base/alloc.h"
#include "base/rng.h"
#include "model/net.h"
#include <string.h>

/* A stream of random numbers for each name (FNV-1a). */
static uint64_t stream_of(const char *name) {
    uint64_t h = 14695981039346656037u;
    for (; *name; name++) h = (h ^ (uint8_t)*name) * 1099511628211u;
    return h;
}

typedef struct fill {
    float *out;
    int64_t n;
    uint64_t seed, stream;
    double sd;
} fill;

static void fill_blocks(void *arg, int64_t begin, int64_t end, int worker) {
    const fill *f = arg;
    (void)worker;
    for (int64_t b = begin; b < end; b++) {
        km_philox4 r = km_philox(f->seed, f->stream, (uint64_t)b);
        double v[4];
        km_box_muller(r.v[0], r.v[1], &v[0], &v[1]);
        km_box_muller(r.v[2], r.v[3], &v[2], &v[3]);
        for (int i = 0; i < 4 && 4 * b + i < f->n; i++) f->out[4 * b + i] = (float)(v[i] * f->sd);
    }
}

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

/* Projections that add to the residual stream: 2 layers of them make its variance. */
static bool into_residual(const char *name) {
    return ends_with(name, "c_proj.weight") || ends_with(name, "o_proj.weight") ||
           ends_with(name, "down_proj.weight");
}

void km_param_normal(km_ctx *ctx, km_param *p, uint64_t seed, double sd) {
    int64_t n = km_shape_count(p->t->shape);
    float *host = km_alloc(sizeof *host * (size_t)(n ? n : 1));
    if (!host) {
        km_fail(ctx, KM_ERR_MEMORY, "model: no memory for the first values of %s", p->name);
        return;
    }
    fill f = {host, n, seed, stream_of(p->name), sd};
    km_threads_for(ctx->threads, (n + 3) / 4, 1 << 14, fill_blocks, &f);
    km_scope_begin(ctx);
    km_assign(ctx, p->t, km_from_data(ctx, KM_F32, p->t->shape, host));
    km_scope_end(ctx, NULL);
    km_free(host);
}

static void constant(km_ctx *ctx, km_param *p, double value) {
    km_scope_begin(ctx);
    km_assign(ctx, p->t, km_full(ctx, p->t->dtype, KM_SCALAR, value));
    km_scope_end(ctx, NULL);
}

static bool in_block(const char *name) { return strstr(name, ".h.") || strstr(name, ".layers."); }

/* GPT-2's 0.02 serves widths of several hundred and more. The narrower a layer, the fewer terms
 * have its sums, and the larger each must be for results of the same size: models of 64 and 128
 * learn markedly faster so. Tables of embeddings stay at 0.02, which keeps the first logits close
 * to guessing. */
static double deviation(const km_config *c, const char *name) {
    double sd = 0.02;
    if (in_block(name) && c->dim < 384) sd *= sqrt(384.0 / (double)c->dim);
    if (sd > 0.05) sd = 0.05; /* the narrowest gain nothing from more */
    return into_residual(name) ? sd / sqrt(2.0 * c->layers) : sd;
}

km_status km_net_init(km_net *m, uint64_t seed) {
    km_ctx *ctx = m->ctx;
    for (int i = 0; i < m->params.n && !km_failed(ctx); i++) {
        km_param *p = &m->params.at[i];
        if (p->t->shape.ndim > 1)
            km_param_normal(ctx, p, seed, deviation(&m->config, p->name));
        else
            constant(ctx, p, ends_with(p->name, ".bias") ? 0 : 1);
    }
    return km_ctx_status(ctx);
}
