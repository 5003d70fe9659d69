/* Layers of running models, with weights in blocks or plain, and rows of tables (shaders/layer.comp,
 * layer_tile.comp, lookup.comp): few rows stream the weights, which are read once for four of them; many, as
 * of prompts, go by tiles of 64. */
#include "backend/vulkan/launch.h"
#include "backend/vulkan/vulkan.h"

typedef struct layer_push {
    uint64_t x, w, u, bias, y;
    uint32_t rows, n, k;
    uint32_t x_row, row_bytes;
    uint32_t act, up_bytes;
} layer_push;

#define GROUPS_MOST 65535 /* as in the shader */
#define TILE 64           /* rows of x and of w in a tile */

static bool is_float(km_dtype d) { return d == KM_F32 || d == KM_F16 || d == KM_BF16; }

/* Bytes of a row of w (rows, columns); 0: a layout that the shader does not read. */
static uint32_t row_bytes(const km_tensor *w) {
    int64_t k = w->shape.dim[1], bytes;
    if (w->storage->drop || w->shape.ndim != 2) return 0;
    if (km_dtype_is_block(w->dtype))
        bytes = km_dtype_bytes(w->dtype, k);
    else if (is_float(w->dtype) && (w->stride[1] == 1 || k == 1) && w->stride[0] >= k)
        bytes = w->stride[0] * (int64_t)km_dtype_size(w->dtype);
    else
        return 0;
    return bytes < KM_VULKAN_MOST ? (uint32_t)bytes : 0;
}

/* Where the second matrix of a gated pair begins, and what it is made of; at 0: there is none. */
typedef struct layer_up {
    uint64_t at;
    km_dtype dtype;
    uint32_t bytes;
} layer_up;

/* Many rows, by tiles; spec as of the other shader. */
static km_status start_tiles(km_lane *lane, const layer_push *push, const uint32_t *spec) {
    uint32_t tiles[] = {spec[0], spec[1], spec[2], spec[4]};
    uint32_t each = push->u ? TILE / 2 : TILE;
    km_groups g = KM_GROUPS(km_ceil_div(push->rows, TILE), km_ceil_div(push->n, each));
    return km_vulkan_launch(lane, "layer_tile", tiles, 4, push, sizeof *push, g,
                            (double)g.x * (double)g.y * TILE * TILE * (push->k + 16.0));
}

/* Blocks of 32 or 256 weights whose rows begin where the shader can read them. */
static bool streams(km_dtype d, uint64_t at, uint32_t row_bytes) {
    bool sixteens = d == KM_Q4_K || d == KM_Q5_K;
    return km_dtype_is_block(d) && (!sixteens || (at % 16 == 0 && row_bytes % 16 == 0));
}

/* Few rows of x as 8-bit integers, by integer dot products. KM_ERR_UNSUPPORTED: not here. */
static km_status start_stream(km_lane *lane, const layer_push *push, const uint32_t *layer) {
    const km_vulkan_dev *dev = km_vulkan_dev_of(lane);
    km_dtype w = (km_dtype)layer[1], u = (km_dtype)layer[4];
    uint32_t size = layer[0] == KM_F32 ? 4 : 2, room = (uint32_t)km_round_up(push->k, 4096);
    /* Encoding long rows of x by few threads takes longer than reading a row of weights. */
    uint32_t threads = push->k > 4096 && dev->most_threads >= 512 ? 512 : 256,
             rows = push->rows > 1 ? 4 : 1;
    if (!dev->dots || !streams(w, push->w, push->row_bytes) || push->k % 32 ||
        (push->u && !streams(u, push->u, push->up_bytes)) || push->x % 16 ||
        push->x_row * (uint64_t)size % 16)
        return KM_ERR_UNSUPPORTED;
    if (threads > dev->most_threads) threads = 128;
    /* Shared memory: a code of each column, eight bytes to sixteen of them, and two tables. */
    if (rows > 1 && rows * room / 2 * 3 + 2048 > dev->shared_bytes) rows = 1;
    if (rows * room / 2 * 3 + 2048 > dev->shared_bytes) return KM_ERR_UNSUPPORTED;
    uint32_t each = threads / dev->subgroup * (push->n > 4096 && threads == 256 ? 2 : 1);
    uint32_t spec[] = {layer[0], layer[1], layer[2], layer[4], room, threads, each};
    int64_t groups = km_ceil_div(push->n, each);
    km_groups g = KM_GROUPS(km_min64(groups, GROUPS_MOST), km_ceil_div(push->rows, rows),
                            km_ceil_div(groups, GROUPS_MOST));
    return km_vulkan_launch(
        lane, rows > 1 ? "layer_stream_4" : "layer_stream", spec, 7, push, sizeof *push, g,
        (double)g.y * (double)push->n * (double)push->k * (push->u ? 2 : 1) * (2 + rows));
}

/* ---- Many rows by cooperative matrices ---- */

typedef struct matrix_push {
    uint64_t x, w, scales, bias, y;
    uint32_t rows, n, k;
    uint32_t y_row, act, width;
} matrix_push;

/* Weights that are made f16 at a time: what a GPU's cache may hold. */
#define SLICE (INT64_C(24) << 20)

/* A tile of layer_matrix*.comp: large where that leaves all multiprocessors something to do. */
typedef struct matrix_tile {
    const char *module;
    uint32_t rows, columns;
} matrix_tile;

static matrix_tile matrix_tile_for(int64_t rows, int64_t n) {
    static const matrix_tile large = {"layer_matrix", 128, 128},
                             small = {"layer_matrix_small", 64, 128};
    return km_ceil_div(rows, 128) * km_ceil_div(n, 128) >= 128 ? large : small;
}

/* f16 of x (rows, k) and its scales behind it, then of each slice of the weights, and their products. */
static km_status start_matrix(km_lane *lane, const layer_push *push, const uint32_t *layer) {
    int64_t k = push->k, rows = push->rows, both = push->u ? 2 : 1;
    km_dtype w = (km_dtype)layer[1], u = (km_dtype)layer[4];
    if (!km_vulkan_dev_of(lane)->matrices || k % 32 || layer[5] || w == KM_F32 ||
        (push->u && u == KM_F32) || rows * k >= KM_VULKAN_MOST)
        return KM_ERR_UNSUPPORTED;
    if ((km_dtype_is_block(w) && !streams(w, push->w, push->row_bytes)) ||
        (push->u && km_dtype_is_block(u) && !streams(u, push->u, push->up_bytes)))
        return KM_ERR_UNSUPPORTED;
    int64_t slice = km_max64(64, SLICE / (k * both) / 64 * 64), columns = push->n;
    if (slice > columns) slice = columns;
    int64_t padded = push->u ? km_round_up(slice, 16) * 2 : slice; /* rows of f16 weights */
    size_t x_bytes = (size_t)(rows * k) * 2, caps[2];
    char *x = km_vulkan_scratch(lane, x_bytes + (size_t)rows * 4, &caps[0]);
    char *half = km_vulkan_scratch(lane, (size_t)(padded * k) * 2, &caps[1]);
    km_status s = x && half ? KM_OK : lane->ctx->error.code;
    uint64_t scales = (uintptr_t)x + x_bytes;
    if (s == KM_OK) {
        struct {
            uint64_t x, o, scales;
            uint32_t rows, k, x_row;
        } p = {push->x, (uintptr_t)x, scales, push->rows, push->k, push->x_row};
        s = km_vulkan_launch(lane, "halves_of_x", layer, 1, &p, sizeof p, km_groups_for(rows),
                             (double)(rows * k) * 8);
    }
    for (int64_t first = 0; first < columns && s == KM_OK; first += slice) {
        int64_t n = km_min64(slice, columns - first);
        int64_t made = push->u ? km_round_up(n, 16) * 2 : n;
        struct {
            uint64_t w, u, o;
            uint32_t n, k, row_bytes, up_bytes;
        } p = {push->w + (uint64_t)first * push->row_bytes,
               push->u ? push->u + (uint64_t)first * push->up_bytes : 0,
               (uintptr_t)half,
               (uint32_t)n,
               push->k,
               push->row_bytes,
               push->up_bytes};
        uint32_t kinds[] = {layer[1], push->u != 0, layer[4]};
        if (first == 0) km_vulkan_beside(lane);
        s = km_vulkan_launch(lane, "halves_of_w", kinds, 3, &p, sizeof p,
                             km_groups_for(km_ceil_div(made * (k / 32), KM_VULKAN_THREADS)),
                             (double)(made * k) * 2);
        if (s != KM_OK) break;
        matrix_push m = {.x = (uintptr_t)x,
                         .w = (uintptr_t)half,
                         .scales = scales,
                         .bias = push->bias ? push->bias + (uint64_t)first * (layer[0] ? 2 : 4) : 0,
                         .y = push->y + (uint64_t)first * (layer[0] ? 2 : 4),
                         .rows = push->rows,
                         .n = (uint32_t)made,
                         .k = push->k,
                         .y_row = push->n,
                         .act = push->act,
                         .width = (uint32_t)n};
        uint32_t spec[] = {layer[0], push->u != 0};
        matrix_tile tile = matrix_tile_for(rows, made);
        s = km_vulkan_launch(
            lane, tile.module, spec, 2, &m, sizeof m,
            KM_GROUPS(km_ceil_div(rows, tile.rows), km_ceil_div(made, tile.columns)),
            (double)km_round_up(rows, 128) * (double)made * (double)k / 8);
    }
    km_vulkan_scratch_free(lane, x, caps[0]);
    km_vulkan_scratch_free(lane, half, caps[1]);
    return s;
}

/* y = act(x w^T + b), or times x u^T. The first n rows of w. */
static km_status start_layer(km_lane *lane, const km_tensor *x, const km_tensor *w, layer_up u,
                             const km_tensor *b, const km_tensor *y, int64_t n, km_act act) {
    uint32_t bytes = row_bytes(w);
    int64_t rows = x->shape.dim[0], k = x->shape.dim[1];
    if (!is_float(x->dtype) || y->dtype != x->dtype || (b && b->dtype != x->dtype) || !bytes)
        return KM_ERR_UNSUPPORTED;
    if (x->stride[1] != 1 || x->stride[0] < k || rows * x->stride[0] >= KM_VULKAN_MOST ||
        rows * n >= KM_VULKAN_MOST || rows > 4 * 65535)
        return KM_ERR_UNSUPPORTED;
    if (rows == 0 || n == 0) return KM_OK;
    layer_push push = {.x = km_vulkan_at(x),
                       .w = km_vulkan_at(w),
                       .u = u.at,
                       .bias = km_vulkan_at(b),
                       .y = km_vulkan_at(y),
                       .rows = (uint32_t)rows,
                       .n = (uint32_t)n,
                       .k = (uint32_t)k,
                       .x_row = (uint32_t)x->stride[0],
                       .row_bytes = bytes,
                       .act = (uint32_t)act,
                       .up_bytes = u.bytes};
    uint32_t at_once = rows == 1 ? 1 : 4;
    uint32_t spec[] = {(uint32_t)x->dtype, (uint32_t)w->dtype, u.at != 0, at_once,
                       (uint32_t)u.dtype,  k % 4 != 0};
    km_status s = KM_ERR_UNSUPPORTED;
    if (rows > km_rows_alone(lane->ctx) && rows >= TILE / 2) {
        s = start_matrix(lane, &push, spec);
        return s == KM_ERR_UNSUPPORTED ? start_tiles(lane, &push, spec) : s;
    }
    s = start_stream(lane, &push, spec);
    if (s != KM_ERR_UNSUPPORTED) return s;
    int64_t groups = km_ceil_div(n, 4);
    km_groups g = KM_GROUPS(km_min64(groups, GROUPS_MOST), km_ceil_div(rows, at_once),
                            km_ceil_div(groups, GROUPS_MOST));
    return km_vulkan_launch(lane, "layer", spec, 6, &push, sizeof push, g,
                            (double)g.y * (double)n * (double)k * (u.at ? 2 : 1) * (2 + at_once));
}

/* x, then n times w, b? -> as many y */
static km_status run_linears(km_ctx *ctx, const km_call *c) {
    int n = (int)c->p->n[KM_N_LAYERS];
    (void)ctx;
    for (int i = 0; i < n; i++) /* all or none: what declines has done nothing */
        if (!row_bytes(c->in[1 + 2 * i])) return KM_ERR_UNSUPPORTED;
    for (int i = 0; i < n; i++) {
        const km_tensor *w = c->in[1 + 2 * i], *b = 2 + 2 * i < c->n_in ? c->in[2 + 2 * i] : NULL;
        if (i > 0) km_vulkan_beside(km_vulkan_lane(c));
        km_status s = start_layer(km_vulkan_lane(c), c->in[0], w, (layer_up){0}, b, c->out[i],
                                  w->shape.dim[0], KM_ACT_NONE);
        if (s != KM_OK) return s;
    }
    return KM_OK;
}

/* x, w, b? -> y */
static km_status run_quant_linear(km_ctx *ctx, const km_call *c) {
    (void)ctx;
    return start_layer(km_vulkan_lane(c), c->in[0], c->in[1], (layer_up){0},
                       c->n_in > 2 ? c->in[2] : NULL, c->out[0], c->in[1]->shape.dim[0], c->p->act);
}

/* x, g, u? -> act(x g^T) * (x u^T); without u both are halves of g */
static km_status run_gated(km_ctx *ctx, const km_call *c) {
    const km_tensor *g = c->in[1], *u = c->n_in > 2 ? c->in[2] : NULL;
    int64_t n = c->out[0]->shape.dim[1];
    layer_up up = {km_vulkan_at(u), u ? u->dtype : KM_F32, u ? row_bytes(u) : 0};
    (void)ctx;
    if (!u) up = (layer_up){km_vulkan_at(g) + (uint64_t)n * row_bytes(g), g->dtype, row_bytes(g)};
    if (!up.bytes) return KM_ERR_UNSUPPORTED;
    return start_layer(km_vulkan_lane(c), c->in[0], g, up, NULL, c->out[0], n, c->p->act);
}

/* ---- Tables ---- */

typedef struct lookup_push {
    uint64_t table, ids, o;
    uint32_t n, table_rows, columns, row_bytes;
} lookup_push;

static km_status start_lookup(const km_call *c, const km_tensor *ids, int64_t n, int64_t table_rows,
                              int64_t columns) {
    const km_tensor *table = c->in[0], *o = c->out[0];
    int64_t bytes = km_dtype_bytes(table->dtype, columns);
    if (!is_float(o->dtype) || (!km_dtype_is_block(table->dtype) && !is_float(table->dtype)) ||
        n * columns >= KM_VULKAN_MOST || bytes >= KM_VULKAN_MOST || !km_is_contiguous(table) ||
        !km_is_contiguous(o) || table->storage->drop)
        return KM_ERR_UNSUPPORTED;
    if (n * columns == 0) return KM_OK;
    lookup_push push = {.table = km_vulkan_at(table),
                        .ids = km_vulkan_at(ids),
                        .o = km_vulkan_at(o),
                        .n = (uint32_t)n,
                        .table_rows = (uint32_t)table_rows,
                        .columns = (uint32_t)columns,
                        .row_bytes = (uint32_t)bytes};
    uint32_t spec[] = {(uint32_t)table->dtype, (uint32_t)o->dtype,
                       ids ? (uint32_t)ids->dtype : KM_I32};
    return km_vulkan_launch(
        km_vulkan_lane(c), "lookup", spec, 3, &push, sizeof push,
        km_groups_for(km_ceil_div(n * km_ceil_div(columns, 4), KM_VULKAN_THREADS)),
        (double)(n * columns) * 10);
}

/* table (v, c), ids (...) -> (..., c) */
static km_status run_embedding(km_ctx *ctx, const km_call *c) {
    const km_tensor *table = c->in[0], *ids = c->in[1];
    (void)ctx;
    if (!km_is_contiguous(ids) || table->shape.ndim != 2 || table->shape.dim[0] >= KM_VULKAN_MOST)
        return KM_ERR_UNSUPPORTED;
    return start_lookup(c, ids, km_shape_count(ids->shape), table->shape.dim[0],
                        table->shape.dim[1]);
}

/* x -> out, blocks to floats */
static km_status run_dequantise(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0];
    int64_t columns = x->shape.ndim ? x->shape.dim[x->shape.ndim - 1] : 1;
    int64_t n = columns ? km_shape_count(x->shape) / columns : 0;
    (void)ctx;
    return start_lookup(c, NULL, n, n, columns);
}

void km_vulkan_register_layers(km_kernel *table) {
    table[KM_OP_LINEARS] = run_linears;
    table[KM_OP_GATED] = run_gated;
    table[KM_OP_QUANT_LINEAR] = run_quant_linear;
    table[KM_OP_EMBEDDING] = table[KM_OP_QUANT_EMBEDDING] = run_embedding;
    table[KM_OP_DEQUANTISE] = run_dequantise;
}
