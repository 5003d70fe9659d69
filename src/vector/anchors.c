/* Anchors that are there: made from known points, read back, and met by vectors in blocks. */
#include "vector/anchors.h"
#include "base/alloc.h"
#include "ops/nearest.h"
#include <math.h>
#include <string.h>

#define BLOCK_BYTES ((int64_t)256 << 20) /* of vectors on the device at once */

int64_t km_anchors_auto(int64_t n) {
    int64_t k = (int64_t)(4 * sqrt((double)n));
    if (k > 65536) k = 65536;
    if (k > n) k = n;
    return k < 1 ? 1 : k;
}

km_status km_anchors_check(const km_anchor_training *t, km_error *err) {
    const struct {
        const char *name;
        double value;
        bool fits;
        const char *range;
    } all[] = {
        {"rounds", t->rounds, t->rounds >= 0, "it is 1 or more, or 0 for 25"},
        {"robust", t->robust, (int)t->robust >= 0 && t->robust <= KM_ROBUST_MEAN,
         "it is one of km_robust"},
        {"temperature", t->temperature, t->temperature >= 0 && t->temperature <= 1,
         "it is above 0 and at most 1, or 0 for 0.5"},
        {"cooling", t->cooling, t->cooling >= 0 && t->cooling < 1,
         "it is above 0 and below 1, or 0 for a straight line"},
        {"momentum", t->momentum, t->momentum >= 0 && t->momentum < 1,
         "it is 0 or more and below 1"},
        {"maintain_every", t->maintain_every, t->maintain_every >= -1,
         "it is 1 or more, 0 for a choice, or -1 for never"},
        {"merge", t->merge, t->merge >= 0 && t->merge <= 1,
         "it is above 0 and at most 1, or 0 for 1e-9"},
        {"split", t->split, t->split == 0 || (t->split >= 1 && t->split < INFINITY),
         "it is 1 or more, or 0 for 1.1"},
        {"tolerance", t->tolerance, t->tolerance == -1 || (t->tolerance >= 0 && t->tolerance <= 1),
         "it is above 0 and at most 1, 0 for 1e-4, or -1 for none"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!all[i].fits)
            return km_error_set(err, KM_ERR_RANGE, "%s %g is out of range: %s", all[i].name,
                                all[i].value, all[i].range);
    return KM_OK;
}

km_tensor *km_unit_rows(km_ctx *ctx, km_tensor *x) {
    km_tensor *square = km_sum(ctx, km_mul(ctx, x, x), (const int[]){1}, 1, true);
    km_tensor *size = km_sqrt(ctx, square);
    km_tensor *one = km_full(ctx, KM_F32, KM_SHAPE(1, 1), 1);
    km_tensor *zero = km_full(ctx, KM_F32, KM_SHAPE(1, 1), 0);
    return km_div(ctx, x, km_where(ctx, km_gt(ctx, size, zero), size, one));
}

static void nothing(void *owner) { (void)owner; }

km_tensor *km_vectors_in(km_ctx *ctx, const float *x, int64_t n, int64_t d) {
    if (km_failed(ctx)) return NULL;
    if (ctx->device->host) return km_wrap(ctx, "vectors", KM_F32, KM_SHAPE(n, d), x, nothing, NULL);
    return km_keep_data(ctx, KM_F32, KM_SHAPE(n, d), x);
}

km_status km_anchors_from(km_ctx *ctx, const float *centre, int64_t count, int64_t dim,
                          km_metric metric, km_anchors *out) {
    *out = (km_anchors){0};
    if (km_failed(ctx)) return km_ctx_status(ctx);
    if (count < 1 || dim < 1)
        return km_fail(ctx, KM_ERR_RANGE, "anchors: %lld of %lld dimensions", (long long)count,
                       (long long)dim);
    km_tensor *t = km_keep_data(ctx, KM_F32, KM_SHAPE(count, dim), centre);
    if (!t) return km_ctx_status(ctx);
    *out = (km_anchors){.ctx = ctx, .centre = t, .count = count, .dim = dim, .metric = metric};
    return KM_OK;
}

static km_status assign_block(km_ctx *ctx, const km_anchors *a, const float *x, int64_t n,
                              int32_t *id, float *dist) {
    km_tensor *ids, *dists;
    km_scope_begin(ctx);
    km_tensor *kept = km_vectors_in(ctx, x, n, a->dim), *rows = kept;
    if (rows && a->metric == KM_METRIC_COSINE) rows = km_unit_rows(ctx, kept);
    if (rows && km_nearest_of(ctx, rows, a->centre, NULL, true, false, &ids, &dists) == KM_OK) {
        km_read(ctx, ids, id, sizeof *id * (size_t)n);
        if (dist) km_read(ctx, dists, dist, sizeof *dist * (size_t)n);
    }
    km_scope_end(ctx, NULL);
    km_release(kept);
    return km_ctx_status(ctx);
}

km_status km_anchors_assign(km_ctx *ctx, const km_anchors *a, const float *x, int64_t n,
                            int32_t *id, float *dist) {
    if (km_failed(ctx)) return km_ctx_status(ctx);
    if (!a || !a->centre || (n && (!x || !id)))
        return km_fail(ctx, KM_ERR_NULL, "anchors: nothing to assign, or to assign to");
    int64_t rows = BLOCK_BYTES / (a->dim * (int64_t)sizeof *x);
    rows = rows < 4096 ? 4096 : rows;
    for (int64_t i = 0; i < n; i += rows) {
        int64_t many = n - i < rows ? n - i : rows;
        if (assign_block(ctx, a, x + i * a->dim, many, id + i, dist ? dist + i : NULL) != KM_OK)
            break;
    }
    return km_ctx_status(ctx);
}

km_status km_anchors_read(km_ctx *ctx, const km_anchors *a, float *centre) {
    return km_read(ctx, a->centre, centre, sizeof *centre * (size_t)(a->count * a->dim));
}

void km_anchors_release(km_anchors *a) {
    if (!a) return;
    km_release(a->centre);
    *a = (km_anchors){0};
}
