/* Copies, casts and fills (shaders/copy.comp). Contiguous copies of the same dtype go as bytes of the
 * widest word that divides them. */
#include "backend/vulkan/launch.h"
#include "backend/vulkan/vulkan.h"

typedef struct copy_push {
    uint64_t x, o, walk;
    uint32_t n, bits[2];
} copy_push;

static km_status start(km_lane *lane, km_iter *it, uint32_t bytes, uint32_t from, uint32_t to,
                       bool fill, const uint32_t bits[2]) {
    copy_push push = {.bits = {bits[0], bits[1]}};
    km_vulkan_walk walk;
    if (it->rows == 0) return KM_OK;
    if (!km_vulkan_walk_make(&walk, it)) return KM_ERR_UNSUPPORTED;
    push.x = (uintptr_t)(fill ? it->base[0] : it->base[1]);
    push.o = (uintptr_t)it->base[0];
    push.n = walk.n;
    push.walk = km_vulkan_words(lane, &walk, sizeof walk);
    if (!push.walk) return lane->ctx->error.code;
    uint32_t spec[] = {bytes, from, to, fill};
    return km_vulkan_launch(lane, "copy", spec, 4, &push, sizeof push,
                            km_groups_for(km_ceil_div(push.n, KM_VULKAN_THREADS)),
                            (double)push.n * 8);
}

/* Elements that lie together on both sides, as words of up to 16 bytes. */
static uint32_t widen(km_iter *it, uint32_t bytes) {
    int last = it->ndim - 1;
    while (bytes < 16 && it->stride[0][last] == 1 && it->stride[1][last] == 1 &&
           it->dim[last] % 2 == 0) {
        bool fits = (uintptr_t)it->base[0] % 4 == 0 && (uintptr_t)it->base[1] % 4 == 0;
        for (int k = 0; k < 2; k++)
            for (int a = 0; a < last; a++) fits &= it->stride[k][a] % 2 == 0;
        if (!fits) break;
        it->dim[last] /= 2;
        bytes *= 2;
        it->size[0] = it->size[1] = bytes;
        for (int k = 0; k < 2; k++)
            for (int a = 0; a < last; a++) it->stride[k][a] /= 2;
    }
    return bytes;
}

static bool castable(km_dtype d) { return d < KM_PLAIN_COUNT && d != KM_F64 && d != KM_I64; }

static km_status run_copy(km_ctx *ctx, const km_call *c) {
    const km_tensor *t[] = {c->out[0], c->in[0]};
    km_dtype from = c->in[0]->dtype, to = c->out[0]->dtype;
    const uint32_t none[2] = {0};
    km_iter it;
    (void)ctx;
    if (km_dtype_is_block(from) || km_dtype_is_block(to)) return KM_ERR_UNSUPPORTED;
    km_iter_init(&it, 2, t);
    if (it.rows == 0) return KM_OK;
    if (from == to && km_vulkan_flat(&it)) {
        uint64_t bytes = (uint64_t)it.dim[0] * km_dtype_size(from);
        km_vulkan_wide_push wide = {
            .a = (uintptr_t)it.base[1], .o = (uintptr_t)it.base[0], .n = (uint32_t)(bytes / 16)};
        if (bytes % 16 == 0 && bytes >= 1 << 18 && (wide.a | wide.o) % 16 == 0)
            return km_vulkan_wide(km_vulkan_lane(c), &wide, 0, KM_F32, false, true);
    }
    if (from == to)
        return start(km_vulkan_lane(c), &it, widen(&it, (uint32_t)km_dtype_size(from)), 0, 0, false,
                     none);
    /* Whole numbers of 32 bits have more digits than the floats that others go through. */
    if (!castable(from) || !castable(to) || from == KM_I32) return KM_ERR_UNSUPPORTED;
    if (!km_dtype_is_float(from) && !km_dtype_is_float(to)) return KM_ERR_UNSUPPORTED; /* wraps */
    return start(km_vulkan_lane(c), &it, 4, from, to, false, none);
}

bool km_vulkan_bits(km_dtype d, double v, uint32_t bits[2]) {
    uint64_t u = 0;
    switch (d) {
    case KM_F32: u = km_f32_bits((float)v); break;
    case KM_F16: u = km_f32_to_f16(km_f64_to_f32_odd(v)); break;
    case KM_BF16: u = km_f32_to_bf16(km_f64_to_f32_odd(v)); break;
    case KM_F64: memcpy(&u, &v, 8); break;
    case KM_BOOL: u = v != 0; break;
    case KM_I32:
    case KM_I64:
    case KM_U8:
    case KM_I8: /* those that need no saturating */
        if (!(v >= (d == KM_U8   ? 0
                    : d == KM_I8 ? -128
                                 : -2147483648.0) &&
              v <= (d == KM_U8   ? 255
                    : d == KM_I8 ? 127
                                 : 2147483647.0)))
            return false;
        u = (uint64_t)(int64_t)v;
        break;
    default: return false;
    }
    bits[0] = (uint32_t)u;
    bits[1] = (uint32_t)(u >> 32);
    return true;
}

static km_status run_full(km_ctx *ctx, const km_call *c) {
    const km_tensor *t[] = {c->out[0]};
    uint32_t bits[2];
    km_iter it;
    (void)ctx;
    if (!km_vulkan_bits(c->out[0]->dtype, c->p->f[KM_F_VALUE], bits)) return KM_ERR_UNSUPPORTED;
    km_iter_init(&it, 1, t);
    return start(km_vulkan_lane(c), &it, (uint32_t)km_dtype_size(c->out[0]->dtype), 0, 0, true,
                 bits);
}

void km_vulkan_register_copy(km_kernel *table) {
    table[KM_OP_COPY] = table[KM_OP_CAST] = run_copy;
    table[KM_OP_FULL] = run_full;
}
