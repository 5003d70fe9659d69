/* Gradient of an embedding's table (shaders/embedding_grad.comp): zeros first, unless it is added to, then
 * the sums of the rows that were read. */
#include "backend/vulkan/launch.h"
#include "backend/vulkan/vulkan.h"

#define COLUMNS 512 /* of a workgroup, as in the shader */

/* dy (..., c), ids (...) -> dtable (v, c) */
static km_status run_embedding_grad(km_ctx *ctx, const km_call *c) {
    const km_tensor *dy = c->in[0], *ids = c->in[1];
    km_tensor *table = c->out[0];
    int64_t places = km_shape_count(ids->shape), rows = table->shape.dim[0],
            columns = table->shape.dim[1];
    km_lane *lane = km_vulkan_lane(c);
    km_dtype d = dy->dtype;
    if ((d != KM_F32 && d != KM_F16 && d != KM_BF16) || table->dtype != d ||
        (ids->dtype != KM_I32 && ids->dtype != KM_I64) || places * columns >= KM_VULKAN_MOST ||
        rows * columns >= KM_VULKAN_MOST || places >= KM_VULKAN_MOST || !km_is_contiguous(table))
        return KM_ERR_UNSUPPORTED;
    if (rows * columns == 0) return KM_OK;
    if (!c->p->accumulate) {
        km_params zero = {.dtype = d};
        km_call fill = {.op = KM_OP_FULL, .n_out = 1, .out = c->out, .p = &zero};
        km_status s = km_vulkan_backend()->kernel[KM_OP_FULL](ctx, &fill);
        if (s != KM_OK) return s;
    }
    struct {
        uint64_t dy, ids, o;
        uint32_t places, table_rows, columns, add;
    } push = {.dy = km_vulkan_at(dy),
              .ids = km_vulkan_at(ids),
              .o = km_vulkan_at(table),
              .places = (uint32_t)places,
              .table_rows = (uint32_t)rows,
              .columns = (uint32_t)columns,
              .add = c->p->accumulate};
    uint32_t spec[] = {(uint32_t)d, (uint32_t)ids->dtype};
    if (places == 0) return KM_OK;
    km_groups g = km_groups_for(places);
    g.z = (uint32_t)km_ceil_div(columns, COLUMNS);
    double work = (double)places * (double)columns * 10 +
                  (double)g.z * (double)places * (double)places * 0.5 + (double)places * 500;
    return km_vulkan_launch(lane, "embedding_grad", spec, 2, &push, sizeof push, g, work);
}

void km_vulkan_register_embedding_grad(km_kernel *table) {
    table[KM_OP_EMBEDDING_GRAD] = run_embedding_grad;
}
