/* Low-rank corrections: adding them to layers and folding them into the weights. */
#include "model/lora.h"
#include "base/alloc.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- Layers by name ---- */

/* The name of the layer whose weight is w: the parameter's without ".weight". */
static bool layer_name(const km_net *m, const km_tensor *w, char *out, size_t size) {
    for (int i = 0; i < m->params.n; i++) {
        const km_param *p = &m->params.at[i];
        size_t n = strlen(p->name);
        if (p->t != w || n < 8 || n - 7 >= size) continue;
        snprintf(out, size, "%.*s", (int)(n - 7), p->name);
        return true;
    }
    return false;
}

void km_lora_each(km_net *m, km_lora_visit visit, void *user) {
    char name[256];
    for (int i = 0; i < m->config.layers; i++) {
        km_nn_linear *l[KM_NN_BLOCK_LINEARS];
        int n = km_nn_block_linears(&m->block[i], l);
        for (int k = 0; k < n; k++)
            if (layer_name(m, l[k]->w, name, sizeof name)) visit(user, l[k], name);
    }
}

static bool is_target(const char *pattern, const char *name) {
    const char *dot = strrchr(name, '.');
    return km_name_matches(pattern, name) || km_name_matches(pattern, dot ? dot + 1 : name);
}

/* ---- Adding ---- */

void km_lora_attach(km_net *m, km_nn_linear *l, const char *name, int rank, double alpha) {
    int64_t out = l->w->shape.dim[0], in = l->w->shape.dim[1];
    km_nn_lora r = {.scale = alpha / rank};
    r.a = km_param_add(m->ctx, &m->params, m->dtype, KM_SHAPE(rank, in), true, "%s.lora_A.weight",
                       name);
    r.b = km_param_add(m->ctx, &m->params, m->dtype, KM_SHAPE(out, rank), true, "%s.lora_B.weight",
                       name);
    if (r.a && r.b) l->lora = r;
}

typedef struct adding {
    km_net *m;
    const km_lora_config *c;
    const char *targets;
    double alpha;
    uint64_t seed;
    int n;
} adding;

static void add_one(void *user, km_nn_linear *l, const char *name) {
    adding *a = user;
    if (km_failed(a->m->ctx) || !is_target(a->targets, name)) return;
    km_lora_attach(a->m, l, name, a->c->rank, a->alpha);
    if (!l->lora.a) return;
    km_param *p = &a->m->params.at[a->m->params.n - 2];
    km_param_normal(a->m->ctx, p, a->seed, 1 / sqrt(3.0 * (double)l->w->shape.dim[1]));
    a->n++;
}

/* The first of the patterns that fits no layer: one at a time, by freezing nothing. */
typedef struct seeking {
    const char *pattern;
    bool found;
} seeking;

static void seek(void *user, km_nn_linear *l, const char *name) {
    seeking *s = user;
    (void)l;
    s->found |= is_target(s->pattern, name);
}

static km_status check_targets(km_net *m, const char *targets, km_error *err) {
    char one[256];
    for (const char *p = targets; *p;) {
        size_t n = strcspn(p, ",");
        snprintf(one, sizeof one, "%.*s", (int)(n < 255 ? n : 255), p);
        seeking s = {one, false};
        km_lora_each(m, seek, &s);
        if (!s.found)
            return km_error_set(err, KM_ERR_RANGE, "lora: no linear layer fits '%.80s'", one);
        p += n + (p[n] == ',');
    }
    return KM_OK;
}

km_status km_lora_add(km_net *m, const km_lora_config *c, uint64_t seed, km_error *err) {
    adding a = {.m = m, .c = c, .seed = seed, .alpha = c->alpha > 0 ? c->alpha : 2.0 * c->rank};
    a.targets = c->targets && *c->targets        ? c->targets
                : m->config.arch == KM_ARCH_GPT2 ? "c_attn"
                                                 : "q_proj,v_proj";
    if (m->lora_rank)
        return km_error_set(err, KM_ERR_STATE, "lora: the model has corrections already");
    if (c->rank < 1 || c->rank > m->config.dim)
        return km_error_set(err, KM_ERR_RANGE, "lora: the rank is %d and must be in 1 .. %lld",
                            c->rank, (long long)m->config.dim);
    if (!isfinite(a.alpha)) return km_error_set(err, KM_ERR_RANGE, "lora: alpha is not a number");
    km_status s = check_targets(m, a.targets, err);
    if (s != KM_OK) return s;
    km_net_freeze(m, "*", true);
    km_lora_each(m, add_one, &a);
    m->lora_rank = c->rank;
    m->lora_alpha = a.alpha;
    return km_failed(m->ctx) ? km_error_set(err, km_ctx_status(m->ctx), "%s", km_ctx_error(m->ctx))
                             : KM_OK;
}

/* ---- Folding in ---- */

/* W + scale B A, the sum in f32. */
static void fold(void *user, km_nn_linear *l, const char *name) {
    km_ctx *ctx = user;
    km_nn_lora *r = &l->lora;
    (void)name;
    if (!r->a) return;
    km_dtype wide = l->w->dtype == KM_F64 ? KM_F64 : KM_F32;
    km_scope_begin(ctx);
    km_no_grad_begin(ctx);
    km_tensor *product = km_matmul(ctx, km_cast(ctx, r->b, wide), km_cast(ctx, r->a, wide));
    km_tensor *sum = km_add(ctx, km_cast(ctx, l->w, wide), km_mul_scalar(ctx, product, r->scale));
    km_assign(ctx, l->w, sum);
    km_no_grad_end(ctx);
    km_scope_end(ctx, NULL);
    *r = (km_nn_lora){0};
}

km_status km_lora_merge(km_net *m, km_error *err) {
    if (!m->lora_rank) return km_error_set(err, KM_ERR_STATE, "lora: the model has no corrections");
    km_lora_each(m, fold, m->ctx);
    int left = 0;
    for (int i = 0; i < m->params.n; i++) {
        km_param *p = &m->params.at[i];
        if (strstr(p->name, ".lora_")) {
            km_release(p->t);
            km_free(p->name);
        } else {
            m->params.at[left++] = *p;
        }
    }
    m->params.n = left;
    m->lora_rank = 0;
    km_net_freeze(m, "*", false);
    return km_failed(m->ctx) ? km_error_set(err, km_ctx_status(m->ctx), "%s", km_ctx_error(m->ctx))
                             : KM_OK;
}
