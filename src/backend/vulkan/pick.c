/* Elements picked by index (shaders/pick.comp): rows of plain tables, index_select, gather. Tables in
 * blocks are those of running models (layers.c). */
#include "backend/vulkan/launch.h"
#include "backend/vulkan/vulkan.h"

/* x (outer, n, inner) -> out (outer, m, inner) */
static km_status start_pick(const km_call *c, int64_t outer, int64_t n, int64_t m, int64_t inner,
                            bool each) {
    const km_tensor *x = c->in[0], *ids = c->in[1], *out = c->out[0];
    int64_t total = outer * m * inner;
    uint32_t bytes = (uint32_t)km_dtype_size(x->dtype);
    struct {
        uint64_t x, ids, o;
        uint32_t total, n, m, inner, rows, row;
    } push = {.x = km_vulkan_at(x),
              .ids = km_vulkan_at(ids),
              .o = km_vulkan_at(out),
              .total = (uint32_t)total,
              .n = (uint32_t)n,
              .m = (uint32_t)m,
              .inner = (uint32_t)inner,
              .rows = (uint32_t)(n * inner),
              .row = (uint32_t)(m * inner)};
    if (km_dtype_is_block(x->dtype) || out->dtype != x->dtype || x->storage->drop ||
        (ids->dtype != KM_I32 && ids->dtype != KM_I64) || push.o % 4 ||
        outer * n * inner >= KM_VULKAN_MOST || total >= KM_VULKAN_MOST || !km_is_contiguous(out))
        return KM_ERR_UNSUPPORTED;
    if (total == 0) return KM_OK;
    uint32_t spec[] = {bytes, (uint32_t)ids->dtype, each};
    int64_t threads = bytes < 4 ? km_ceil_div(total, 4 / bytes) : total;
    return km_vulkan_launch(km_vulkan_lane(c), "pick", spec, 3, &push, sizeof push,
                            km_groups_for(km_ceil_div(threads, KM_VULKAN_THREADS)),
                            (double)total * 12);
}

/* x, index; axis -> out: index_select's index is (m), gather's of out's shape */
static km_status run_pick(km_ctx *ctx, const km_call *c) {
    const km_tensor *x = c->in[0], *out = c->out[0];
    int axis = c->p->axis;
    int64_t outer = 1, inner = 1;
    (void)ctx;
    for (int a = 0; a < x->shape.ndim; a++) {
        if (a != axis && x->shape.dim[a] != out->shape.dim[a]) return KM_ERR_UNSUPPORTED;
        if (a < axis) outer *= x->shape.dim[a];
        if (a > axis) inner *= x->shape.dim[a];
    }
    return start_pick(c, outer, x->shape.dim[axis], out->shape.dim[axis], inner,
                      c->op == KM_OP_GATHER);
}

/* table (v, c), ids (...) -> (..., c) */
static km_status run_embedding(km_ctx *ctx, const km_call *c) {
    const km_tensor *table = c->in[0], *ids = c->in[1];
    if (table->dtype == c->out[0]->dtype && table->shape.ndim == 2 && km_is_contiguous(table) &&
        km_is_contiguous(ids))
        return start_pick(c, 1, table->shape.dim[0], km_shape_count(ids->shape),
                          table->shape.dim[1], false);
    return km_vulkan_backend()->kernel[KM_OP_QUANT_EMBEDDING](ctx, c);
}

void km_vulkan_register_pick(km_kernel *table) {
    table[KM_OP_INDEX_SELECT] = table[KM_OP_GATHER] = run_pick;
    table[KM_OP_EMBEDDING] = run_embedding;
}
