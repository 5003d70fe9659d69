/* From the file's layout of a block to planes, and back (kernels/quant_args.h). */
#include "backend/cuda/quant.h"
#include "backend/cuda/feed.h"
#include "tensor/dtype.h"
#include <string.h>

typedef struct layout {
    int blocks, elements; /* of a group */
    km_quant_field field[KM_QUANT_FIELDS];
} layout;

#define LAYOUT(name, blocks_, elements_, ...)                                                      \
    [KM_QUANT_##name] = {blocks_, elements_, {__VA_ARGS__}},
static const layout layouts[KM_QUANT_TYPES] = {KM_QUANT_PLANES(LAYOUT)};
#undef LAYOUT

int km_cuda_quant_type(km_dtype d) {
    switch (d) {
#define TYPE(name, ...)                                                                            \
    case KM_##name: return KM_QUANT_##name;
        KM_QUANT_PLANES(TYPE)
#undef TYPE
    default: return -1;
    }
}

int64_t km_cuda_quant_group(km_dtype d) { return layouts[km_cuda_quant_type(d)].elements; }

size_t km_cuda_quant_step(km_dtype d) {
    const layout *l = &layouts[km_cuda_quant_type(d)];
    size_t groups = (size_t)(32 * KM_QUANT_UNIT / l->elements), sum = 0;
    for (int i = 0; i < KM_QUANT_FIELDS; i++) {
        size_t bytes = (size_t)(l->field[i].length * l->field[i].count);
        sum += groups * bytes + (bytes % 16 ? 16 : 0);
    }
    return sum;
}

static km_status rearrange(km_lane *lane, km_dtype d, const void *from, void *to, int64_t groups,
                           int64_t padded, int64_t end, bool back) {
    static km_cuda_kernel kernel = {.module = "quant_planes", .name = "quant_planes"};
    const layout *l = &layouts[km_cuda_quant_type(d)];
    km_planes_args a = {.from = from,
                        .to = to,
                        .groups = groups,
                        .padded = padded,
                        .end = end,
                        .bytes = l->blocks * (int32_t)km_dtype_size(d),
                        .back = back};
    memcpy(a.field, l->field, sizeof a.field);
    return km_cuda_launch1(lane, &kernel, KM_DIM((groups + 127) / 128), KM_DIM(128), 0, &a);
}

km_status km_cuda_quant_get(km_lane *lane, const km_tensor *t, km_cuda_quant *out) {
    int64_t k = t->shape.ndim ? t->shape.dim[t->shape.ndim - 1] : 0;
    *out = (km_cuda_quant){0};
    return k % KM_QUANT_UNIT ? KM_ERR_UNSUPPORTED : km_cuda_quant_flat(lane, t, out);
}

km_status km_cuda_quant_flat(km_lane *lane, const km_tensor *t, km_cuda_quant *out) {
    const km_storage *s = t->storage;
    int type = km_cuda_quant_type(t->dtype);
    *out = (km_cuda_quant){0};
    if (type < 0 || t->offset % layouts[type].elements) return KM_ERR_UNSUPPORTED;
    int64_t elements = layouts[type].elements;
    size_t bytes = (size_t)layouts[type].blocks * km_dtype_size(t->dtype); /* of a group */
    if (s->settled) {
        out->m = (km_quant_matrix){s->data, (int64_t)(s->bytes / bytes), t->offset / elements};
        return KM_OK;
    }
    int64_t groups = (km_shape_count(t->shape) + elements - 1) / elements;
    int64_t padded = (groups + KM_QUANT_ALIGN - 1) / KM_QUANT_ALIGN * KM_QUANT_ALIGN;
    out->scratch = km_cuda_scratch(lane, (size_t)padded * bytes, &out->cap);
    if (!out->scratch) return lane->ctx->error.code;
    out->m = (km_quant_matrix){out->scratch, padded, 0};
    const void *from = km_cuda_bytes_of(lane, t);
    int64_t end = km_dtype_bytes(t->dtype, km_shape_count(t->shape));
    km_status status =
        from ? rearrange(lane, t->dtype, from, out->scratch, groups, padded, end, false)
             : lane->ctx->error.code;
    if (status != KM_OK) km_cuda_quant_put(lane, out);
    return status;
}

void km_cuda_quant_put(km_lane *lane, km_cuda_quant *q) {
    km_cuda_scratch_free(lane, q->scratch, q->cap);
    q->scratch = NULL;
}

/* Both ways: into a new block of memory, which takes the old one's place. */
static km_status relay(km_lane *lane, km_storage *s, km_dtype dtype, bool back) {
    int type = km_cuda_quant_type(dtype);
    if (s->settled != back || type < 0) return KM_OK;
    size_t bytes = (size_t)layouts[type].blocks * km_dtype_size(dtype), cap;
    int64_t groups = (int64_t)(s->bytes / bytes);
    if (s->bytes % bytes || groups % KM_QUANT_ALIGN) return KM_OK;
    void *p = km_cuda_scratch(lane, s->bytes, &cap);
    if (!p) return lane->ctx->error.code;
    km_status status = rearrange(lane, dtype, s->data, p, groups, groups, (int64_t)s->bytes, back);
    if (status != KM_OK) {
        km_cuda_scratch_free(lane, p, cap);
        return status;
    }
    km_mempool_put(&lane->pool, s->data, s->cap);
    s->data = p;
    s->cap = cap;
    s->settled = !back;
    return KM_OK;
}

km_status km_cuda_settle(km_lane *lane, km_storage *s, km_dtype dtype) {
    return relay(lane, s, dtype, false);
}

km_status km_cuda_unsettle(km_lane *lane, km_storage *s, km_dtype dtype) {
    return relay(lane, s, dtype, true);
}
