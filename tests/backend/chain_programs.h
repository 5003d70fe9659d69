/* Random programs of elementwise ops, the same for every device: tensors come and go in scopes, are
 * kept, released, changed in place, and their memory is used again. What a program leaves behind is
 * compared between devices and settings. */
#ifndef KM_TESTS_BACKEND_CHAIN_PROGRAMS_H
#define KM_TESTS_BACKEND_CHAIN_PROGRAMS_H
#include "ops/op.h"
#include <stdlib.h>
#include <string.h>

#define PROGRAM_HELD 5

typedef struct program {
    uint32_t state;                /* of the random numbers */
    bool wild;                     /* with ops that make infinities, NaN and huge numbers */
    km_tensor *held[PROGRAM_HELD]; /* kept */
} program;

static uint32_t program_pick(program *p, uint32_t below) {
    p->state = p->state * 1664525u + 1013904223u;
    return (p->state >> 8) % below;
}

static km_tensor *program_op(km_ctx *ctx, program *p, km_tensor *a, km_tensor *b) {
    switch (program_pick(p, p->wild ? 22 : 16)) {
    case 0: return km_clamp(ctx, km_add(ctx, a, b), -3, 3);
    case 1: return km_clamp(ctx, km_sub(ctx, a, b), -2.5, 3);
    case 2: return km_mul(ctx, km_tanh(ctx, a), b);
    case 3: return km_maximum(ctx, a, b);
    case 4: return km_minimum(ctx, a, b);
    case 5: return km_neg(ctx, a);
    case 6: return km_abs(ctx, a);
    case 7: return km_relu(ctx, a);
    case 8: return km_gelu(ctx, a);
    case 9: return km_silu(ctx, a);
    case 10: return km_sigmoid(ctx, a);
    case 11: return km_tanh(ctx, a);
    case 12: return km_gelu_erf(ctx, a);
    case 13: return km_add_scalar(ctx, a, 0.1 * program_pick(p, 9) - 0.4);
    case 14: return km_mul_scalar(ctx, a, 0.3 * program_pick(p, 7) - 0.9);
    case 15: return km_clamp(ctx, a, -1, 1.5);
    case 16: return km_exp(ctx, a);
    case 17: return km_div(ctx, a, b);
    case 18: return km_sqrt(ctx, km_abs(ctx, a));
    case 19: return km_rsqrt(ctx, a);
    case 20: return km_log(ctx, a);
    default: return km_mul(ctx, a, b);
    }
}

/* A few ops in a scope of their own; one of their results takes the place of a held tensor. */
static void program_block(km_ctx *ctx, program *p) {
    km_tensor *made[10];
    int n = 1 + (int)program_pick(p, 9);
    km_scope_begin(ctx);
    for (int i = 0; i < n; i++) {
        km_tensor *operand[2];
        for (int k = 0; k < 2; k++) {
            uint32_t old = program_pick(p, 3), at = program_pick(p, PROGRAM_HELD);
            bool newest = program_pick(p, 4) > 0;
            operand[k] = i == 0 || old == 0 ? p->held[at] : made[newest ? i - 1 : (int)at % i];
        }
        made[i] = program_op(ctx, p, operand[0], operand[1]);
    }
    int result = program_pick(p, 4) ? n - 1 : (int)program_pick(p, (uint32_t)n);
    km_tensor *kept = km_keep(ctx, km_scope_end(ctx, made[result]));
    int at = (int)program_pick(p, PROGRAM_HELD);
    km_release(p->held[at]);
    p->held[at] = kept;
}

/* held[i] += held[j], where it lies */
static void program_in_place(km_ctx *ctx, program *p) {
    km_tensor *x = p->held[program_pick(p, PROGRAM_HELD)];
    km_tensor *in[2] = {x, p->held[program_pick(p, PROGRAM_HELD)]};
    static const km_op ops[] = {KM_OP_ADD, KM_OP_SUB, KM_OP_MAXIMUM};
    km_apply_into(ctx, ops[program_pick(p, 3)], in, 2, NULL, x);
}

static void program_start(km_ctx *ctx, program *p, uint32_t seed, bool wild, km_dtype dtype,
                          int64_t n) {
    float *v = malloc((size_t)n * sizeof *v);
    *p = (program){.state = seed, .wild = wild};
    for (int k = 0; k < PROGRAM_HELD; k++) {
        for (int64_t i = 0; i < n; i++) v[i] = (float)program_pick(p, 1 << 16) * 0x1p-14f - 2.0f;
        p->held[k] = km_keep(ctx, km_cast(ctx, km_from_data(ctx, KM_F32, KM_SHAPE(n), v), dtype));
    }
    free(v);
}

static void program_run(km_ctx *ctx, program *p, int blocks) {
    for (int i = 0; i < blocks; i++) {
        program_block(ctx, p);
        if (program_pick(p, 4) == 0) program_in_place(ctx, p);
        if (program_pick(p, 8) == 0) km_step_end(ctx);
    }
}

/* What is held, one after the other: PROGRAM_HELD times n elements. */
static void *program_end(km_ctx *ctx, program *p, size_t *bytes) {
    size_t each = (size_t)km_tensor_count(p->held[0]) * km_dtype_size(km_tensor_dtype(p->held[0]));
    char *all = malloc(each * PROGRAM_HELD);
    for (int k = 0; k < PROGRAM_HELD; k++) {
        km_read(ctx, p->held[k], all + each * (size_t)k, each);
        km_release(p->held[k]);
    }
    *bytes = each * PROGRAM_HELD;
    return all;
}

#endif
