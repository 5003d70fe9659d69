/* Attention of a running model: heads normalised and rotated, keys and values put into the paged
 * cache, and the queries' look at it, in one op. It changes the cache in place and has no gradient. */
#include "backend/attend.h"
#include "ops/families.h"
#include "ops/infer.h"

static km_status want_norm(km_ctx *ctx, const char *name, const char *arg, const km_tensor *t,
                           int64_t n) {
    if (!t) return KM_OK;
    if (km_want_dtype(ctx, name, arg, t, KM_BIT(KM_F32)) != KM_OK) return ctx->error.code;
    return km_want_shape(ctx, name, arg, t, KM_SHAPE(n));
}

/* q, k, v: rows of heads side by side. */
static km_status want_heads(km_ctx *ctx, const char *name, const char *arg, const km_tensor *q,
                            const km_tensor *t, int64_t width) {
    if (km_want_same_dtype(ctx, name, q, t) != KM_OK) return ctx->error.code;
    return km_want_shape(ctx, name, arg, t, KM_SHAPE(q->shape.dim[0], width));
}

static km_status infer_attend(km_ctx *ctx, const char *name, km_tensor *const *in, int n_in,
                              const km_params *p, km_outputs *out) {
    char text[KM_SHAPE_TEXT];
    const km_tensor *q = in[KM_ATTEND_Q], *ck = in[KM_ATTEND_CACHE_K], *cv = in[KM_ATTEND_CACHE_V];
    const km_tensor *rows = in[KM_ATTEND_ROWS], *table = in[KM_ATTEND_TABLE];
    int64_t heads = p->n[KM_N_HEADS], kv = p->n[KM_N_KV_HEADS],
            dims = p->n[KM_N_ROTATION] & 0xffffffff, pairs = p->n[KM_N_ROTATION] >> 32;
    if (heads < 1 || kv < 1 || heads % kv)
        return km_fail(ctx, KM_ERR_RANGE, "%s: %lld heads cannot share %lld", name,
                       (long long)heads, (long long)kv);
    if (q->shape.ndim != 2 || q->shape.dim[1] % heads)
        return km_fail(ctx, KM_ERR_SHAPE, "%s: q must be [rows, %lld heads], not %s", name,
                       (long long)heads, km_shape_text(text, q->shape));
    int64_t d = q->shape.dim[1] / heads;
    if (want_heads(ctx, name, "k", q, in[KM_ATTEND_K], kv * d) != KM_OK ||
        want_heads(ctx, name, "v", q, in[KM_ATTEND_V], kv * d) != KM_OK)
        return ctx->error.code;
    uint32_t kinds =
        KM_BIT(KM_F32) | KM_BIT(KM_F16) | KM_BIT(KM_BF16) | KM_BIT(KM_Q8_0) | KM_BIT(KM_Q4_0);
    if (km_want_dtype(ctx, name, "the cache", ck, kinds) != KM_OK ||
        km_want_same_dtype(ctx, name, ck, cv) != KM_OK)
        return ctx->error.code;
    if (ck->shape.ndim != 4 || ck->shape.dim[1] != kv || ck->shape.dim[2] != KM_KV_PAGE ||
        ck->shape.dim[3] != d || !km_shape_equal(ck->shape, cv->shape) || !km_is_contiguous(ck) ||
        !km_is_contiguous(cv))
        return km_fail(ctx, KM_ERR_SHAPE, "%s: the cache must be [pages, %lld, %d, %lld], not %s",
                       name, (long long)kv, KM_KV_PAGE, (long long)d,
                       km_shape_text(text, ck->shape));
    if (km_want_dtype(ctx, name, "rows", rows, KM_BIT(KM_I32)) != KM_OK ||
        km_want_shape(ctx, name, "rows", rows, KM_SHAPE(q->shape.dim[0], 2)) != KM_OK ||
        km_want_dtype(ctx, name, "the table", table, KM_BIT(KM_I32)) != KM_OK)
        return ctx->error.code;
    if (table->shape.ndim != 2)
        return km_fail(ctx, KM_ERR_SHAPE, "%s: the table must be [sequences, pages], not %s", name,
                       km_shape_text(text, table->shape));
    if (p->f[KM_F_ATTEND_BASE] > 0 && (dims < 2 || dims % 2 || dims > d ||
                                       (pairs != KM_ROPE_HALVES && pairs != KM_ROPE_ADJACENT)))
        return km_fail(ctx, KM_ERR_RANGE, "%s: cannot rotate %lld of %lld dimensions", name,
                       (long long)dims, (long long)d);
    if (p->n[KM_N_WINDOW] < 0 || !(p->f[KM_F_SOFTCAP] >= 0) || !(p->f[KM_F_MAGNITUDE] >= 0))
        return km_fail(ctx, KM_ERR_RANGE, "%s: window %lld, soft cap %g, magnitude %g", name,
                       (long long)p->n[KM_N_WINDOW], p->f[KM_F_SOFTCAP], p->f[KM_F_MAGNITUDE]);
    if ((n_in > KM_ATTEND_Q_NORM &&
         want_norm(ctx, name, "q_norm", in[KM_ATTEND_Q_NORM], d) != KM_OK) ||
        (n_in > KM_ATTEND_K_NORM &&
         want_norm(ctx, name, "k_norm", in[KM_ATTEND_K_NORM], d) != KM_OK) ||
        (n_in > KM_ATTEND_DIVISORS &&
         want_norm(ctx, name, "divisors", in[KM_ATTEND_DIVISORS], dims / 2) != KM_OK))
        return ctx->error.code;
    *out = (km_outputs){.n = 1, .dtype = {q->dtype}, .shape = {q->shape}};
    return KM_OK;
}

void km_rows_attend(km_op_row *t) {
    t[KM_OP_ATTEND] = (km_op_row){.formula = "softmax(q k^T) v over a paged cache",
                                  .min_in = 7,
                                  .max_in = KM_ATTEND_INPUTS,
                                  .dtypes = KM_BIT(KM_F32) | KM_BIT(KM_F16) | KM_BIT(KM_BF16),
                                  .flags = KM_OP_ROWS,
                                  .changes = 1u << KM_ATTEND_CACHE_K | 1u << KM_ATTEND_CACHE_V,
                                  .infer = infer_attend,
                                  .tol = KM_TOL_BITS};
}

/* Weights of norms are f32 to kernels; a 16-bit model's are few. */
static km_tensor *as_f32(km_ctx *ctx, km_tensor *t) {
    return t && t->dtype != KM_F32 ? km_cast(ctx, t, KM_F32) : t;
}

km_tensor *km_attend(km_ctx *ctx, const km_attend_spec *s, km_tensor *q, km_tensor *k, km_tensor *v,
                     km_tensor *cache_k, km_tensor *cache_v, km_tensor *rows, km_tensor *table) {
    if (km_failed(ctx)) return NULL;
    if (!q || !s || s->heads < 1 || s->kv_heads < 1) {
        km_fail(ctx, KM_ERR_NULL, "attend: no queries, or no heads");
        return NULL;
    }
    km_tensor *in[KM_ATTEND_INPUTS] = {q,
                                       k,
                                       v,
                                       cache_k,
                                       cache_v,
                                       rows,
                                       table,
                                       as_f32(ctx, s->q_norm),
                                       as_f32(ctx, s->k_norm),
                                       s->rope_base > 0 ? s->divisors : NULL};
    int64_t d = km_tensor_dim(q, -1) / s->heads, dims = s->rope_dims ? s->rope_dims : d;
    km_params p = {.n = {[KM_N_HEADS] = s->heads,
                         [KM_N_KV_HEADS] = s->kv_heads,
                         [KM_N_WINDOW] = s->window,
                         [KM_N_ROTATION] = dims | (int64_t)s->pairs << 32},
                   .f = {[KM_F_SCALE] = s->scale,
                         [KM_F_ATTEND_BASE] = s->rope_base,
                         [KM_F_SOFTCAP] = s->softcap,
                         [KM_F_ATTEND_EPS] = s->eps,
                         [KM_F_MAGNITUDE] = s->rope_magnitude}};
    km_tensor *y = km_apply(ctx, KM_OP_ATTEND, in, KM_ATTEND_INPUTS, &p, NULL);
    if (y) {
        cache_k->storage->version++;
        cache_v->storage->version++;
    }
    return y;
}
