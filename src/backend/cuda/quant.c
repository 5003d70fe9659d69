/* Layers over weights of a few bits, or of 16 bits with f32 x, on the GPU: a few rows of x by
 * kernels that stream the weights, more by tensor cores. */
#include "backend/cuda/quant.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/lane.h"
#include "backend/cuda/kernels/quant_tile_args.h"
#include "backend/cuda/modules.h"
#include <string.h>

/* Beyond the block dtypes: plain weights. */
enum { PLAIN_F16 = KM_QUANT_TYPES, PLAIN_BF16, TYPES };

static int type_of(km_dtype d) {
    return d == KM_F16 ? PLAIN_F16 : d == KM_BF16 ? PLAIN_BF16 : km_cuda_quant_type(d);
}

/* ---- Kernels by type ---- */

#define MODULE_Q4_0 "quant_few_32"
#define MODULE_Q4_1 "quant_few_32"
#define MODULE_Q5_0 "quant_few_32"
#define MODULE_Q5_1 "quant_few_32"
#define MODULE_Q8_0 "quant_few_32"
#define MODULE_IQ4_NL "quant_few_32"
#define MODULE_MXFP4 "quant_few_32"
#define MODULE_Q2_K "quant_few_k"
#define MODULE_Q3_K "quant_few_k"
#define MODULE_Q4_K "quant_few_k"
#define MODULE_Q5_K "quant_few_k"
#define MODULE_Q6_K "quant_few_k"
#define MODULE_IQ4_XS "quant_few_k"

#define KERNEL(module_, name_) {.module = module_, .name = name_, .waits = true}
/* For 1, 4 and 8 rows. */
#define COUNTS(module_, name_)                                                                     \
    {KERNEL(module_, name_ "_1"), KERNEL(module_, name_ "_4"), KERNEL(module_, name_ "_8")}
#define FEW(name, ...) [KM_QUANT_##name] = COUNTS(MODULE_##name, "few_" #name),
#define FEW_GATED(name, ...) [KM_QUANT_##name] = COUNTS(MODULE_##name, "few_gated_" #name),
static km_cuda_kernel few[2][TYPES][3] = {
    {KM_QUANT_PLANES(FEW)[PLAIN_F16] = COUNTS("plain_few", "few_F16"),
     [PLAIN_BF16] = COUNTS("plain_few", "few_BF16")},
    {KM_QUANT_PLANES(FEW_GATED)[PLAIN_F16] = COUNTS("plain_few", "few_gated_F16"),
     [PLAIN_BF16] = COUNTS("plain_few", "few_gated_BF16")}};

#define TILE(name, ...) [KM_QUANT_##name] = KERNEL("quant_tiles", "tiles_" #name),
#define TILE_GATED(name, ...) [KM_QUANT_##name] = KERNEL("quant_tiles", "tiles_gated_" #name),
#define HOPPER(name, ...) [KM_QUANT_##name] = KERNEL("quant_tiles_hopper", "tiles_" #name),
#define HOPPER_GATED(name, ...)                                                                    \
    [KM_QUANT_##name] = KERNEL("quant_tiles_hopper", "tiles_gated_" #name),
#define TILES(module_, each, each_gated)                                                           \
    {                                                                                              \
        {KM_QUANT_PLANES(each)[PLAIN_F16] = KERNEL(module_, "tiles_F16"),                          \
         [PLAIN_BF16] = KERNEL(module_, "tiles_BF16")},                                            \
        {KM_QUANT_PLANES(each_gated)[PLAIN_F16] = KERNEL(module_, "tiles_gated_F16"),              \
         [PLAIN_BF16] = KERNEL(module_, "tiles_gated_BF16")},                                      \
    }
static km_cuda_kernel tiles[2][2][TYPES] = {TILES("quant_tiles", TILE, TILE_GATED),
                                            TILES("quant_tiles_hopper", HOPPER, HOPPER_GATED)};

#define ROWS(type, ...) [KM_QUANT_##type] = {.module = "quant_rows", .name = "quant_rows_" #type},
static km_cuda_kernel rows[KM_QUANT_TYPES] = {KM_QUANT_PLANES(ROWS)};

/* Layers of two types in one launch: those of the mixes that people use. */
static struct {
    int first, second;
    km_cuda_kernel kernel[3];
} two[] = {{KM_QUANT_Q4_K, KM_QUANT_Q6_K, COUNTS("quant_few_k", "few_Q4_K_Q6_K")},
           {KM_QUANT_Q5_K, KM_QUANT_Q6_K, COUNTS("quant_few_k", "few_Q5_K_Q6_K")},
           {KM_QUANT_Q3_K, KM_QUANT_Q5_K, COUNTS("quant_few_k", "few_Q3_K_Q5_K")}};

/* ---- One call ---- */

typedef struct layer {
    int type;
    km_cuda_quant w, up;      /* up.m.planes NULL: not gated */
    const float *bias;
    float *out;
    int64_t n;
} layer;

typedef struct quant_call {
    km_lane *lane;
    const float *x;
    int64_t m, k;
    km_act act;
    layer l[KM_FEW_PARTS];
    km_tensor *const *out;    /* of the call */
    int n_out;
    int layers;
    bool gated;
    km_norm_args norm;        /* makes x on the way, when y is set */
    bool made;                /* some weight was laid out just now: kernels may not run ahead */
} quant_call;

static km_status take(quant_call *q, const km_tensor *t, km_cuda_quant *w) {
    if (type_of(t->dtype) >= KM_QUANT_TYPES) {
        w->m = (km_quant_matrix){.planes = km_tensor_ptr(t)};
        return km_is_contiguous(t) && (uintptr_t)w->m.planes % 16 == 0 ? KM_OK : KM_ERR_UNSUPPORTED;
    }
    km_status s = km_cuda_quant_get(q->lane, t, w);
    q->made |= w->scratch != NULL;
    return s;
}

static km_status begin(quant_call *q, const km_call *c) {
    const km_tensor *x = c->in[0];
    *q = (quant_call){.lane = km_cuda_lane(c), .x = km_tensor_ptr(x), .act = c->p->act,
                      .out = c->out, .n_out = c->n_out};
    if (x->dtype != KM_F32 || x->shape.ndim != 2) return KM_ERR_UNSUPPORTED;
    q->m = x->shape.dim[0];
    q->k = x->shape.dim[1];
    bool fits = q->k > 0 && q->k % KM_QUANT_UNIT == 0 && q->k <= 1 << 20 && q->m <= 1 << 24 &&
                (uintptr_t)q->x % 16 == 0;
    return fits ? KM_OK : KM_ERR_UNSUPPORTED;
}

static void end(quant_call *q) {
    for (int i = 0; i < q->layers; i++) {
        km_cuda_quant_put(q->lane, &q->l[i].w);
        km_cuda_quant_put(q->lane, &q->l[i].up);
    }
}

/* Adds w (n, k), or the halves or pair of a gated layer. */
static km_status add_layer(quant_call *q, const km_tensor *w, const km_tensor *up, bool gated,
                           const km_tensor *bias, const km_tensor *out) {
    layer *l = &q->l[q->layers];
    *l = (layer){.type = type_of(w->dtype), .n = w->shape.dim[0],
                 .bias = bias ? km_tensor_ptr(bias) : NULL, .out = km_tensor_ptr(out)};
    if (l->type < 0 || (up && up->dtype != w->dtype) || l->n > INT32_MAX) return KM_ERR_UNSUPPORTED;
    km_status s = take(q, w, &l->w);
    q->layers++;
    if (s != KM_OK || !gated) return s;
    if (up) return take(q, up, &l->up);
    l->n /= 2;
    l->up.m = l->w.m;
    if (l->type >= KM_QUANT_TYPES)
        l->up.m.planes += l->n * q->k * 2;
    else
        l->up.m.first += l->n * q->k / km_cuda_quant_group(w->dtype);
    return KM_OK;
}

/* ---- A few rows ---- */

/* Shared memory of a launch for m rows: x. */
static size_t shared_bytes(const quant_call *q, int m) {
    size_t each = q->l[0].type >= KM_QUANT_TYPES ? (size_t)q->k * 4 : (size_t)KM_FEW_X_BYTES(q->k);
    return (size_t)(m == 1 ? 1 : m <= 4 ? 4 : 8) * each;
}

/* Layers [first, first + count) in one launch: blocks are shared out by the weights' bytes. */
static km_status launch_few(quant_call *q, km_cuda_kernel *kernel, int first, int count,
                            int64_t row, int m) {
    const km_cuda_dev *dev = km_cuda_dev_of(q->lane);
    bool plain = q->l[first].type >= KM_QUANT_TYPES;
    int64_t pieces = q->k / (plain ? 8 : KM_QUANT_UNIT);
    km_quant_few_args a = {.x = q->x + row * q->k, .parts = count, .m = m, .k = (int32_t)q->k,
                           .act = (int32_t)q->act,
                           .lanes = pieces >= 32 ? 32 : pieces >= 16 ? 16 : 8};
    int64_t all = 0, groups = KM_FEW_THREADS / a.lanes, held = (m == 1 ? 2 : 1) * (int64_t)dev->sms;
    int32_t last = 0;
    for (int i = 0; i < count; i++) all += q->l[first + i].n;
    if (all == 0) return KM_OK;
    for (int i = 0; i < count; i++) {
        const layer *l = &q->l[first + i];
        int64_t blocks = (held * l->n + all / 2) / all, most = (l->n + groups - 1) / groups;
        if (blocks > most) blocks = most;
        if (blocks < 1) blocks = 1; /* one that finds nothing to do, where there are no rows */
        a.part[i] = (km_quant_part){.w = l->w.m, .up = l->up.m, .bias = l->bias,
                                    .out = l->out + row * l->n, .n = (int32_t)l->n,
                                    .first = last, .second = l->type != q->l[first].type,
                                    .each = (int32_t)(l->n / blocks),
                                    .more = (int32_t)(l->n % blocks)};
        last += (int32_t)blocks;
    }
    a.early = q->made || row > 0 ? 0 : 48 << 10;
    if (q->norm.y && !plain) {
        a.delta = q->norm.x, a.residual = q->norm.residual, a.norm_w = q->norm.w;
        a.sum = q->norm.sum, a.y = q->norm.y, a.rstd = q->norm.rstd, a.eps = q->norm.eps;
        q->norm.y = NULL; /* the launches after this one find it in memory */
    }
    void *params[] = {&a};
    return km_cuda_launch_with(q->lane, kernel + (m == 1 ? 0 : m <= 4 ? 1 : 2), KM_DIM(last),
                               KM_DIM(KM_FEW_THREADS), (unsigned)shared_bytes(q, m), params,
                               &(km_launch_options){.alone = q->made});
}

static km_cuda_kernel *kernel_of_two(int first, int second) {
    for (size_t i = 0; i < sizeof two / sizeof *two; i++)
        if (two[i].first == first && two[i].second == second) return two[i].kernel;
    return NULL;
}

/* Layers that one kernel knows go together. */
static km_status few_rows(quant_call *q, int64_t row, int m) {
    for (int i = 0; i < q->layers;) {
        km_cuda_kernel *kernel = few[q->gated][q->l[i].type];
        int n = 1, second = -1;
        for (; i + n < q->layers; n++) {
            int type = q->l[i + n].type;
            if (type == q->l[i].type || type == second) continue;
            km_cuda_kernel *both = second < 0 && !q->gated ? kernel_of_two(q->l[i].type, type) : NULL;
            if (!both) break;
            kernel = both;
            second = type;
        }
        km_status s = launch_few(q, kernel, i, n, row, m);
        if (s != KM_OK) return s;
        i += n;
    }
    return KM_OK;
}

/* ---- Many rows ---- */

static bool has_hopper(const km_cuda_dev *dev) {
    if (dev->cc != 90) return false;
    for (int i = 0; i < km_cuda_module_count; i++)
        if (strcmp(km_cuda_modules[i].name, "quant_tiles_hopper") == 0) return true;
    return false;
}

/* Blocks that share a tile along k, so that the chip has two blocks to a multiprocessor. */
static int64_t splits_for(const quant_call *q, int64_t count) {
    int64_t room = 2 * (int64_t)km_cuda_dev_of(q->lane)->sms, steps = q->k / 64;
    int64_t n = count < room ? room / count : 1;
    if (n > steps / 4) n = steps / 4;
    if (n > 16) n = 16;
    return n > 1 && count <= KM_CUDA_COUNTERS ? n : 1;
}

static km_status run_tiles(quant_call *q, const layer *l, const void *x, const float *scale) {
    km_tile_args a = {.x = x, .scale = scale, .w = l->w.m, .up = l->up.m, .bias = l->bias,
                      .out = l->out, .m = (int32_t)q->m, .n = (int32_t)l->n, .k = (int32_t)q->k,
                      .act = (int32_t)q->act};
    if (l->n == 0) return KM_OK;
    bool hopper = has_hopper(km_cuda_dev_of(q->lane));
    int64_t each = q->gated ? KM_TILE_SIDE / 2 : KM_TILE_SIDE;
    int64_t tall = (q->m + KM_TILE_SIDE - 1) / KM_TILE_SIDE, wide = (l->n + each - 1) / each;
    int64_t splits = hopper ? splits_for(q, tall * wide) : 1;
    size_t cap = 0;
    if (splits > 1) {
        a.partial = km_cuda_scratch(
            q->lane, (size_t)(tall * wide * splits) * KM_TILE_FLOATS * sizeof(float), &cap);
        a.counters = a.partial ? km_cuda_counters(q->lane) : NULL;
        if (!a.counters) return q->lane->ctx->error.code;
    }
    void *params[] = {&a};
    km_status s = km_cuda_launch_with(q->lane, &tiles[hopper][q->gated][l->type],
                                      KM_DIM(tall, wide, splits), KM_DIM(KM_TILE_THREADS),
                                      hopper ? KM_TILE_HOPPER_SHARED : KM_TILE_SHARED, params,
                                      &(km_launch_options){.alone = q->made});
    km_cuda_scratch_free(q->lane, a.partial, cap);
    return s;
}

static km_status many_rows(quant_call *q) {
    static km_cuda_kernel round = KERNEL("quant_tiles", "quant_round");
    size_t cap;
    int64_t aligned = (q->m + 63) / 64 * 64;
    char *room = km_cuda_scratch(q->lane, (size_t)aligned * (size_t)(2 * q->k + 4), &cap);
    if (!room) return q->lane->ctx->error.code;
    float *scale = (float *)(room + aligned * 2 * q->k);
    km_round_args r = {q->x, room, scale, (int32_t)q->k};
    km_status s = km_cuda_launch1(q->lane, &round, KM_DIM(q->m), KM_DIM(256), 0, &r);
    for (int i = 0; i < q->layers && s == KM_OK; i++) s = run_tiles(q, &q->l[i], room, scale);
    km_cuda_scratch_free(q->lane, room, cap);
    return s;
}

static km_status run(quant_call *q) {
    int most = KM_FEW_AT_ONCE;
    size_t room = km_cuda_dev_of(q->lane)->shared_max;
    if (q->m > KM_FEW_ROWS) return many_rows(q);
    while (most > 1 && shared_bytes(q, most) > room) most = most == KM_FEW_AT_ONCE ? 4 : 1;
    if (q->m <= most && !q->made && q->l[0].type < KM_QUANT_TYPES)
        km_cuda_held_take(q->lane, q->x, q->m, q->k, q->out, q->n_out, &q->norm);
    if (shared_bytes(q, most) > room) return many_rows(q);
    km_status s = KM_OK;
    for (int64_t row = 0; row < q->m && s == KM_OK; row += most)
        s = few_rows(q, row, (int)(q->m - row < most ? q->m - row : most));
    return s;
}

/* ---- Ops ---- */

static km_status run_linear(km_ctx *ctx, const km_call *c) {
    quant_call q;
    km_status s = begin(&q, c);
    (void)ctx;
    if (s == KM_OK) s = add_layer(&q, c->in[1], NULL, false, c->n_in > 2 ? c->in[2] : NULL, c->out[0]);
    if (s == KM_OK && q.m > 0) s = run(&q);
    end(&q);
    return s;
}

static km_status run_linears(km_ctx *ctx, const km_call *c) {
    quant_call q;
    km_status s = begin(&q, c);
    (void)ctx;
    for (int i = 0; i < c->n_out && s == KM_OK; i++)
        s = add_layer(&q, c->in[1 + 2 * i], NULL, false,
                      2 + 2 * i < c->n_in ? c->in[2 + 2 * i] : NULL, c->out[i]);
    q.act = KM_ACT_NONE;
    if (s == KM_OK && q.m > 0) s = run(&q);
    end(&q);
    return s;
}

static km_status run_gated(km_ctx *ctx, const km_call *c) {
    quant_call q;
    km_status s = begin(&q, c);
    (void)ctx;
    q.gated = true;
    if (s == KM_OK) s = add_layer(&q, c->in[1], c->n_in > 2 ? c->in[2] : NULL, true, NULL, c->out[0]);
    if (s == KM_OK && q.m > 0) s = run(&q);
    end(&q);
    return s;
}

static km_status as_floats(km_lane *lane, const km_tensor *w, const km_tensor *ids, int64_t count,
                           const km_tensor *out) {
    km_cuda_quant q;
    if (out->dtype != KM_F32 && out->dtype != KM_F16 && out->dtype != KM_BF16)
        return KM_ERR_UNSUPPORTED;
    km_status s = km_cuda_quant_get(lane, w, &q);
    if (s != KM_OK) return s;
    int64_t k = w->shape.dim[w->shape.ndim - 1];
    km_quant_rows_args a = {.w = q.m, .ids = ids ? km_tensor_ptr(ids) : NULL,
                            .out = km_tensor_ptr(out), .rows = km_shape_count(w->shape) / k,
                            .count = count, .k = (int32_t)k, .wide = ids && ids->dtype == KM_I64,
                            .dtype = out->dtype == KM_F32 ? 0 : out->dtype == KM_F16 ? 1 : 2};
    int64_t units = count * (k / KM_QUANT_UNIT);
    s = km_cuda_launch1(lane, &rows[km_cuda_quant_type(w->dtype)], KM_DIM((units + 127) / 128),
                        KM_DIM(128), 0, &a);
    km_cuda_quant_put(lane, &q);
    return s;
}

static km_status run_embedding(km_ctx *ctx, const km_call *c) {
    (void)ctx;
    return as_floats(km_cuda_lane(c), c->in[0], c->in[1], km_shape_count(c->in[1]->shape), c->out[0]);
}

static km_status run_dequantise(km_ctx *ctx, const km_call *c) {
    const km_tensor *w = c->in[0];
    int64_t count = km_shape_count(w->shape);
    (void)ctx;
    if (w->shape.ndim < 1 || count == 0) return KM_ERR_UNSUPPORTED;
    return as_floats(km_cuda_lane(c), w, NULL, count / w->shape.dim[w->shape.ndim - 1], c->out[0]);
}

void km_cuda_register_quant(km_kernel *table) {
    table[KM_OP_QUANT_LINEAR] = run_linear;
    table[KM_OP_LINEARS] = run_linears;
    table[KM_OP_GATED] = run_gated;
    table[KM_OP_QUANT_EMBEDDING] = run_embedding;
    table[KM_OP_DEQUANTISE] = run_dequantise;
}
