/* Elementwise ops: f32, f16, bf16 and some of i32 by one shader (shaders/map.comp), contiguous or
 * through strides. Other integers, comparisons and what needs sines or powers are the CPU's. */
#include "backend/vulkan/launch.h"
#include "backend/vulkan/vulkan.h"
#include <math.h>

/* The shader's number of an op, and how many operands it has; 0 operands: it is not there. */
typedef struct map_code {
    uint8_t code, operands;
} map_code;

static const map_code codes[KM_OP_COUNT] = {[KM_OP_NEG] = {0, 1},
                                            [KM_OP_ABS] = {1, 1},
                                            [KM_OP_SQRT] = {2, 1},
                                            [KM_OP_RSQRT] = {3, 1},
                                            [KM_OP_EXP] = {4, 1},
                                            [KM_OP_LOG] = {5, 1},
                                            [KM_OP_TANH] = {6, 1},
                                            [KM_OP_SIGMOID] = {7, 1},
                                            [KM_OP_RELU] = {8, 1},
                                            [KM_OP_GELU] = {9, 1},
                                            [KM_OP_GELU_ERF] = {10, 1},
                                            [KM_OP_SILU] = {11, 1},
                                            [KM_OP_CLAMP] = {12, 1},
                                            [KM_OP_ADD_SCALAR] = {13, 1},
                                            [KM_OP_MUL_SCALAR] = {14, 1},
                                            [KM_OP_ADD] = {20, 2},
                                            [KM_OP_SUB] = {21, 2},
                                            [KM_OP_MUL] = {22, 2},
                                            [KM_OP_DIV] = {23, 2},
                                            [KM_OP_MAXIMUM] = {24, 2},
                                            [KM_OP_MINIMUM] = {25, 2},
                                            [KM_OP_ABS_GRAD] = {30, 2},
                                            [KM_OP_SQRT_GRAD] = {31, 2},
                                            [KM_OP_RSQRT_GRAD] = {32, 2},
                                            [KM_OP_TANH_GRAD] = {33, 2},
                                            [KM_OP_SIGMOID_GRAD] = {34, 2},
                                            [KM_OP_RELU_GRAD] = {35, 2},
                                            [KM_OP_GELU_GRAD] = {36, 2},
                                            [KM_OP_GELU_ERF_GRAD] = {37, 2},
                                            [KM_OP_SILU_GRAD] = {38, 2},
                                            [KM_OP_CLAMP_GRAD] = {39, 2}};

typedef struct map_push {
    uint64_t a, b, o, walk;
    uint32_t n;
    float f0, f1, f0_low;
} map_push;

/* Elements from which on words of 16 bytes are worth a shader of their own. */
#define WIDE 65536

km_status km_vulkan_wide(km_lane *lane, const km_vulkan_wide_push *push, uint32_t op, km_dtype d,
                         bool two, bool raw) {
    uint32_t spec[] = {op, (uint32_t)d, two, raw};
    return km_vulkan_launch(lane, "map_wide", spec, 4, push, sizeof *push,
                            km_groups_for(km_ceil_div(push->n, 256)), (double)push->n * 32);
}

static bool has_whole(km_op op) {
    return op == KM_OP_ADD || op == KM_OP_SUB || op == KM_OP_MUL || op == KM_OP_MAXIMUM ||
           op == KM_OP_MINIMUM || op == KM_OP_NEG || op == KM_OP_ABS;
}

static km_status run_map(km_ctx *ctx, const km_call *c) {
    const km_tensor *t[KM_ITER_MAX] = {c->out[0], c->in[0], c->in[1]};
    const map_code code = codes[c->op];
    km_lane *lane = km_vulkan_lane(c);
    km_dtype d = c->in[0]->dtype;
    double f0 = c->p->f[KM_F_LO], f1 = c->p->f[KM_F_HI];
    km_iter it;
    (void)ctx;
    bool narrow = d == KM_F16 || d == KM_BF16;
    if (!narrow && d != KM_F32 && !(d == KM_I32 && has_whole(c->op))) return KM_ERR_UNSUPPORTED;
    for (int k = 1; k <= code.operands; k++)
        if (t[k]->dtype != d) return KM_ERR_UNSUPPORTED;
    km_iter_init(&it, code.operands + 1, t);
    if (it.rows == 0) return KM_OK;
    /* Words of two elements: the result begins with one. */
    if (narrow && (!km_is_contiguous(c->out[0]) || (uintptr_t)it.base[0] % 4))
        return KM_ERR_UNSUPPORTED;
    if (c->op == KM_OP_CLAMP_GRAD) { /* the floats inside [lo, hi]: comparing them is exact */
        float lo = (float)f0, hi = (float)f1;
        f0 = (double)lo < f0 ? (double)nextafterf(lo, INFINITY) : (double)lo;
        f1 = (double)hi > f1 ? (double)nextafterf(hi, -INFINITY) : (double)hi;
    }
    bool flat = km_vulkan_flat(&it);
    km_vulkan_walk walk;
    if (!km_vulkan_walk_make(&walk, &it)) return KM_ERR_UNSUPPORTED;
    map_push push = {.a = (uintptr_t)it.base[1],
                     .b = (uintptr_t)it.base[code.operands],
                     .o = (uintptr_t)it.base[0],
                     .f0 = (float)f0,
                     .f1 = (float)f1,
                     .f0_low = isfinite(f0) && isfinite((float)f0) ? (float)(f0 - (float)f0) : 0};
    push.n = walk.n;
    if (flat && d != KM_I32 && push.n >= WIDE && (push.a | push.b | push.o) % 16 == 0) {
        uint32_t each = narrow ? 8 : 4, done = push.n / each * each;
        km_vulkan_wide_push wide = {push.a,  push.b,  push.o,     push.n / each,
                                    push.f0, push.f1, push.f0_low};
        km_status s = km_vulkan_wide(lane, &wide, code.code, d, code.operands == 2, false);
        push.n -= done;
        if (s != KM_OK || push.n == 0) return s;
        push.a += done * km_dtype_size(d);
        push.b += done * km_dtype_size(d);
        push.o += done * km_dtype_size(d);
        km_vulkan_beside(lane);
    }
    if (!flat && !(push.walk = km_vulkan_words(lane, &walk, sizeof walk)))
        return lane->ctx->error.code;
    uint32_t spec[] = {code.code, (uint32_t)d, flat, code.operands == 2};
    int64_t threads = narrow ? km_ceil_div(push.n, 2) : push.n;
    return km_vulkan_launch(lane, "map", spec, 4, &push, sizeof push,
                            km_groups_for(km_ceil_div(threads, KM_VULKAN_THREADS)),
                            (double)push.n * 8);
}

void km_vulkan_register_elementwise(km_kernel *table) {
    for (int op = 0; op < KM_OP_COUNT; op++)
        if (codes[op].operands) table[op] = run_map;
}
