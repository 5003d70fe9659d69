/* Watching linear layers, through the hook that a context has for measuring: it is called with
 * every kernel that ran and with what it ran on. */
#include "infer/collect.h"
#include "backend/backend.h"
#include "base/alloc.h"
#include "model/layout.h"
#include "tensor/tensor.h"
#include <string.h>

typedef struct watched {
    const km_tensor *w;
    double *sum; /* (in), of squares */
    double count;
} watched;

struct km_collector {
    km_ctx *ctx;
    km_net *m;
    watched *at; /* one for each of the model's parameters */
    float *row;  /* an input, where it does not lie on the host as f32 */
    size_t row_bytes;
    bool failed; /* for want of memory */
};

static watched *find(km_collector *c, const km_tensor *w) {
    for (int i = 0; w && i < c->m->params.n; i++)
        if (c->at[i].w == w || (c->at[i].w && c->at[i].w->storage == w->storage)) return &c->at[i];
    return NULL;
}

/* The rows of x as floats on the host; NULL when there is no memory. */
static const float *floats(km_collector *c, const km_tensor *x, int64_t count) {
    km_lane *lane = x->storage->lane;
    size_t bytes = (size_t)km_dtype_bytes(x->dtype, count),
           all = bytes + (size_t)count * sizeof(float);
    if (lane->device->host && x->dtype == KM_F32) return km_tensor_ptr(x);
    if (all > c->row_bytes) {
        km_free(c->row);
        c->row = km_alloc(all);
        c->row_bytes = c->row ? all : 0;
    }
    if (!c->row) return NULL;
    uint16_t *raw = (uint16_t *)(c->row + count);
    if (lane->device->ops->download(lane, x->dtype == KM_F32 ? (void *)c->row : raw,
                                    km_tensor_ptr(x), bytes) != KM_OK)
        return NULL;
    for (int64_t i = 0; i < count && x->dtype != KM_F32; i++)
        c->row[i] = x->dtype == KM_F16 ? km_f16_to_f32(raw[i]) : km_bf16_to_f32(raw[i]);
    return c->row;
}

static void see(km_collector *c, const km_tensor *x, const km_tensor *w) {
    watched *one = find(c, w);
    int64_t in = km_tensor_dim(x, -1), count = km_shape_count(x->shape);
    bool plain = x->dtype == KM_F32 || x->dtype == KM_F16 || x->dtype == KM_BF16;
    if (!one || !plain || count == 0 || !km_is_contiguous(x) || in != km_tensor_dim(w, -1)) return;
    if (!one->sum) one->sum = km_calloc((size_t)in, sizeof *one->sum);
    const float *v = one->sum ? floats(c, x, count) : NULL;
    c->failed = c->failed || !v;
    for (int64_t i = 0; v && i < count; i++) one->sum[i % in] += (double)v[i] * v[i];
    if (v) one->count += (double)(count / in);
}

static void on_call(void *user, const km_call *call, double seconds) {
    (void)seconds;
    const km_tensor *x = call->n_in ? call->in[0] : NULL;
    switch (call->op) {
    case KM_OP_LINEAR:
    case KM_OP_QUANT_LINEAR: see(user, x, call->in[1]); break;
    case KM_OP_LINEARS:
        for (int i = 1; i < call->n_in; i += 2) see(user, x, call->in[i]);
        break;
    case KM_OP_GATED:
        for (int i = 1; i < call->n_in; i++)
            if (call->in[i]) see(user, x, call->in[i]);
        break;
    default: break;
    }
}

static void free_collector(km_collector *c) {
    if (!c) return;
    for (int i = 0; c->at && i < c->m->params.n; i++) km_free(c->at[i].sum);
    km_free(c->at);
    km_free(c->row);
    km_free(c);
}

km_collector *km_collect_begin(km_ctx *ctx, km_net *m, km_error *err) {
    km_collector *c = km_calloc(1, sizeof *c);
    if (c) {
        *c = (km_collector){.ctx = ctx, .m = m};
        c->at = km_calloc((size_t)m->params.n + 1, sizeof *c->at);
    }
    if (!c || !c->at) {
        km_no_memory_for(err, "an importance matrix");
        free_collector(c);
        return NULL;
    }
    for (int i = 0; i < m->params.n; i++)
        if (m->params.at[i].t->shape.ndim == 2) c->at[i].w = m->params.at[i].t;
    ctx->timed = on_call;
    ctx->timed_user = c;
    return c;
}

/* A parameter's name in GGUF. */
static const char *gguf_name(const km_layout *l, const char *name) {
    for (int i = 0; i < l->n; i++)
        if (strcmp(l->row[i].name, name) == 0) return l->row[i].gguf;
    return name;
}

static km_status copy_rows(km_collector *c, const km_layout *l, km_imatrix *m, km_error *err) {
    for (int i = 0; i < c->m->params.n; i++) {
        const watched *one = &c->at[i];
        if (!one->sum || !(one->count > 0)) continue;
        int64_t in = km_tensor_dim(one->w, -1);
        km_imatrix_row *r = &m->row[m->n++];
        *r = (km_imatrix_row){.name = km_strdup(gguf_name(l, c->m->params.at[i].name)),
                              .mean = km_alloc((size_t)in * sizeof *r->mean),
                              .in = in,
                              .count = one->count};
        if (!r->name || !r->mean) return km_no_memory(err);
        for (int64_t k = 0; k < in; k++) r->mean[k] = (float)(one->sum[k] / one->count);
    }
    return KM_OK;
}

km_imatrix *km_collect_end(km_collector *c, km_error *err) {
    km_layout l = {0};
    c->ctx->timed = NULL;
    c->ctx->timed_user = NULL;
    km_status s = c->failed ? km_no_memory(err) : KM_OK;
    if (s == KM_OK) s = km_layout_of(&c->m->config, &l, err);
    km_imatrix *m = s == KM_OK ? km_imatrix_new(c->m->params.n, err) : NULL;
    if (m && copy_rows(c, &l, m, err) != KM_OK) {
        km_imatrix_free(m);
        m = NULL;
    }
    if (m && m->n == 0) {
        km_error_set(err, KM_ERR_STATE, "no layer was seen at work");
        km_imatrix_free(m);
        m = NULL;
    }
    km_layout_free(&l);
    free_collector(c);
    return m;
}
