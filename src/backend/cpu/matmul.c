/* MATMUL and LINEAR as calls of the product engine. */
#include "backend/compose.h"
#include "backend/cpu/cpu.h"
#include "backend/cpu/gemm.h"

static bool computed(const km_tensor *t) {
    return !t || t->dtype == KM_F32 || t->dtype == KM_F16 || t->dtype == KM_BF16;
}

static bool all_computed(const km_call *c) {
    for (int i = 0; i < c->n_in; i++)
        if (!computed(c->in[i])) return false;
    for (int i = 0; i < c->n_out; i++)
        if (c->out[i]->dtype != c->out[0]->dtype || !computed(c->out[i])) return false;
    return true;
}

/* The last two axes of t, or those two exchanged. */
static km_mat matrix_of(const km_tensor *t) {
    int d = t->shape.ndim;
    return (km_mat){km_tensor_ptr(t), t->dtype, t->stride[d - 2], t->stride[d - 1]};
}

static km_mat transpose_of(const km_tensor *t) {
    int d = t->shape.ndim;
    return (km_mat){km_tensor_ptr(t), t->dtype, t->stride[d - 1], t->stride[d - 2]};
}

static km_status matmul(km_ctx *ctx, const km_call *c) {
    if (!all_computed(c)) return KM_ERR_UNSUPPORTED;
    const km_tensor *a = c->in[0], *b = c->in[1], *out = c->out[0];
    int d = out->shape.ndim;
    km_gemm g = {
        .m = out->shape.dim[d - 2],
        .n = out->shape.dim[d - 1],
        .k = a->shape.dim[d - 1],
        .a = matrix_of(a),
        .b = matrix_of(b),
        .c = km_tensor_ptr(out),
        .ldc = out->shape.dim[d - 1],
        .alpha = (float)c->p->f[KM_F_ALPHA],
        .end = {.beta = (float)c->p->f[KM_F_BETA], .dtype = out->dtype},
        .batch_dims = d - 2,
    };
    for (int i = 0; i < d - 2; i++) {
        g.batch[i] = out->shape.dim[i];
        g.a_step[i] = a->shape.dim[i] == 1 ? 0 : a->stride[i];
        g.b_step[i] = b->shape.dim[i] == 1 ? 0 : b->stride[i];
        g.c_step[i] = out->stride[i];
    }
    if (g.alpha == 0) g.k = 0;
    return km_gemm_run(ctx, &g);
}

static km_status linear(km_ctx *ctx, const km_call *c) {
    if (!all_computed(c)) return KM_ERR_UNSUPPORTED;
    const km_tensor *x = c->in[0], *w = c->in[1], *bias = c->n_in > 2 ? c->in[2] : NULL;
    const km_tensor *y = c->out[0];
    if (bias && bias->dtype != y->dtype) return KM_ERR_UNSUPPORTED;
    km_gemm g = {
        .m = y->shape.dim[0],
        .n = y->shape.dim[1],
        .k = x->shape.dim[1],
        .a = matrix_of(x),
        .b = transpose_of(w),
        .c = km_tensor_ptr(y),
        .pre = c->n_out > 1 ? km_tensor_ptr(c->out[1]) : NULL,
        .ldc = y->shape.dim[1],
        .alpha = 1,
        .end = {.bias = bias ? km_tensor_ptr(bias) : NULL, .act = c->p->act, .dtype = y->dtype},
    };
    return km_gemm_run(ctx, &g);
}

/* The gradients of LINEAR, whole where one product can do all. */

static bool f32_call(const km_call *c) {
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i] && c->in[i]->dtype != KM_F32) return false;
    return true;
}

static km_status linear_dx(km_ctx *ctx, const km_call *c) {
    const km_tensor *dy = c->in[0], *w = c->in[1], *pre = c->n_in > 2 ? c->in[2] : NULL;
    const km_tensor *dx = c->out[0];
    km_gemm g = {
        .m = dx->shape.dim[0],
        .n = dx->shape.dim[1],
        .k = w->shape.dim[0],
        .a = matrix_of(dy),
        .b = matrix_of(w),
        .c = km_tensor_ptr(dx),
        .ldc = dx->shape.dim[1],
        .alpha = 1,
        .end = {.act = c->p->act, .dtype = dx->dtype},
        .slope = pre ? km_tensor_ptr(pre) : NULL,
        .col_sums = c->n_out > 1 ? km_tensor_ptr(c->out[1]) : NULL,
    };
    bool whole = f32_call(c) && pre && c->p->act != KM_ACT_NONE && km_gemm_sums(&g);
    return whole ? km_gemm_run(ctx, &g) : km_compose_linear_dx(ctx, c);
}

static km_status linear_dw(km_ctx *ctx, const km_call *c) {
    const km_tensor *dy = c->in[0], *x = c->in[1], *dw = c->out[0];
    km_gemm g = {
        .m = dw->shape.dim[0],
        .n = dw->shape.dim[1],
        .k = x->shape.dim[0],
        .a = transpose_of(dy),
        .b = matrix_of(x),
        .c = km_tensor_ptr(dw),
        .ldc = dw->shape.dim[1],
        .alpha = 1,
        .end = {.dtype = dw->dtype},
        .row_sums = c->n_out > 1 ? km_tensor_ptr(c->out[1]) : NULL,
    };
    bool whole = f32_call(c) && g.row_sums && km_gemm_sums(&g);
    return whole ? km_gemm_run(ctx, &g) : km_compose_linear_dw(ctx, c);
}

void km_cpu_register_matmul(km_kernel *k) {
    k[KM_OP_MATMUL] = matmul;
    k[KM_OP_LINEAR] = linear;
    k[KM_OP_LINEAR_DX] = linear_dx;
    k[KM_OP_LINEAR_DW] = linear_dw;
}
