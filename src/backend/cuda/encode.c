/* Encoding on the GPU: one launch for levels; for trellises tables are laid out, rows sorted by class,
 * and blocks search a few rows at a time, each with a place of its own for the ways it took. */
#include "backend/cuda/cuda.h"
#include "backend/cuda/kernels/vector/encode_args.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/walker.h"
#include "backend/trellis.h"
#include "base/util.h"

#define ONE(module_, name_)                                                                        \
    { .module = module_, .name = name_, .waits = true }
static km_cuda_kernel levels = ONE("encode", "encode_levels");
static km_cuda_kernel prepare = ONE("trellis", "trellis_prepare");
static km_cuda_kernel classes = ONE("trellis", "trellis_classes");
static km_cuda_kernel search_4 = ONE("trellis", "trellis_encode_4");
static km_cuda_kernel search_2 = ONE("trellis", "trellis_encode_2");

#define BACK_BYTES ((int64_t)1 << 30) /* of ways taken, at most */
#define STATIC_SHARED 2048            /* what a block has beside what it asks for, at most */

enum { Z, SQUARE };

static km_status run_levels(km_ctx *ctx, const km_call *c) {
    enum { BITS = 2, AT, AMP, TABLES };
    int64_t n = c->in[Z]->shape.dim[0], d = c->in[Z]->shape.dim[1];
    (void)ctx;
    if (d > INT32_MAX - 64 || c->p->n[KM_N_DIM] > INT32_MAX) return KM_ERR_UNSUPPORTED;
    km_levels_args a = {.z = km_tensor_ptr(c->in[Z]),
                        .square = km_tensor_ptr(c->in[SQUARE]),
                        .bits = km_tensor_ptr(c->in[BITS]),
                        .at = km_tensor_ptr(c->in[AT]),
                        .amp = km_tensor_ptr(c->in[AMP]),
                        .tables = km_tensor_ptr(c->in[TABLES]),
                        .codes = km_tensor_ptr(c->out[0]),
                        .n = n,
                        .bytes = c->p->n[KM_N_CODE_BYTES],
                        .d = (int32_t)d,
                        .dim = (int32_t)c->p->n[KM_N_DIM],
                        .low = (float)c->p->f[KM_F_LOW],
                        .step = (float)c->p->f[KM_F_SCALE_STEP]};
    return km_cuda_launch1(km_cuda_lane(c), &levels, KM_DIM(km_ceil_div(n, 32)), KM_DIM(256), 0,
                           &a);
}

/* ---- Trellises ---- */

static void *cut(char **at, int64_t bytes) {
    void *p = *at;
    *at += (bytes + 1023) / 1024 * 1024;
    return p;
}

static int64_t place_scratch(km_trellis_args *a, int64_t blocks, char *at) {
    char *first = at;
    a->inverse = cut(&at, a->width * (int64_t)sizeof *a->inverse);
    a->place = cut(&at, a->width * (int64_t)sizeof *a->place);
    a->owner = cut(&at, a->width * 8 * (int64_t)sizeof *a->owner);
    a->kind = cut(&at, a->count * (int64_t)sizeof *a->kind);
    a->counts = cut(&at, a->count * (int64_t)sizeof *a->counts);
    a->list = cut(&at, a->count * a->n * (int64_t)sizeof *a->list);
    a->back = cut(&at, blocks * a->back_words * (int64_t)sizeof *a->back);
    return at - first;
}

static km_status run_trellis(km_ctx *ctx, const km_call *c) {
    enum { AMP = 2, RATE, CLASSES, WATER, TABLES };
    km_lane *lane = km_cuda_lane(c);
    const km_cuda_dev *dev = km_cuda_dev_of(lane);
    int64_t n = c->in[Z]->shape.dim[0], width = c->in[Z]->shape.dim[1], most = c->p->n[KM_N_MOST];
    int64_t kinds = c->in[WATER]->shape.dim[0];
    if (n > INT32_MAX - 64 || width > INT32_MAX / 16 || c->p->n[KM_N_DIM] > INT32_MAX ||
        most > INT32_MAX / 64)
        return KM_ERR_UNSUPPORTED;
    int64_t rows = KM_TRELLIS_SHARED(4, most) + STATIC_SHARED <= (int64_t)dev->shared_max ? 4 : 2;
    if (KM_TRELLIS_SHARED(rows, most) + STATIC_SHARED > (int64_t)dev->shared_max)
        return KM_ERR_UNSUPPORTED;
    if (n == 0) return KM_OK;
    km_trellis_args a = {.z = km_tensor_ptr(c->in[Z]),
                         .square = km_tensor_ptr(c->in[SQUARE]),
                         .amp = km_tensor_ptr(c->in[AMP]),
                         .rate = km_tensor_ptr(c->in[RATE]),
                         .classes = km_tensor_ptr(c->in[CLASSES]),
                         .water = km_tensor_ptr(c->in[WATER]),
                         .tables = km_tensor_ptr(c->in[TABLES]),
                         .codes = km_tensor_ptr(c->out[0]),
                         .n = n,
                         .bytes = c->p->n[KM_N_CODE_BYTES],
                         .width = (int32_t)width,
                         .count = (int32_t)kinds,
                         .dim = (int32_t)c->p->n[KM_N_DIM],
                         .class_bits = (int32_t)c->p->n[KM_N_CLASS_BITS],
                         .most = (int32_t)most,
                         .low = (float)c->p->f[KM_F_LOW],
                         .step = (float)c->p->f[KM_F_SCALE_STEP]};
    int64_t shared = KM_TRELLIS_SHARED(rows, most);
    a.tables_held =
        (int32_t)(((int64_t)dev->shared_max - STATIC_SHARED - shared) / KM_TRELLIS_TABLE);
    if (a.tables_held > KM_TRELLIS_RATE + 1) a.tables_held = KM_TRELLIS_RATE + 1;
    shared += a.tables_held * KM_TRELLIS_TABLE;
    /* Two exchanges in a row take in more than four bits. */
    int64_t exchanges = 2 * (a.bytes * 8 / 5 + 1) + 1;
    a.back_words = (exchanges < most + 1 ? exchanges : most + 1) * KM_TRELLIS_THREADS * rows;
    int64_t blocks = km_ceil_div(n, rows) + kinds, most_bytes = (int64_t)(dev->limit / 4);
    int64_t room = (most_bytes < BACK_BYTES ? most_bytes : BACK_BYTES) / (a.back_words * 4);
    if (blocks > dev->sms) blocks = dev->sms;
    if (blocks > room) blocks = room > 0 ? room : 1;
    size_t cap;
    char *scratch = km_cuda_scratch(lane, (size_t)place_scratch(&a, blocks, NULL), &cap);
    if (!scratch) return ctx->error.code;
    place_scratch(&a, blocks, scratch);
    km_status s = km_cuda_launch1(lane, &prepare, KM_DIM(kinds), KM_DIM(256), 0, &a);
    if (s == KM_OK)
        s = km_cuda_launch1(lane, &classes, KM_DIM(km_ceil_div(n, 8)), KM_DIM(256), 0, &a);
    if (s == KM_OK)
        s = km_cuda_launch1(lane, rows == 4 ? &search_4 : &search_2, KM_DIM(blocks),
                            KM_DIM(KM_TRELLIS_THREADS), (unsigned)shared, &a);
    km_cuda_scratch_free(lane, scratch, cap);
    return s;
}

void km_cuda_register_encode(km_kernel *table) {
    table[KM_OP_ENCODE_LEVELS] = run_levels;
    table[KM_OP_ENCODE_TRELLIS] = run_trellis;
}
