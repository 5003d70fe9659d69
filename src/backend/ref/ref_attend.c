/* Reference attention over the paged cache: first all rows' keys and values go into it, then each
 * query looks at what is there, rounded as the cache rounds. */
#include "backend/attend.h"
#include "backend/ref/ref.h"
#include "tensor/quant.h"

/* Head h of row r of x, normalised by w? and rotated to `position`. */
static void head(const km_attend_call *a, const km_tensor *x, int64_t r, int64_t h,
                 int64_t position, const km_tensor *w, const km_tensor *divisors, double *out) {
    int64_t at = x->offset + r * x->stride[0] + h * a->d * x->stride[1];
    double sum = 0;
    for (int64_t i = 0; i < a->d; i++) {
        out[i] = km_ref_load(x, at + i * x->stride[1]);
        sum += out[i] * out[i];
    }
    for (int64_t i = 0; i < a->d && w; i++)
        out[i] *= km_ref_load(w, km_ref_nth(w, i)) / sqrt(sum / (double)a->d + a->eps);
    for (int64_t p = 0; p < a->dims / 2; p++) {
        int64_t i = a->adjacent ? 2 * p : p, k = a->adjacent ? 2 * p + 1 : p + a->dims / 2;
        double angle = (double)position * pow(a->base, -2.0 * (double)p / (double)a->dims);
        if (divisors) angle /= km_ref_load(divisors, km_ref_nth(divisors, p));
        double u = a->magnitude * out[i], v = a->magnitude * out[k];
        out[i] = u * cos(angle) - v * sin(angle);
        out[k] = u * sin(angle) + v * cos(angle);
    }
}

static void put(const km_attend_call *a, const km_tensor *cache, const int32_t *pages,
                int64_t position, int64_t h, const double *x, float *narrow) {
    for (int64_t i = 0; i < a->d; i++) narrow[i] = (float)x[i];
    char *to = (char *)km_tensor_ptr(cache) + km_attend_at(a, pages, position, h);
    km_attend_encode(a->cache, narrow, a->d, to);
}

static void get(const km_attend_call *a, const km_tensor *cache, const int32_t *pages,
                int64_t position, int64_t h, float *out) {
    const char *from = (const char *)km_tensor_ptr(cache) + km_attend_at(a, pages, position, h);
    for (int64_t i = 0; i < a->d && !km_dtype_is_block(a->cache); i++)
        out[i] = a->cache == KM_F32   ? ((const float *)(const void *)from)[i]
                 : a->cache == KM_F16 ? km_f16_to_f32(((const uint16_t *)(const void *)from)[i])
                                      : km_bf16_to_f32(((const uint16_t *)(const void *)from)[i]);
    if (km_dtype_is_block(a->cache)) km_dequantise(a->cache, from, a->d, out);
}

km_status km_ref_attend(km_ctx *ctx, const km_call *c) {
    km_attend_call a = km_attend_describe(c);
    const km_tensor *ck = c->in[KM_ATTEND_CACHE_K], *cv = c->in[KM_ATTEND_CACHE_V], *y = c->out[0];
    const km_tensor *divisors = km_attend_in(c, KM_ATTEND_DIVISORS);
    const int32_t *pages;
    int64_t position, longest = a.max_pages * KM_KV_PAGE;
    double *q = km_ctx_scratch(ctx, (size_t)(3 * a.d + longest + 1) * sizeof *q);
    if (!q) return KM_ERR_MEMORY;
    double *sum = q + a.d, *score = sum + a.d;
    float *one = (float *)(void *)(score + longest);
    for (int64_t r = 0; r < a.rows; r++) {
        if (!km_attend_place(&a, r, &pages, &position)) continue;
        for (int64_t h = 0; h < a.kv_heads; h++) {
            head(&a, c->in[KM_ATTEND_K], r, h, position, km_attend_in(c, KM_ATTEND_K_NORM),
                 divisors, q);
            put(&a, ck, pages, position, h, q, one);
            const km_tensor *v = c->in[KM_ATTEND_V];
            for (int64_t i = 0; i < a.d; i++)
                q[i] = km_ref_load(v, v->offset + r * v->stride[0] + (h * a.d + i) * v->stride[1]);
            put(&a, cv, pages, position, h, q, one);
        }
    }
    for (int64_t r = 0; r < a.rows; r++)
        for (int64_t h = 0; h < a.heads; h++) {
            double most = -INFINITY, total = 0;
            for (int64_t i = 0; i < a.d; i++) sum[i] = 0;
            if (km_attend_place(&a, r, &pages, &position)) {
                int64_t first = km_attend_first(&a, position);
                head(&a, c->in[KM_ATTEND_Q], r, h, position, km_attend_in(c, KM_ATTEND_Q_NORM),
                     divisors, q);
                for (int64_t t = first; t <= position; t++) {
                    double s = 0;
                    get(&a, ck, pages, t, h / a.group, one);
                    for (int64_t i = 0; i < a.d; i++) s += q[i] * (double)one[i];
                    s *= a.scale;
                    score[t] = a.softcap > 0 ? a.softcap * tanh(s / a.softcap) : s;
                    most = km_ref_max(most, score[t]);
                }
                for (int64_t t = first; t <= position; t++) {
                    double p = exp(score[t] - most);
                    total += p;
                    get(&a, cv, pages, t, h / a.group, one);
                    for (int64_t i = 0; i < a.d; i++) sum[i] += p * (double)one[i];
                }
            }
            for (int64_t i = 0; i < a.d; i++)
                km_ref_store(y, y->offset + r * y->stride[0] + (h * a.d + i) * y->stride[1],
                             total > 0 || total != total ? sum[i] / total : 0);
        }
    return KM_OK;
}
