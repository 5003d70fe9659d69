/* From the file's layout of a block to planes, and back (kernels/quant_args.h). */
#include "backend/cuda/quant.h"
#include "tensor/dtype.h"

typedef struct layout {
    int block;
    struct {
        uint8_t place, length;
    } field[KM_QUANT_FIELDS];
} layout;

#define LAYOUT(name, block_, ...) [KM_QUANT_##name] = {block_, {__VA_ARGS__}},
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

static km_status rearrange(km_lane *lane, km_dtype d, const void *from, void *to, int64_t blocks,
                           int64_t padded, bool back) {
    static km_cuda_kernel kernel = {.module = "quant_planes", .name = "quant_planes"};
    const layout *l = &layouts[km_cuda_quant_type(d)];
    km_planes_args a = {.from = from, .to = to, .blocks = blocks, .padded = padded,
                        .bytes = (int32_t)km_dtype_size(d), .back = back};
    for (; a.fields < KM_QUANT_FIELDS && l->field[a.fields].length; a.fields++) {
        a.place[a.fields] = l->field[a.fields].place;
        a.length[a.fields] = l->field[a.fields].length;
    }
    return km_cuda_launch1(lane, &kernel, KM_DIM((blocks + 127) / 128), KM_DIM(128), 0, &a);
}

km_status km_cuda_quant_get(km_lane *lane, const km_tensor *t, km_cuda_quant *out) {
    const km_storage *s = t->storage;
    int type = km_cuda_quant_type(t->dtype);
    int64_t k = t->shape.ndim ? t->shape.dim[t->shape.ndim - 1] : 0;
    *out = (km_cuda_quant){0};
    if (type < 0 || k % KM_QUANT_UNIT) return KM_ERR_UNSUPPORTED;
    int64_t block = layouts[type].block;
    if (s->settled) {
        out->m = (km_quant_matrix){s->data, (int64_t)(s->bytes / km_dtype_size(t->dtype)),
                                   t->offset / block};
        return KM_OK;
    }
    int64_t blocks = km_shape_count(t->shape) / block;
    int64_t padded = (blocks + KM_QUANT_ALIGN - 1) / KM_QUANT_ALIGN * KM_QUANT_ALIGN;
    out->scratch = km_cuda_scratch(lane, (size_t)padded * km_dtype_size(t->dtype), &out->cap);
    if (!out->scratch) return lane->ctx->error.code;
    out->m = (km_quant_matrix){out->scratch, padded, 0};
    return rearrange(lane, t->dtype, km_tensor_ptr(t), out->scratch, blocks, padded, false);
}

void km_cuda_quant_put(km_lane *lane, km_cuda_quant *q) {
    km_cuda_scratch_free(lane, q->scratch, q->cap);
    q->scratch = NULL;
}

/* Both ways: into a new block of memory, which takes the old one's place. */
static km_status relay(km_lane *lane, km_storage *s, km_dtype dtype, bool back) {
    int64_t blocks = (int64_t)(s->bytes / km_dtype_size(dtype));
    size_t cap;
    if (s->settled != back || blocks % KM_QUANT_ALIGN || km_cuda_quant_type(dtype) < 0) return KM_OK;
    void *p = km_cuda_scratch(lane, s->bytes, &cap);
    if (!p) return lane->ctx->error.code;
    km_status status = rearrange(lane, dtype, s->data, p, blocks, blocks, back);
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
