/* The embedding's gradient on the GPU: ids sorted with their positions, then added up row by row of
 * the table (kernels/embedding_grad.cu). */
#include "backend/cuda/cuda.h"
#include "backend/cuda/kernels/rows/row_args.h"
#include "backend/cuda/walker.h"
#include "base/util.h"

#define KERNEL(name_)                                                                              \
    { .module = "embedding_grad", .name = "embedding_grad_" name_ }
static km_cuda_kernel count = KERNEL("count"), scan = KERNEL("scan"), place = KERNEL("place"),
                      starts = KERNEL("starts");
static km_cuda_kernel light[2][KM_CUDA_SLOTS] = {
    KM_CUDA_PER_TYPE("embedding_grad", "embedding_grad_light1"),
    KM_CUDA_PER_TYPE("embedding_grad", "embedding_grad_light")};
static km_cuda_kernel heavy[2][KM_CUDA_SLOTS] = {
    KM_CUDA_PER_TYPE("embedding_grad", "embedding_grad_heavy1"),
    KM_CUDA_PER_TYPE("embedding_grad", "embedding_grad_heavy")};

/* One pass of the sort, by eight bits. */
static km_status pass(km_lane *lane, const km_embedding_grad_args *a) {
    km_status s = km_cuda_launch1(lane, &count, KM_DIM(a->tiles), KM_DIM(256), 0, a);
    if (s == KM_OK) s = km_cuda_launch1(lane, &scan, KM_DIM(1), KM_DIM(1024), 0, a);
    return s == KM_OK ? km_cuda_launch1(lane, &place, KM_DIM(a->tiles), KM_DIM(256), 0, a) : s;
}

/* After it a->key and a->at are sorted. two: room for the keys and positions of two passes. */
static km_status sort(km_lane *lane, km_embedding_grad_args *a, uint32_t *two) {
    km_status s = KM_OK;
    int turn = 0;
    for (a->shift = 0; s == KM_OK && (a->shift == 0 || a->rows >> a->shift); a->shift += 8) {
        a->key = two + 2 * turn * a->items;
        a->at = a->key + a->items;
        s = pass(lane, a);
        a->key_in = a->key;
        a->at_in = a->at;
        turn = !turn;
    }
    return s;
}

static km_status run(km_ctx *ctx, const km_call *c) {
    const km_tensor *dy = c->in[0], *ids = c->in[1], *out = c->out[0];
    km_lane *lane = km_cuda_lane(c);
    int slot = km_cuda_slot(dy->dtype);
    size_t cap, size = km_dtype_size(dy->dtype);
    km_embedding_grad_args a = {.dy = km_tensor_ptr(dy),
                                .index = km_tensor_ptr(ids),
                                .out = km_tensor_ptr(out),
                                .items = km_shape_count(ids->shape),
                                .rows = out->shape.dim[0],
                                .inner = out->shape.dim[1],
                                .wide = ids->dtype == KM_I64,
                                .accumulate = c->p->accumulate};
    if (slot < 0 || a.items >= INT32_MAX || a.rows >= INT32_MAX) return KM_ERR_UNSUPPORTED;
    if (km_cuda_empty(out)) return KM_OK;
    a.tiles = (int32_t)km_ceil_div(a.items, KM_SORT_TILE);
    if (a.tiles < 1) a.tiles = 1;
    /* Keys and positions twice, digits, starts, and the rows that may be heavy. */
    int64_t words = 4 * a.items + 256 * (int64_t)a.tiles + a.rows + 1 + 1 + a.items / KM_HEAVY + 1;
    uint32_t *room = km_cuda_scratch(lane, (size_t)words * sizeof *room, &cap);
    if (!room) return ctx->error.code;
    a.digits = room + 4 * a.items;
    a.start = a.digits + 256 * (int64_t)a.tiles;
    a.heavy = a.start + a.rows + 1;
    bool aligned =
        (size_t)a.inner * size % 16 == 0 && km_cuda_aligned(a.dy, 16) && km_cuda_aligned(a.out, 16);
    int64_t packs = aligned ? a.inner * (int64_t)size / 16 : a.inner;
    int threads = packs > 96 ? 128 : packs > 64 ? 96 : packs > 32 ? 64 : 32;
    km_status s = sort(lane, &a, room);
    if (s == KM_OK)
        s = km_cuda_launch1(lane, &starts, KM_DIM(km_ceil_div(a.items + 1, 256)), KM_DIM(256), 0,
                            &a);
    if (s == KM_OK)
        s = km_cuda_launch1(lane, &light[aligned][slot],
                            KM_DIM(a.rows, km_ceil_div(packs, threads)), KM_DIM(threads), 0, &a);
    if (s == KM_OK && a.items > KM_HEAVY)
        s = km_cuda_launch1(lane, &heavy[aligned][slot],
                            KM_DIM(2 * (int64_t)km_cuda_dev_of(lane)->sms), KM_DIM(256), 0, &a);
    km_cuda_scratch_free(lane, room, cap);
    return s;
}

void km_cuda_register_embedding_grad(km_kernel *table) { table[KM_OP_EMBEDDING_GRAD] = run; }
