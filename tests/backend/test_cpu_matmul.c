/* The MATMUL and LINEAR kernels of the CPU backend, called as ops call them: batches that
 * broadcast, strides, alpha and beta, fused activations, and calls they must decline. */
#include "cpu_product.h"
#include "backend/cpu/cpu.h"
#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

static km_kernel kernel[KM_OP_COUNT];
static km_ctx ctx;

static int set_up(void **state) {
    (void)state;
    km_cpu_register_matmul(kernel);
    ctx.threads = km_threads_new(3);
    return ctx.threads ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    km_threads_free(ctx.threads);
    km_free_aligned(ctx.scratch, ctx.scratch_bytes);
    return 0;
}

/* A tensor over memory of its own. */
typedef struct box {
    km_tensor t;
    km_storage storage;
} box;

static int64_t count_of(km_shape s) {
    int64_t n = 1;
    for (int i = 0; i < s.ndim; i++) n *= s.dim[i];
    return n;
}

/* Row-major; with `turned`, the last two axes lie the other way round. */
static void make(box *x, km_dtype d, km_shape s, bool turned, uint32_t seed) {
    int64_t n = count_of(s), step = 1;
    *x = (box){.t = {.dtype = d, .shape = s}};
    for (int i = s.ndim - 1; i >= 0; i--) {
        x->t.stride[i] = step;
        step *= s.dim[i];
    }
    if (turned) {
        x->t.stride[s.ndim - 2] = 1;
        x->t.stride[s.ndim - 1] = s.dim[s.ndim - 2];
    }
    x->storage.data = n ? cp_new(d, n, seed) : NULL;
    x->t.storage = &x->storage;
}

static void drop(box *x) { free(x->storage.data); }

static double at(const box *x, const int64_t *i) {
    int64_t pos = x->t.offset;
    for (int d = 0; d < x->t.shape.ndim; d++)
        if (x->t.shape.dim[d] > 1) pos += i[d] * x->t.stride[d];
    return cp_get(x->storage.data, x->t.dtype, pos);
}

static km_status run(km_op op, const km_params *p, box **in, int n_in, box **out, int n_out) {
    km_tensor *i[4], *o[2];
    for (int j = 0; j < n_in; j++) i[j] = in[j] ? &in[j]->t : NULL;
    for (int j = 0; j < n_out; j++) o[j] = &out[j]->t;
    km_call c = {.op = op, .n_in = n_in, .n_out = n_out, .in = i, .out = o, .p = p};
    return kernel[op](&ctx, &c);
}

static void check_matmul(const box *a, const box *b, const box *c, const box *old, double alpha,
                         double beta) {
    km_shape s = c->t.shape;
    int d = s.ndim;
    int64_t k = a->t.shape.dim[d - 1], i[KM_MAX_DIMS];
    for (int64_t e = 0; e < count_of(s); e++) {
        int64_t rest = e;
        for (int j = d - 1; j >= 0; j--) {
            i[j] = rest % s.dim[j];
            rest /= s.dim[j];
        }
        double sum = 0;
        for (int64_t p = 0; p < k; p++) {
            int64_t ia[KM_MAX_DIMS], ib[KM_MAX_DIMS];
            memcpy(ia, i, sizeof ia);
            memcpy(ib, i, sizeof ib);
            ia[d - 1] = ib[d - 2] = p;
            sum += at(a, ia) * at(b, ib);
        }
        sum *= alpha;
        if (beta != 0) sum += beta * at(old, i);
        double got = at(c, i);
        assert_true(fabs(got - sum) <= 3e-7 * ((double)k + 2) + cp_rounding(c->t.dtype, sum));
    }
}

typedef struct batch_case {
    km_shape a, b, c;
} batch_case;

static void batches_broadcast_and_strides_are_followed(void **state) {
    (void)state;
    static const batch_case cases[] = {
        {{2, {17, 33}}, {2, {33, 65}}, {2, {17, 65}}},
        {{3, {5, 17, 9}}, {3, {5, 9, 31}}, {3, {5, 17, 31}}},
        {{3, {1, 17, 9}}, {3, {4, 9, 31}}, {3, {4, 17, 31}}},
        {{3, {7, 6, 9}}, {3, {1, 9, 31}}, {3, {7, 6, 31}}}, /* folds into one product */
        {{3, {7, 1, 9}}, {3, {1, 9, 31}}, {3, {7, 1, 31}}},
        {{4, {2, 3, 8, 16}}, {4, {2, 1, 16, 8}}, {4, {2, 3, 8, 8}}},
        {{4, {2, 1, 8, 5}}, {4, {1, 3, 5, 7}}, {4, {2, 3, 8, 7}}},
        {{5, {2, 1, 3, 6, 4}}, {5, {1, 2, 3, 4, 10}}, {5, {2, 2, 3, 6, 10}}},
        {{5, {2, 2, 3, 6, 4}}, {5, {1, 1, 1, 4, 10}}, {5, {2, 2, 3, 6, 10}}},
        {{3, {40, 1, 12}}, {3, {40, 12, 1}}, {3, {40, 1, 1}}}, /* many dot products */
        {{2, {1, 129}}, {2, {129, 1}}, {2, {1, 1}}},
        {{2, {129, 1}}, {2, {1, 129}}, {2, {129, 129}}},
        {{3, {0, 3, 4}}, {3, {1, 4, 5}}, {3, {0, 3, 5}}},
        {{2, {3, 0}}, {2, {0, 5}}, {2, {3, 5}}},
        {{2, {0, 4}}, {2, {4, 5}}, {2, {0, 5}}},
    };
    for (int way = 0; way < CP_WAYS; way++) {
        if (!cp_choose(way)) continue;
        for (int i = 0; i < (int)(sizeof cases / sizeof *cases) * 12; i++) {
            const batch_case *s = &cases[i / 12];
            km_dtype d = cp_dtypes[i / 4 % 3];
            box a, b, c, old;
            make(&a, d, s->a, i & 1, 1);
            make(&b, d, s->b, i & 2, 2);
            make(&c, d, s->c, false, 3);
            make(&old, d, s->c, false, 3);
            km_params p = {.f = {i % 5 == 0 ? 2 : 1, i % 3 == 0 ? 0.5 : 0}};
            assert_int_equal(run(KM_OP_MATMUL, &p, (box *[]){&a, &b}, 2, (box *[]){&c}, 1), KM_OK);
            check_matmul(&a, &b, &c, &old, p.f[0], p.f[1]);
            drop(&a), drop(&b), drop(&c), drop(&old);
        }
    }
}

static void slices_of_larger_matrices_are_multiplied_in_place(void **state) {
    (void)state;
    for (int way = 0; way < CP_WAYS; way++) {
        if (!cp_choose(way)) continue;
        box a, b, c;
        make(&a, KM_F32, KM_SHAPE(3, 40, 50), false, 1);
        make(&b, KM_F32, KM_SHAPE(3, 60, 70), true, 2);
        make(&c, KM_F32, KM_SHAPE(3, 20, 30), false, 3);
        a.t.shape = KM_SHAPE(3, 20, 25);
        a.t.offset = 50 * 7 + 9;
        b.t.shape = KM_SHAPE(3, 25, 30);
        b.t.offset = 60 * 11 + 13;
        km_params p = {.f = {1, 0}};
        assert_int_equal(run(KM_OP_MATMUL, &p, (box *[]){&a, &b}, 2, (box *[]){&c}, 1), KM_OK);
        check_matmul(&a, &b, &c, &c, 1, 0);
        drop(&a), drop(&b), drop(&c);
    }
}

static void one_row_or_column_may_have_any_stride(void **state) {
    (void)state;
    for (int way = 0; way < CP_WAYS; way++) {
        if (!cp_choose(way)) continue;
        for (int i = 0; i < 3; i++) {
            box a, b, c;
            make(&a, KM_F32, KM_SHAPE(50, 7), false, 1);
            make(&b, KM_F32, KM_SHAPE(7, 50), false, 2);
            make(&c, KM_F32, KM_SHAPE(50, 50), false, 3);
            a.t.shape = KM_SHAPE(50, 1); /* a column of a wider matrix times a row of every third */
            a.t.stride[1] = i == 0 ? 0 : 999;
            b.t.shape = KM_SHAPE(1, 16);
            b.t.stride[0] = i == 0 ? 0 : 3;
            b.t.stride[1] = 3;
            c.t.shape = KM_SHAPE(50, 16);
            c.t.stride[0] = 16;
            km_params p = {.f = {1, 0}};
            assert_int_equal(run(KM_OP_MATMUL, &p, (box *[]){&a, &b}, 2, (box *[]){&c}, 1), KM_OK);
            check_matmul(&a, &b, &c, &c, 1, 0);
            drop(&a), drop(&b), drop(&c);
        }
    }
}

static double activation(km_act act, double x) {
    switch (act) {
    case KM_ACT_RELU: return x > 0 ? x : 0;
    case KM_ACT_GELU:
        return 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
    case KM_ACT_GELU_ERF: return 0.5 * x * erfc(-x * 0.70710678118654752440);
    case KM_ACT_SILU: return x / (1 + exp(-x));
    default: return x;
    }
}

static void linear_adds_its_bias_and_applies_its_activation(void **state) {
    (void)state;
    static const int64_t rows[] = {1, 3, 33, 300}, ins[] = {1, 31, 64}, outs[] = {1, 2, 65};
    for (int way = 0; way < CP_WAYS; way++) {
        if (!cp_choose(way)) continue;
        for (int i = 0; i < 4 * 3 * 3 * 5; i++) {
            int64_t m = rows[i % 4], k = ins[i / 4 % 3], n = outs[i / 12 % 3];
            km_dtype d = cp_dtypes[i % 3];
            box x, w, bias, y, pre;
            make(&x, d, KM_SHAPE(m, k), i % 7 == 0, 1);
            make(&w, d, KM_SHAPE(n, k), i % 5 == 0, 2);
            make(&bias, d, KM_SHAPE(n), false, 3);
            make(&y, d, KM_SHAPE(m, n), false, 4);
            make(&pre, d, KM_SHAPE(m, n), false, 5);
            km_params p = {.act = (km_act)(i / 36)};
            bool with_bias = i % 3 != 0, with_pre = i % 2;
            assert_int_equal(run(KM_OP_LINEAR, &p, (box *[]){&x, &w, with_bias ? &bias : NULL}, 3,
                                 (box *[]){&y, &pre}, with_pre ? 2 : 1),
                             KM_OK);
            for (int64_t r = 0; r < m; r++) {
                for (int64_t o = 0; o < n; o++) {
                    double sum = with_bias ? at(&bias, &o) : 0;
                    for (int64_t j = 0; j < k; j++)
                        sum += at(&x, (int64_t[]){r, j}) * at(&w, (int64_t[]){o, j});
                    double want = activation(p.act, sum), slack = 4e-7 * ((double)k + 2);
                    assert_true(fabs(at(&y, (int64_t[]){r, o}) - want) <=
                                slack + cp_rounding(d, want));
                    if (with_pre)
                        assert_true(fabs(at(&pre, (int64_t[]){r, o}) - sum) <=
                                    slack + cp_rounding(d, sum));
                }
            }
            drop(&x), drop(&w), drop(&bias), drop(&y), drop(&pre);
        }
    }
}

/* f(x) as a central difference. */
static double slope(km_act act, double x) {
    double h = 1e-5;
    return (activation(act, x + h) - activation(act, x - h)) / (2 * h);
}

static void check_dx(const box *dy, const box *w, const box *pre, const box *dx, const box *sums,
                     km_act act) {
    int64_t rows = dx->t.shape.dim[0], n = dx->t.shape.dim[1], k = w->t.shape.dim[0];
    for (int64_t j = 0; j < n; j++) {
        double total = 0, size = 0;
        for (int64_t i = 0; i < rows; i++) {
            double sum = 0;
            for (int64_t p = 0; p < k; p++)
                sum += at(dy, (int64_t[]){i, p}) * at(w, (int64_t[]){p, j});
            sum *= slope(act, at(pre, (int64_t[]){i, j}));
            total += sum;
            size += fabs(sum);
            assert_true(fabs(at(dx, (int64_t[]){i, j}) - sum) <=
                        4e-7 * ((double)k + 2) + cp_rounding(dx->t.dtype, sum));
        }
        double slack = 4e-7 * ((double)(k * rows) + 2) + 2 * cp_rounding(sums->t.dtype, size);
        assert_true(fabs(at(sums, &j) - total) <= slack);
    }
}

static void check_dw(const box *dy, const box *x, const box *dw, const box *sums) {
    int64_t k = x->t.shape.dim[0], m = dw->t.shape.dim[0], n = dw->t.shape.dim[1];
    for (int64_t i = 0; i < m; i++) {
        double total = 0;
        for (int64_t p = 0; p < k; p++) total += at(dy, (int64_t[]){p, i});
        assert_true(fabs(at(sums, &i) - total) <=
                    2e-7 * ((double)k + 2) + cp_rounding(sums->t.dtype, total));
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t p = 0; p < k; p++)
                sum += at(dy, (int64_t[]){p, i}) * at(x, (int64_t[]){p, j});
            assert_true(fabs(at(dw, (int64_t[]){i, j}) - sum) <=
                        3e-7 * ((double)k + 2) + cp_rounding(dw->t.dtype, sum));
        }
    }
}

static void linear_gives_its_gradients_with_the_sums_of_columns(void **state) {
    (void)state;
    static const struct {
        int64_t rows, in, out;
    } sizes[] = {{20, 70, 33}, {97, 64, 17}, {257, 131, 40}, {800, 24, 24}};
    for (int isa = 0; isa < KM_ISA_COUNT; isa++) {
        if (!cp_choose(isa)) continue;
        for (int i = 0; i < 4 * 3; i++) {
            int64_t rows = sizes[i / 3].rows, in = sizes[i / 3].in, out = sizes[i / 3].out;
            km_act act = (km_act)(KM_ACT_GELU + i % 3);
            box dy, w, x, dx, dw, db, sums;
            make(&dy, KM_F32, KM_SHAPE(rows, out), false, 1);
            make(&w, KM_F32, KM_SHAPE(out, in), false, 2);
            make(&x, KM_F32, KM_SHAPE(rows, in), false, 3);
            make(&dx, KM_F32, KM_SHAPE(rows, in), false, 4);
            make(&dw, KM_F32, KM_SHAPE(out, in), false, 5);
            make(&db, KM_F32, KM_SHAPE(out), false, 6);
            make(&sums, KM_F32, KM_SHAPE(in), false, 7);
            km_params p = {.act = act, .n = {1}};
            assert_int_equal(
                run(KM_OP_LINEAR_DX, &p, (box *[]){&dy, &w, &x}, 3, (box *[]){&dx, &sums}, 2),
                KM_OK);
            check_dx(&dy, &w, &x, &dx, &sums, act);
            assert_int_equal(
                run(KM_OP_LINEAR_DW, &p, (box *[]){&dy, &x}, 2, (box *[]){&dw, &db}, 2), KM_OK);
            check_dw(&dy, &x, &dw, &db);
            drop(&dy), drop(&w), drop(&x), drop(&dx), drop(&dw), drop(&db), drop(&sums);
        }
    }
}

/* All results of a layer of (rows, in) -> out and of its gradients, with so many threads. */
static void layer_bits(int threads, int64_t rows, int64_t in, int64_t out, box result[6]) {
    km_threads *pool = ctx.threads;
    ctx.threads = km_threads_new(threads);
    assert_non_null(ctx.threads);
    box x, w, bias, dh;
    make(&x, KM_F32, KM_SHAPE(rows, in), false, 1);
    make(&w, KM_F32, KM_SHAPE(out, in), false, 2);
    make(&bias, KM_F32, KM_SHAPE(out), false, 3);
    make(&dh, KM_F32, KM_SHAPE(rows, out), false, 4);
    km_shape shape[] = {KM_SHAPE(rows, out), KM_SHAPE(rows, out), KM_SHAPE(rows, in),
                        KM_SHAPE(in),        KM_SHAPE(out, in),   KM_SHAPE(out)};
    for (int i = 0; i < 6; i++) make(&result[i], KM_F32, shape[i], false, 5);
    km_params p = {.act = KM_ACT_GELU, .n = {1}};
    box *y = &result[0], *pre = &result[1], *dx = &result[2], *sums = &result[3];
    assert_int_equal(run(KM_OP_LINEAR, &p, (box *[]){&x, &w, &bias}, 3, (box *[]){y, pre}, 2),
                     KM_OK);
    assert_int_equal(run(KM_OP_LINEAR_DX, &p, (box *[]){&dh, &w, &x}, 3, (box *[]){dx, sums}, 2),
                     KM_OK);
    assert_int_equal(
        run(KM_OP_LINEAR_DW, &p, (box *[]){&dh, &x}, 2, (box *[]){&result[4], &result[5]}, 2),
        KM_OK);
    drop(&x), drop(&w), drop(&bias), drop(&dh);
    km_threads_free(ctx.threads);
    ctx.threads = pool;
}

static void our_own_products_have_the_same_bits_with_any_number_of_threads(void **state) {
    (void)state;
    static const struct {
        int64_t rows, in, out;
    } sizes[] = {{257, 65, 130}, {400, 128, 384}, {100, 900, 70}, {390, 66, 1100}, {600, 70, 300}};
    assert_true(km_gemm_choose(km_cpu_isa(), KM_GEMM_BLAS_NEVER));
    for (int i = 0; i < 5; i++) {
        box one[6], more[6];
        layer_bits(1, sizes[i].rows, sizes[i].in, sizes[i].out, one);
        for (int threads = 2; threads <= 5; threads++) {
            layer_bits(threads, sizes[i].rows, sizes[i].in, sizes[i].out, more);
            for (int r = 0; r < 6; r++) {
                size_t bytes = 4 * (size_t)count_of(one[r].t.shape);
                assert_memory_equal(one[r].storage.data, more[r].storage.data, bytes);
                drop(&more[r]);
            }
        }
        for (int r = 0; r < 6; r++) drop(&one[r]);
    }
}

static void doubles_and_integers_are_declined(void **state) {
    (void)state;
    static const km_dtype others[] = {KM_F64, KM_I32};
    km_params p = {.f = {1, 0}};
    for (int i = 0; i < 2; i++) {
        box a, b, c;
        make(&a, KM_F32, KM_SHAPE(4, 4), false, 1);
        make(&b, KM_F32, KM_SHAPE(4, 4), false, 2);
        make(&c, KM_F32, KM_SHAPE(4, 4), false, 3);
        a.t.dtype = b.t.dtype = c.t.dtype = others[i];
        float before = ((float *)c.storage.data)[5];
        assert_int_equal(run(KM_OP_MATMUL, &p, (box *[]){&a, &b}, 2, (box *[]){&c}, 1),
                         KM_ERR_UNSUPPORTED);
        assert_int_equal(run(KM_OP_LINEAR, &p, (box *[]){&a, &b}, 2, (box *[]){&c}, 1),
                         KM_ERR_UNSUPPORTED);
        assert_true(((float *)c.storage.data)[5] == before);
        assert_int_equal(ctx.error.code, KM_OK);
        drop(&a), drop(&b), drop(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_broadcast_and_strides_are_followed),
        cmocka_unit_test(slices_of_larger_matrices_are_multiplied_in_place),
        cmocka_unit_test(one_row_or_column_may_have_any_stride),
        cmocka_unit_test(linear_adds_its_bias_and_applies_its_activation),
        cmocka_unit_test(linear_gives_its_gradients_with_the_sums_of_columns),
        cmocka_unit_test(our_own_products_have_the_same_bits_with_any_number_of_threads),
        cmocka_unit_test(doubles_and_integers_are_declined),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
