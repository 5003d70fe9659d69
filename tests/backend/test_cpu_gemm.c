/* The product engine against sums in double: every instruction set and OpenBLAS, every dtype and
 * layout, odd sizes, and the ends of what it fuses. */
#include "cpu_product.h"
#include <stdarg.h>
#include <setjmp.h>
#include <stdio.h>
#include <cmocka.h>

static km_ctx one, three; /* by their number of threads */

static int set_up(void **state) {
    (void)state;
    one.threads = km_threads_new(1);
    three.threads = km_threads_new(3);
    return one.threads && three.threads ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    km_ctx *all[] = {&one, &three};
    for (int i = 0; i < 2; i++) {
        km_threads_free(all[i]->threads);
        km_free_aligned(all[i]->scratch, all[i]->scratch_bytes);
    }
    return km_gemm_choose(km_cpu_isa(), KM_GEMM_BLAS_AUTO) ? 0 : -1;
}

/* A product to test, and how its operands lie. */
typedef struct problem {
    int64_t m, n, k;
    bool ta, tb; /* columns are contiguous, not rows */
    int64_t pad; /* elements between rows (or columns) */
    km_dtype a, b, c;
    double alpha, beta;
    bool bias, pre;
    km_act act;
} problem;

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

static void check(km_ctx *ctx, const problem *t) {
    int64_t lda = (t->ta ? t->m : t->k) + t->pad, ldb = (t->tb ? t->k : t->n) + t->pad;
    int64_t ldc = t->n + t->pad;
    int64_t size_a = lda * (t->ta ? t->k : t->m), size_b = ldb * (t->tb ? t->n : t->k);
    void *a = cp_new(t->a, size_a, 1), *b = cp_new(t->b, size_b, 2);
    void *c = cp_new(t->c, t->m * ldc, 3), *old = cp_new(t->c, t->m * ldc, 3);
    void *pre = t->pre ? cp_new(t->c, t->m * ldc, 4) : NULL;
    void *bias = t->bias ? cp_new(t->c, t->n, 5) : NULL;
    km_gemm g = {
        .m = t->m,
        .n = t->n,
        .k = t->k,
        .a = {a, t->a, t->ta ? 1 : lda, t->ta ? lda : 1},
        .b = {b, t->b, t->tb ? 1 : ldb, t->tb ? ldb : 1},
        .c = c,
        .pre = pre,
        .ldc = ldc,
        .alpha = (float)t->alpha,
        .end = {.beta = (float)t->beta, .bias = bias, .act = t->act, .dtype = t->c},
    };
    assert_int_equal(km_gemm_run(ctx, &g), KM_OK);

    for (int64_t i = 0; i < t->m; i++) {
        for (int64_t j = 0; j < t->n; j++) {
            double sum = 0, size = 0;
            for (int64_t p = 0; p < t->k; p++) {
                double x = cp_get(a, t->a, i * g.a.row + p * g.a.col);
                double y = cp_get(b, t->b, p * g.b.row + j * g.b.col);
                sum += x * y;
                size += fabs(x * y);
            }
            sum *= t->alpha;
            size = fabs(size * t->alpha) + fabs(t->beta) + 1;
            if (t->beta != 0) sum += t->beta * cp_get(old, t->c, i * ldc + j);
            if (bias) sum += cp_get(bias, t->c, j);
            double want = activation(t->act, sum), got = cp_get(c, t->c, i * ldc + j);
            double slack = 3e-7 * size; /* of a sum in f32 */
            if (!(fabs(got - want) <= 1.2 * slack + cp_rounding(t->c, want)))
                fail_msg("%s, %lldx%lldx%lld ta %d tb %d: (%lld, %lld) is %.9g, not %.9g",
                         km_isa_name(km_gemm_isa()), (long long)t->m, (long long)t->n,
                         (long long)t->k, t->ta, t->tb, (long long)i, (long long)j, got, want);
            if (pre)
                assert_true(fabs(cp_get(pre, t->c, i * ldc + j) - sum) <=
                            slack + cp_rounding(t->c, sum));
        }
        for (int64_t j = t->n; j < ldc; j++) /* between the rows nothing changes */
            assert_true(cp_get(c, t->c, i * ldc + j) == cp_get(old, t->c, i * ldc + j));
    }
    free(a), free(b), free(c), free(old), free(pre), free(bias);
}

static const int64_t odd[] = {1, 2, 3, 5, 17, 31, 33, 64, 65, 127, 129};
#define ODD (int)(sizeof odd / sizeof *odd)

static void products_of_odd_sizes_match_sums_in_double(void **state) {
    (void)state;
    for (int way = 0; way < CP_WAYS; way++) {
        if (!cp_choose(way)) continue;
        /* All pairs of (m, n), with k and the layout running along. */
        for (int i = 0; i < ODD * ODD; i++) {
            problem t = {.m = odd[i % ODD],
                         .n = odd[i / ODD],
                         .k = odd[(i * 7 + way) % ODD],
                         .ta = i & 1,
                         .tb = i >> 1 & 1,
                         .pad = i % 3,
                         .alpha = 1};
            t.a = t.b = t.c = cp_dtypes[i % CP_DTYPES];
            check(i % 2 ? &one : &three, &t);
        }
    }
}

static void each_layout_and_dtype_gives_the_same_product(void **state) {
    (void)state;
    for (int way = 0; way < CP_WAYS; way++) {
        if (!cp_choose(way)) continue;
        for (int i = 0; i < 4 * CP_DTYPES; i++) {
            problem t = {.m = 37,
                         .n = 131,
                         .k = 70,
                         .ta = i & 1,
                         .tb = i >> 1 & 1,
                         .pad = 3,
                         .alpha = 0.5,
                         .beta = -0.75};
            t.a = t.b = t.c = cp_dtypes[i / 4];
            check(&three, &t);
        }
    }
}

static void operands_may_differ_in_dtype(void **state) {
    (void)state;
    for (int way = 0; way < KM_ISA_COUNT; way++) {
        if (!cp_choose(way)) continue;
        for (int i = 0; i < CP_DTYPES * CP_DTYPES * CP_DTYPES; i++) {
            problem t = {.m = i % 2 ? 9 : 1, .n = 40, .k = 33, .tb = true, .alpha = 1};
            t.a = cp_dtypes[i % 3];
            t.b = cp_dtypes[i / 3 % 3];
            t.c = cp_dtypes[i / 9];
            check(&one, &t);
        }
    }
}

static void sums_longer_than_a_block_are_rounded_once(void **state) {
    (void)state;
    for (int way = 0; way < CP_WAYS; way++) {
        if (!cp_choose(way)) continue;
        for (int i = 0; i < 2 * CP_DTYPES; i++) {
            problem t = {.m = 29,
                         .n = 83,
                         .k = 1200,
                         .ta = i & 1,
                         .tb = !(i & 1),
                         .alpha = 1,
                         .beta = 0.5,
                         .bias = true};
            t.a = t.b = t.c = cp_dtypes[i / 2];
            check(&three, &t);
        }
    }
}

static void products_of_bf16_match_over_many_blocks_and_depths(void **state) {
    (void)state;
    for (int way = 0; way < KM_ISA_COUNT; way++) {
        if (!cp_choose(way)) continue;
        static const struct {
            int64_t m, n, k;
        } sizes[] = {{257, 300, 100}, {64, 160, 1056}, {273, 33, 544}, {17, 16, 1024}};
        for (int i = 0; i < 8; i++) {
            problem t = {.m = sizes[i / 2].m,
                         .n = sizes[i / 2].n,
                         .k = sizes[i / 2].k,
                         .ta = i & 1,
                         .tb = i % 3 == 1,
                         .pad = i % 2,
                         .a = KM_BF16,
                         .b = KM_BF16,
                         .c = i % 4 == 3 ? KM_F32 : KM_BF16,
                         .alpha = i == 5 ? 0.5 : 1,
                         .beta = i == 2 ? 1 : 0,
                         .bias = i == 1,
                         .pre = i == 1,
                         .act = i == 1 ? KM_ACT_GELU : KM_ACT_NONE};
            check(i % 2 ? &one : &three, &t);
        }
    }
}

static void products_larger_than_every_cache_block_match(void **state) {
    (void)state;
    if (!km_gemm_choose(km_cpu_isa(), KM_GEMM_BLAS_NEVER)) fail();
    problem wide = {.m = 110, .n = 2200, .k = 20, .alpha = 1, .beta = 1};
    check(&three, &wide);
    wide = (problem){.m = 20, .n = 530, .k = 520, .c = KM_BF16, .alpha = 1, .beta = 1};
    check(&one, &wide);
    problem tall = {.m = 1100, .n = 9, .k = 520, .c = KM_F16, .ta = true, .alpha = 1};
    check(&one, &tall);
}

static void bias_activation_and_the_value_before_it_are_fused(void **state) {
    (void)state;
    for (int way = 0; way < CP_WAYS; way++) {
        if (!cp_choose(way)) continue;
        for (int i = 0; i < 5 * CP_DTYPES; i++) {
            problem t = {.m = 21,
                         .n = 75,
                         .k = 19,
                         .tb = true,
                         .alpha = 1,
                         .bias = i % 2,
                         .pre = i % 3 != 0,
                         .act = (km_act)(i % 5)};
            t.a = t.b = t.c = cp_dtypes[i / 5];
            check(&three, &t);
            t.m = 300; /* more rows than OpenBLAS computes between two finishing passes */
            check(&three, &t);
            t.m = 2; /* few rows */
            check(&three, &t);
            t.m = 75; /* few columns */
            t.n = 1 + i % 4;
            check(&three, &t);
        }
    }
}

static void vectors_against_matrices_match_in_every_layout(void **state) {
    (void)state;
    for (int way = 0; way < CP_WAYS; way++) {
        if (!cp_choose(way)) continue;
        for (int i = 0; i < 4 * CP_DTYPES * 5; i++) {
            int few = 1 + i % 5 * (1 + i % 4);  /* 1 to 17 */
            int64_t many = i % 10 ? 129 : 2100; /* more than are held at a time, now and then */
            problem t = {.m = few,
                         .n = many,
                         .k = 67 + 70 * (i % 2),
                         .ta = i & 1,
                         .tb = i >> 1 & 1,
                         .pad = i % 2,
                         .alpha = 1.5,
                         .beta = i % 3 ? 0 : 2};
            t.a = t.b = t.c = cp_dtypes[i / 20];
            check(i % 4 ? &three : &one, &t);
            t.n = few;
            t.m = many;
            check(&three, &t);
        }
    }
}

/* Tiles come in many heights and widths; a row's sums must not depend on which it fell into. */
static void a_row_has_the_same_bits_in_a_tile_of_any_size(void **state) {
    enum { MOST = 36, K = 19, WIDE = 64 };
    (void)state;
    float *a = cp_new(KM_F32, MOST * K, 1), *b = cp_new(KM_F32, K * WIDE, 2);
    float *c = cp_new(KM_F32, MOST * WIDE, 3), *single = cp_new(KM_F32, MOST * WIDE, 3);
    for (int isa = 0; isa < KM_ISA_COUNT; isa++) {
        const km_gemm_kernels *kern = km_gemm_kernels_of((km_isa)isa);
        if (!kern) continue;
        for (int64_t n = 1; n <= kern->nr; n += n % kern->vl ? kern->vl - 1 : 1) {
            for (int64_t m = 1; m <= MOST; m++) {
                bool by_rows = m % 2;
                int64_t row = by_rows ? K : 1, col = by_rows ? 1 : MOST;
                float beta = m % 3 ? 1 : 0;
                for (int64_t i = 0; i < m * WIDE; i++) single[i] = c[i];
                for (int64_t i = 0; i < m; i++)
                    kern->panel(1, n, K, a + i * row, row, col, b, WIDE, NULL, single + i * WIDE,
                                WIDE, 0.5f, beta);
                kern->panel(m, n, K, a, row, col, b, WIDE, NULL, c, WIDE, 0.5f, beta);
                assert_memory_equal(c, single, sizeof *c * (size_t)(m * WIDE));
            }
        }
    }
    free(a);
    free(b);
    free(c);
    free(single);
}

static void an_empty_sum_leaves_beta_times_c(void **state) {
    (void)state;
    for (int way = 0; way < CP_WAYS; way++) {
        if (!cp_choose(way)) continue;
        for (int i = 0; i < 3; i++) {
            problem t = {
                .m = 1 + 20 * i, .n = 43, .k = 0, .alpha = 1, .beta = 0.25, .bias = i == 1};
            t.a = t.b = t.c = cp_dtypes[i];
            check(&three, &t);
            t.beta = 0;
            check(&three, &t);
        }
    }
}

static void empty_products_touch_nothing(void **state) {
    (void)state;
    float untouched = 7;
    for (int way = 0; way < CP_WAYS; way++) {
        if (!cp_choose(way)) continue;
        km_gemm g = {.m = 0,
                     .n = 5,
                     .k = 3,
                     .a = {NULL, KM_F32, 3, 1},
                     .b = {NULL, KM_F32, 5, 1},
                     .c = &untouched,
                     .ldc = 5,
                     .alpha = 1,
                     .end = {.dtype = KM_F32}};
        assert_int_equal(km_gemm_run(&three, &g), KM_OK);
        g.m = 5;
        g.n = 0;
        assert_int_equal(km_gemm_run(&three, &g), KM_OK);
        g.n = 5;
        g.batch_dims = 1;
        g.batch[0] = 0;
        assert_int_equal(km_gemm_run(&three, &g), KM_OK);
    }
    assert_true(untouched == 7);
}

static void with_beta_zero_the_old_values_do_not_matter(void **state) {
    (void)state;
    float a[6 * 8], b[8 * 7], c[6 * 7];
    for (int way = 0; way < CP_WAYS; way++) {
        if (!cp_choose(way)) continue;
        for (int i = 0; i < 6 * 8; i++) a[i] = 1;
        for (int i = 0; i < 8 * 7; i++) b[i] = 2;
        for (int i = 0; i < 6 * 7; i++) c[i] = NAN;
        km_gemm g = {.m = 6,
                     .n = 7,
                     .k = 8,
                     .a = {a, KM_F32, 8, 1},
                     .b = {b, KM_F32, 7, 1},
                     .c = c,
                     .ldc = 7,
                     .alpha = 1,
                     .end = {.dtype = KM_F32}};
        assert_int_equal(km_gemm_run(&one, &g), KM_OK);
        for (int i = 0; i < 6 * 7; i++) assert_true(c[i] == 16);
    }
}

static void the_same_threads_give_the_same_bits(void **state) {
    (void)state;
    enum { N = 150 };
    float *a = cp_new(KM_F32, N * N, 1), *b = cp_new(KM_F32, N * N, 2);
    float *c = cp_new(KM_F32, N * N, 3), *d = cp_new(KM_F32, N * N, 3);
    for (int way = 0; way < CP_WAYS; way++) {
        if (!cp_choose(way)) continue;
        km_gemm g = {.m = N,
                     .n = N,
                     .k = N,
                     .a = {a, KM_F32, N, 1},
                     .b = {b, KM_F32, N, 1},
                     .c = c,
                     .ldc = N,
                     .alpha = 1,
                     .end = {.dtype = KM_F32}};
        assert_int_equal(km_gemm_run(&three, &g), KM_OK);
        g.c = d;
        for (int i = 0; i < 5; i++) {
            assert_int_equal(km_gemm_run(&three, &g), KM_OK);
            assert_memory_equal(c, d, sizeof(float) * N * N);
        }
    }
    free(a), free(b), free(c), free(d);
}

/* Rows of b that begin with a line are read as they lie, others packed: of the gradient of weights
 * (a by columns, its sums cut in two) and of a plain product. */
static void where_b_lies_and_how_many_threads_there_are_change_no_bit(void **state) {
    (void)state;
    enum { M = 151, N = 144, K = 650 };
    size_t bytes = sizeof(float) * (K * N + 16);
    float *a = cp_new(KM_F32, M * K, 1), *at = km_alloc_aligned(bytes);
    float *c = cp_new(KM_F32, M * N, 3), *d = cp_new(KM_F32, M * N, 4);
    float sums[2][M];
    assert_non_null(at);
    for (int isa = 0; isa < KM_ISA_COUNT; isa++) {
        if (!km_gemm_choose((km_isa)isa, KM_GEMM_BLAS_NEVER)) continue;
        for (int by_columns = 0; by_columns < 2; by_columns++) {
            for (int way = 0; way < 4; way++) { /* straight or packed, by one thread or three */
                float *b = at + way % 2;
                for (int64_t i = 0; i < K * N; i++) b[i] = (float)cp_number(2, i);
                km_gemm g = {.m = M,
                             .n = N,
                             .k = K,
                             .a = {a, KM_F32, by_columns ? 1 : K, by_columns ? M : 1},
                             .b = {b, KM_F32, N, 1},
                             .c = way ? d : c,
                             .ldc = N,
                             .alpha = 1,
                             .end = {.dtype = KM_F32},
                             .row_sums = by_columns ? sums[way > 0] : NULL};
                assert_int_equal(km_gemm_run(way < 2 ? &one : &three, &g), KM_OK);
                if (way == 0) continue;
                assert_memory_equal(c, d, sizeof *c * M * N);
                if (by_columns) assert_memory_equal(sums[0], sums[1], sizeof sums[0]);
            }
        }
    }
    free(a), free(c), free(d);
    km_free_aligned(at, bytes);
}

static void a_failed_allocation_is_an_error_and_the_next_call_works(void **state) {
    (void)state;
    if (!km_gemm_choose(km_cpu_isa(), KM_GEMM_BLAS_NEVER)) fail();
    km_ctx fresh = {.threads = one.threads};
    km_handle_add(&fresh.handle, KM_HANDLE_CONTEXT);
    float a[64] = {0}, b[64] = {0}, c[64];
    km_gemm g = {.m = 8,
                 .n = 8,
                 .k = 8,
                 .a = {a, KM_F32, 8, 1},
                 .b = {b, KM_F32, 8, 1},
                 .c = c,
                 .ldc = 8,
                 .alpha = 1,
                 .end = {.dtype = KM_F32}};
    km_alloc_fail_nth(0);
    assert_int_equal(km_gemm_run(&fresh, &g), KM_ERR_MEMORY);
    km_alloc_fail_nth(-1);
    assert_int_equal(fresh.error.code, KM_ERR_MEMORY);
    fresh.error.code = KM_OK;
    assert_int_equal(km_gemm_run(&fresh, &g), KM_OK);
    assert_true(c[63] == 0);
    km_free_aligned(fresh.scratch, fresh.scratch_bytes);
    km_handle_remove(&fresh, KM_HANDLE_CONTEXT);
}

static void openblas_says_who_it_is_or_why_it_is_not_there(void **state) {
    (void)state;
    const char *name = km_blas_name();
    if (km_blas_available())
        assert_int_equal(strncmp(name, "OpenBLAS ", 9), 0);
    else
        assert_true(strlen(name) > 0);
    assert_int_equal(km_gemm_choose(km_cpu_isa(), KM_GEMM_BLAS_ALWAYS), km_blas_available());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_odd_sizes_match_sums_in_double),
        cmocka_unit_test(each_layout_and_dtype_gives_the_same_product),
        cmocka_unit_test(operands_may_differ_in_dtype),
        cmocka_unit_test(sums_longer_than_a_block_are_rounded_once),
        cmocka_unit_test(products_of_bf16_match_over_many_blocks_and_depths),
        cmocka_unit_test(products_larger_than_every_cache_block_match),
        cmocka_unit_test(bias_activation_and_the_value_before_it_are_fused),
        cmocka_unit_test(vectors_against_matrices_match_in_every_layout),
        cmocka_unit_test(a_row_has_the_same_bits_in_a_tile_of_any_size),
        cmocka_unit_test(an_empty_sum_leaves_beta_times_c),
        cmocka_unit_test(empty_products_touch_nothing),
        cmocka_unit_test(with_beta_zero_the_old_values_do_not_matter),
        cmocka_unit_test(the_same_threads_give_the_same_bits),
        cmocka_unit_test(where_b_lies_and_how_many_threads_there_are_change_no_bit),
        cmocka_unit_test(a_failed_allocation_is_an_error_and_the_next_call_works),
        cmocka_unit_test(openblas_says_who_it_is_or_why_it_is_not_there),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
