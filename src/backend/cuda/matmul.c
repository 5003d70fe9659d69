/* Matrix products of tensors: batch axes are merged as far as their strides allow, what is left
 * over is a loop of products. */
#include "backend/compose.h"
#include "backend/cuda/cuda.h"
#include "backend/cuda/gemm.h"

typedef struct batch_axis {
    int64_t size, a, b, out; /* strides */
} batch_axis;

/* Batch axes of more than one entry, outermost first, neighbours merged where all three operands
 * step through them evenly. Returns how many are left. */
static int merge_axes(const km_tensor *a, const km_tensor *b, const km_tensor *out,
                      batch_axis axis[KM_MAX_DIMS]) {
    int n = 0;
    for (int i = 0; i < out->shape.ndim - 2; i++) {
        batch_axis x = {out->shape.dim[i], a->shape.dim[i] > 1 ? a->stride[i] : 0,
                        b->shape.dim[i] > 1 ? b->stride[i] : 0, out->stride[i]};
        if (x.size == 1) continue;
        batch_axis *last = n > 0 ? &axis[n - 1] : NULL;
        if (last && last->a == x.a * x.size && last->b == x.b * x.size &&
            last->out == x.out * x.size) {
            x.size *= last->size;
            *last = x;
        } else {
            axis[n++] = x;
        }
    }
    return n;
}

static km_status each_batch(km_lane *lane, km_cuda_gemm *g, const batch_axis *axis, int n,
                            size_t size) {
    if (n == 0) return km_cuda_gemm_run(lane, g);
    km_cuda_gemm one = *g;
    for (int64_t i = 0; i < axis->size; i++) {
        km_status s = each_batch(lane, &one, axis + 1, n - 1, size);
        /* Declined with nothing done only if the first one was. */
        if (s != KM_OK)
            return i == 0 || s != KM_ERR_UNSUPPORTED
                       ? s
                       : km_fail(lane->ctx, KM_ERR_GPU, "matmul: declined half-way");
        one.a = (const char *)one.a + axis->a * (int64_t)size;
        one.b = (const char *)one.b + axis->b * (int64_t)size;
        one.out = (char *)one.out + axis->out * (int64_t)size;
    }
    return KM_OK;
}

/* a (batch..., m, k), b (batch..., k, n) -> out (batch..., m, n) = alpha a b + beta out */
static km_status matmul(km_ctx *ctx, const km_call *c) {
    const km_tensor *a = c->in[0], *b = c->in[1], *out = c->out[0];
    int row = out->shape.ndim - 2, col = row + 1;
    batch_axis axis[KM_MAX_DIMS];
    km_cuda_gemm g = {.dtype = out->dtype,
                      .m = out->shape.dim[row],
                      .n = out->shape.dim[col],
                      .k = a->shape.dim[col],
                      .alpha = c->p->f[KM_F_ALPHA],
                      .beta = c->p->f[KM_F_BETA],
                      .batch = 1};
    if (km_shape_count(out->shape) == 0) return KM_OK;
    if (out->stride[col] != 1 && g.n > 1) return KM_ERR_UNSUPPORTED;
    g.ldo = g.m > 1 ? out->stride[row] : (g.n + 7) / 8 * 8;
    g.out = km_tensor_ptr(out);
    g.a = km_tensor_ptr(a);
    g.b = km_tensor_ptr(b);
    km_cuda_gemm_matrix(g.m, g.k, a->stride[row], a->stride[col], &g.turn_a, &g.lda);
    km_cuda_gemm_matrix(g.k, g.n, b->stride[row], b->stride[col], &g.turn_b, &g.ldb);

    int n = merge_axes(a, b, out, axis);
    if (n > 0) {
        batch_axis last = axis[--n];
        /* One b for all: the rows of a are those of one taller matrix, if they are evenly apart. */
        if (last.b == 0 && !g.turn_a && g.m == 1 && last.a >= g.k && last.out >= g.n) {
            g.m = last.size;
            g.lda = last.a > 0 ? last.a : 8;
            g.ldo = last.out;
        } else if (last.b == 0 && !g.turn_a && g.m > 1 && last.a == g.m * g.lda &&
                   last.out == g.m * g.ldo) {
            g.m *= last.size;
        } else {
            g.batch = last.size;
            g.batch_a = last.a, g.batch_b = last.b, g.batch_o = last.out;
        }
    }
    return each_batch(km_cuda_lane(c), &g, axis, n, km_dtype_size(out->dtype));
}

void km_cuda_register_matmul(km_kernel *table) {
    table[KM_OP_MATMUL] = matmul;
    table[KM_OP_LINEAR] = km_cuda_linear;
    table[KM_OP_LINEAR_DX] = km_cuda_linear_dx;
    table[KM_OP_LINEAR_DW] = km_compose_linear_dw;
}
