/* Gradients of norms: by x a row at a time (shaders/norm_grad.comp), by weight and bias in sums over
 * columns (norm_columns.comp), whose parts the sum op adds up. */
#include "backend/compose.h"
#include "backend/vulkan/launch.h"
#include "backend/vulkan/vulkan.h"

#define PART 256 /* rows to a part: short sums keep their digits, and many parts run side by side */

static bool is_float(km_dtype d) { return d == KM_F32 || d == KM_F16 || d == KM_BF16; }

typedef struct norm_grad_call {
    const km_tensor *dy, *x, *w, *mean, *rstd, *dsum; /* mean NULL: RMS norm */
    km_tensor *dx, *dw, *db;
    uint32_t rows, n;
} norm_grad_call;

static km_status start_rows(km_lane *lane, const norm_grad_call *g) {
    struct {
        uint64_t dy, x, w, mean, rstd, dsum, dx;
        uint32_t rows, n;
    } push = {.dy = km_vulkan_at(g->dy),
              .x = km_vulkan_at(g->x),
              .w = km_vulkan_at(g->w),
              .mean = km_vulkan_at(g->mean),
              .rstd = km_vulkan_at(g->rstd),
              .dsum = km_vulkan_at(g->dsum),
              .dx = km_vulkan_at(g->dx),
              .rows = g->rows,
              .n = g->n};
    uint32_t spec[] = {(uint32_t)g->x->dtype, g->mean == NULL};
    return km_vulkan_launch(lane, "norm_grad", spec, 2, &push, sizeof push, km_groups_for(g->rows),
                            (double)g->rows * (500 + 20.0 * g->n));
}

static km_status start_columns(km_ctx *ctx, km_lane *lane, const norm_grad_call *g) {
    int64_t parts = km_max64(1, km_ceil_div(g->rows, PART));
    km_tensor *dw = g->dw, *db = g->db;
    km_dtype to = g->x->dtype;
    if (parts > 1) {
        to = KM_F32;
        if (dw) dw = km_tensor_new(ctx, lane, "norm_grad", to, KM_SHAPE(parts, g->n));
        if (db) db = km_tensor_new(ctx, lane, "norm_grad", to, KM_SHAPE(parts, g->n));
        if ((g->dw && !dw) || (g->db && !db)) return ctx->error.code;
    }
    struct {
        uint64_t dy, x, mean, rstd, dw, db;
        uint32_t rows, n, part;
    } push = {.dy = km_vulkan_at(g->dy),
              .x = km_vulkan_at(g->x),
              .mean = km_vulkan_at(g->mean),
              .rstd = km_vulkan_at(g->rstd),
              .dw = km_vulkan_at(dw),
              .db = km_vulkan_at(db),
              .rows = g->rows,
              .n = g->n,
              .part = PART};
    uint32_t spec[] = {(uint32_t)g->x->dtype, g->mean == NULL, (uint32_t)to};
    km_status s =
        km_vulkan_launch(lane, "norm_columns", spec, 3, &push, sizeof push,
                         KM_GROUPS(km_ceil_div(g->n, 32), parts), (double)g->rows * g->n * 10);
    if (s == KM_OK && dw != g->dw) s = km_compose_column_sums(ctx, dw, g->dw);
    if (s == KM_OK && db != g->db) s = km_compose_column_sums(ctx, db, g->db);
    return s;
}

/* dy, x, w, mean (layer norm), rstd, dsum? -> dx, dw, db (layer norm) */
static km_status run_norm_grad(km_ctx *ctx, const km_call *c) {
    bool rms = c->op == KM_OP_RMS_NORM_GRAD;
    int rstd = rms ? 3 : 4;
    norm_grad_call g = {.dy = c->in[0],
                        .x = c->in[1],
                        .w = c->in[2],
                        .mean = rms ? NULL : c->in[3],
                        .rstd = c->in[rstd],
                        .dsum = c->n_in > rstd + 1 ? c->in[rstd + 1] : NULL,
                        .dx = c->out[0],
                        .dw = c->n_out > 1 ? c->out[1] : NULL,
                        .db = c->n_out > 2 ? c->out[2] : NULL};
    int64_t count = km_shape_count(g.x->shape), n = g.x->shape.dim[g.x->shape.ndim - 1];
    km_lane *lane = km_vulkan_lane(c);
    if (!is_float(g.x->dtype) || g.w->dtype != g.x->dtype || g.dy->dtype != g.x->dtype ||
        g.rstd->dtype != KM_F32 || count >= KM_VULKAN_MOST || n >= KM_VULKAN_MOST)
        return KM_ERR_UNSUPPORTED;
    if (n == 0) return KM_OK;
    g.n = (uint32_t)n;
    g.rows = (uint32_t)(count / n);
    km_status s = start_rows(lane, &g);
    return s == KM_OK && (g.dw || g.db) ? start_columns(ctx, lane, &g) : s;
}

void km_vulkan_register_norm_grad(km_kernel *table) {
    table[KM_OP_LAYER_NORM_GRAD] = table[KM_OP_RMS_NORM_GRAD] = run_norm_grad;
}
