/* The reference backend where fixtures do not reach: integers, calls that write over or add to
 * what is there, empty tensors, rows without anything to see, and indices out of range. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "backend/ref_tensor.h"

static void run(km_op op, const km_params *p, km_tensor *const *in, int n_in, km_tensor *const *out,
                int n_out) {
    assert_int_equal(rt_run(op, p, in, n_in, out, n_out), KM_OK);
    for (int i = 0; i < n_out; i++) assert_true(rt_gaps_intact(out[i]));
}

/* The result of an op with one output, in odd layout. */
static km_tensor *apply(km_op op, km_params p, km_dtype dtype, km_shape shape, km_tensor *const *in,
                        int n_in) {
    km_tensor *out = rt_make(dtype, shape, true);
    run(op, &p, in, n_in, &out, 1);
    return out;
}
#define APPLY(op, p, dtype, shape, ...)                                                            \
    apply(op, p, dtype, shape, (km_tensor *[]){__VA_ARGS__},                                       \
          sizeof((km_tensor *[]){__VA_ARGS__}) / sizeof(km_tensor *))
#define NONE ((km_params){0})

static void has_values(const char *what, const km_tensor *t, int64_t n, const double *want) {
    int64_t i[KM_MAX_DIMS], k = 0;
    KM_REF_EACH(i, t->shape) {
        double got = km_ref_get(t, i);
        if (k < n && !(got == want[k] || (isnan(got) && isnan(want[k]))))
            fail_msg("%s: element %d is %.17g, not %.17g", what, (int)k, got, want[k]);
        k++;
    }
    assert_int_equal(k, n);
}
#define HAS(t, ...)                                                                                \
    has_values(#t, t, sizeof((double[]){__VA_ARGS__}) / sizeof(double),                            \
               (const double[]){__VA_ARGS__})

static void has_ints(const char *what, const km_tensor *t, int64_t n, const int64_t *want) {
    assert_int_equal(t->shape.dim[0], n);
    for (int64_t i = 0; i < n; i++)
        if (km_ref_get_int(t, &i) != want[i])
            fail_msg("%s: element %d is %lld, not %lld", what, (int)i,
                     (long long)km_ref_get_int(t, &i), (long long)want[i]);
}
#define HAS_INTS(t, ...)                                                                           \
    has_ints(#t, t, sizeof((int64_t[]){__VA_ARGS__}) / 8, (const int64_t[]){__VA_ARGS__})

/* ---- Integers ---- */

static km_tensor *binary(km_op op, km_tensor *a, km_tensor *b) {
    return APPLY(op, NONE, a->dtype, a->shape, a, b);
}

static void integer_arithmetic_wraps_around(void **state) {
    km_tensor *a = RT_INTS(KM_I64, INT64_MAX, INT64_MIN, INT64_MAX, 7);
    km_tensor *b = RT_INTS(KM_I64, 1, 1, 2, 5);
    HAS_INTS(binary(KM_OP_ADD, a, b), INT64_MIN, INT64_MIN + 1, INT64_MIN + 1, 12);
    HAS_INTS(binary(KM_OP_SUB, a, b), INT64_MAX - 1, INT64_MAX, INT64_MAX - 2, 2);
    HAS_INTS(binary(KM_OP_MUL, a, b), INT64_MAX, INT64_MIN, -2, 35);
    a = RT_INTS(KM_U8, 250, 3);
    b = RT_INTS(KM_U8, 10, 5);
    HAS_INTS(binary(KM_OP_ADD, a, b), 4, 8);
    HAS_INTS(binary(KM_OP_SUB, b, a), 16, 2);
    a = RT_INTS(KM_I8, 100, -128);
    HAS_INTS(binary(KM_OP_ADD, a, a), -56, 0);
    HAS_INTS(binary(KM_OP_MUL, RT_INTS(KM_I32, INT32_MAX), RT_INTS(KM_I32, 3)), 2147483645);
}

static void integer_division_truncates_and_by_zero_gives_zero(void **state) {
    km_tensor *a = RT_INTS(KM_I64, 7, -7, 7, 5, INT64_MIN, INT64_MAX);
    km_tensor *b = RT_INTS(KM_I64, 2, 2, -2, 0, -1, 1);
    HAS_INTS(binary(KM_OP_DIV, a, b), 3, -3, -3, 0, INT64_MIN, INT64_MAX);
    HAS_INTS(binary(KM_OP_DIV, RT_INTS(KM_I8, -128, 9), RT_INTS(KM_I8, -1, 0)), -128, 0);
}

static void integer_powers_are_exact_and_truncate_fractions(void **state) {
    km_tensor *a = RT_INTS(KM_I64, 3, -2, 2, 1, -1, -1, 0, 0, 2);
    km_tensor *b = RT_INTS(KM_I64, 39, 63, -1, -5, -3, -4, 0, -1, 64);
    HAS_INTS(binary(KM_OP_POW, a, b), 4052555153018976267, INT64_MIN, 0, 1, -1, 1, 1, 0, 0);
}

/* Neighbours beyond 2^53 are one double. */
static void large_integers_compare_exactly(void **state) {
    int64_t big = (INT64_C(1) << 53) + 1;
    km_tensor *a = RT_INTS(KM_I64, big, big, -big), *b = RT_INTS(KM_I64, big - 1, big, -big + 1);
    const struct {
        km_op op;
        double want[3];
    } rows[] = {
        {KM_OP_EQ, {0, 1, 0}}, {KM_OP_NE, {1, 0, 1}}, {KM_OP_LT, {0, 0, 1}},
        {KM_OP_LE, {0, 1, 1}}, {KM_OP_GT, {1, 0, 0}}, {KM_OP_GE, {1, 1, 0}},
    };
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        has_values("comparison", APPLY(rows[r].op, NONE, KM_BOOL, KM_SHAPE(3), a, b), 3,
                   rows[r].want);
    HAS_INTS(binary(KM_OP_MAXIMUM, a, b), big, big, -big + 1);
    HAS_INTS(binary(KM_OP_MINIMUM, a, b), big - 1, big, -big);
    km_params all = {.axes = 1};
    km_tensor *max = APPLY(KM_OP_MAX, all, KM_I64, KM_SHAPE(1), b);
    HAS_INTS(max, big);
    HAS_INTS(APPLY(KM_OP_ARGMAX, all, KM_I64, KM_SHAPE(1), b), 1);
    HAS_INTS(APPLY(KM_OP_SUM, all, KM_I64, KM_SHAPE(1), a), big);
}

static void integer_unary_ops_stay_exact(void **state) {
    int64_t big = (INT64_C(1) << 53) + 1;
    km_tensor *x = RT_INTS(KM_I64, -big, big, INT64_MIN, 0);
    km_shape s = KM_SHAPE(4);
    HAS_INTS(APPLY(KM_OP_NEG, NONE, KM_I64, s, x), big, -big, INT64_MIN, 0);
    HAS_INTS(APPLY(KM_OP_ABS, NONE, KM_I64, s, x), big, big, INT64_MIN, 0);
    HAS_INTS(APPLY(KM_OP_RELU, NONE, KM_I64, s, x), 0, big, 0, 0);
    km_params p = {.f = {-3, 1e300}};
    HAS_INTS(APPLY(KM_OP_CLAMP, p, KM_I64, s, x), -3, big, -3, 0);
    HAS_INTS(APPLY(KM_OP_ADD_SCALAR, p, KM_I64, s, x), -big - 3, big - 3, INT64_MAX - 2, -3);
    HAS_INTS(APPLY(KM_OP_MUL_SCALAR, p, KM_I64, s, x), 3 * big, -3 * big, INT64_MIN, 0);
    HAS_INTS(APPLY(KM_OP_NEG, NONE, KM_U8, KM_SHAPE(2), RT_INTS(KM_U8, 1, 0)), 255, 0);
}

static void integers_pass_through_choices_and_moves(void **state) {
    int64_t big = (INT64_C(1) << 53) + 1;
    km_tensor *a = RT_INTS(KM_I64, big, 2), *b = RT_INTS(KM_I64, 1, -big);
    km_tensor *yes_no = RT(KM_BOOL, KM_SHAPE(2), 1, 0), *swap = RT_INTS(KM_I32, 1, 0);
    km_params fill = {.f = {-1}};
    HAS_INTS(APPLY(KM_OP_WHERE, NONE, KM_I64, KM_SHAPE(2), yes_no, a, b), big, -big);
    HAS_INTS(APPLY(KM_OP_MASKED_FILL, fill, KM_I64, KM_SHAPE(2), b, yes_no), -1, -big);
    HAS_INTS(APPLY(KM_OP_CONCAT, NONE, KM_I64, KM_SHAPE(4), a, b), big, 2, 1, -big);
    HAS_INTS(APPLY(KM_OP_GATHER, NONE, KM_I64, KM_SHAPE(2), a, swap), 2, big);
    HAS_INTS(APPLY(KM_OP_INDEX_SELECT, NONE, KM_I64, KM_SHAPE(2), a, swap), 2, big);
    HAS_INTS(APPLY(KM_OP_SCATTER_ADD, NONE, KM_I64, KM_SHAPE(2), a, swap, b), 0, 3);
}

/* ---- Writing over and adding to ---- */

static void elementwise_ops_may_write_over_their_first_operand(void **state) {
    km_tensor *a = RT(KM_F32, KM_SHAPE(3), 1, 2, 3), *b = RT(KM_F32, KM_SHAPE(3), 10, 20, 30);
    run(KM_OP_ADD, NULL, (km_tensor *[]){a, b}, 2, &a, 1);
    HAS(a, 11, 22, 33);
    run(KM_OP_MUL_SCALAR, &(km_params){.f = {2}}, &a, 1, &a, 1);
    HAS(a, 22, 44, 66);
}

static void broadcast_operands_have_zero_strides(void **state) {
    km_tensor *row = RT(KM_F64, KM_SHAPE(1, 3), 1, 2, 3), *col = RT(KM_F64, KM_SHAPE(2, 1), 10, 20);
    row->shape = col->shape = KM_SHAPE(2, 3);
    row->stride[0] = col->stride[1] = 0;
    HAS(APPLY(KM_OP_ADD, NONE, KM_F64, KM_SHAPE(2, 3), row, col), 11, 12, 13, 21, 22, 23);
    km_params rows = {.axes = 1};
    HAS(APPLY(KM_OP_SUM, rows, KM_F64, KM_SHAPE(3), row), 2, 4, 6);
}

static void matmul_adds_beta_times_what_is_there(void **state) {
    km_tensor *a = RT(KM_F64, KM_SHAPE(2, 2), 1, 2, 3, 4), *b = RT(KM_F64, KM_SHAPE(2, 1), 5, 6);
    km_tensor *out = RT(KM_F64, KM_SHAPE(2, 1), 100, 200), *ab[] = {a, b};
    run(KM_OP_MATMUL, &(km_params){.f = {2, 0.5}}, ab, 2, &out, 1);
    HAS(out, 2 * 17 + 50, 2 * 39 + 100);
    out = RT(KM_F64, KM_SHAPE(2, 1), NAN, INFINITY); /* beta 0 does not look */
    run(KM_OP_MATMUL, &(km_params){.f = {1, 0}}, ab, 2, &out, 1);
    HAS(out, 17, 39);
}

static void matmul_broadcasts_a_batch_by_stride_zero(void **state) {
    km_tensor *a = RT(KM_F64, KM_SHAPE(2, 1, 2), 1, 2, 3, 4);
    km_tensor *b = RT(KM_F64, KM_SHAPE(1, 2, 1), 5, 6);
    b->shape.dim[0] = 2;
    b->stride[0] = 0;
    km_params p = {.f = {1}};
    HAS(APPLY(KM_OP_MATMUL, p, KM_F64, KM_SHAPE(2, 1, 1), a, b), 17, 39);
}

static void embedding_gradient_accumulates_when_asked(void **state) {
    km_tensor *in[] = {RT(KM_F32, KM_SHAPE(3, 2), 1, 2, 3, 4, 5, 6), RT_INTS(KM_I64, 2, 0, 2)};
    km_tensor *table = RT(KM_F32, KM_SHAPE(3, 2), 10, 10, 20, 20, 30, 30);
    run(KM_OP_EMBEDDING_GRAD, &(km_params){.accumulate = true}, in, 2, &table, 1);
    HAS(table, 13, 14, 20, 20, 36, 38);
    run(KM_OP_EMBEDDING_GRAD, NULL, in, 2, &table, 1);
    HAS(table, 3, 4, 0, 0, 6, 8);
}

/* 2048 is where f16 steps by 2: adding 1 at a time would stay there for ever. */
static void repeated_indices_are_summed_before_rounding(void **state) {
    km_tensor *x = RT(KM_F16, KM_SHAPE(2), 2048, 0), *to = RT_INTS(KM_I32, 0, 0, 0, 0);
    km_tensor *src = RT(KM_F16, KM_SHAPE(4), 1, 1, 1, 1);
    HAS(APPLY(KM_OP_SCATTER_ADD, NONE, KM_F16, KM_SHAPE(2), x, to, src), 2052, 0);
}

static void fused_norms_are_an_add_and_then_a_norm(void **state) {
    km_tensor *x = RT(KM_BF16, KM_SHAPE(1, 4), 1, 2, 3, 256);
    km_tensor *r = RT(KM_BF16, KM_SHAPE(1, 4), 0.0078125, 1, -1, 1.5);
    km_tensor *w = RT(KM_BF16, KM_SHAPE(4), 1, 2, 1, 1);
    km_params p = {.f = {1e-5}};
    km_shape row = x->shape;
    km_tensor *sum = rt_new(KM_BF16, row);
    run(KM_OP_ADD, NULL, (km_tensor *[]){x, r}, 2, &sum, 1);
    const km_op norm[] = {KM_OP_LAYER_NORM, KM_OP_RMS_NORM};
    const km_op fused[] = {KM_OP_ADD_LAYER_NORM, KM_OP_ADD_RMS_NORM};
    for (int k = 0; k < 2; k++) {
        int stats = k == 0 ? 2 : 1;
        km_tensor *a[4], *b[4];
        for (int i = 0; i < 4; i++) {
            a[i] = i < 2 ? rt_new(KM_BF16, row) : rt_new(KM_F32, KM_SHAPE(1));
            b[i] = i < 1 ? rt_new(KM_BF16, row) : rt_new(KM_F32, KM_SHAPE(1));
        }
        run(fused[k], &p, (km_tensor *[]){x, r, w, NULL}, 4 - k, a, 2 + stats);
        run(norm[k], &p, (km_tensor *[]){sum, w, NULL}, 3 - k, b, 1 + stats);
        assert_memory_equal(a[1]->storage->data, sum->storage->data, 8);
        assert_memory_equal(a[0]->storage->data, b[0]->storage->data, 8);
        for (int i = 0; i < stats; i++)
            assert_memory_equal(a[2 + i]->storage->data, b[1 + i]->storage->data, 4);
    }
}

/* ---- Nothing to see ---- */

static void a_query_that_sees_no_key_gives_zero(void **state) {
    km_shape qs = KM_SHAPE(1, 2, 3, 2), ks = KM_SHAPE(1, 1, 2, 2), ls = KM_SHAPE(1, 2, 3);
    km_params p = {.causal = true, .f = {1}}; /* 3 queries, 2 keys: the first is before both */
    double ones[12];
    for (int i = 0; i < 12; i++) ones[i] = 1;
    km_tensor *q = rt_from(KM_F32, qs, ones), *k = rt_from(KM_F32, ks, ones);
    km_tensor *v = RT(KM_F32, ks, 1, 2, 3, 6);
    km_tensor *o[] = {rt_make(KM_F32, qs, true), rt_make(KM_F32, ls, true)};
    run(KM_OP_ATTENTION, &p, (km_tensor *[]){q, k, v}, 3, o, 2);
    HAS(o[0], 0, 0, 1, 2, 2, 4, 0, 0, 1, 2, 2, 4);
    float ln2 = (float)(2 + log(2));
    HAS(o[1], -INFINITY, 2, ln2, -INFINITY, 2, ln2);

    km_tensor *d[] = {rt_make(KM_F32, qs, true), rt_make(KM_F32, ks, true),
                      rt_make(KM_F32, ks, true)};
    run(KM_OP_ATTENTION_GRAD, &p, (km_tensor *[]){q, q, k, v, o[0], o[1]}, 6, d, 3);
    int64_t i[KM_MAX_DIMS];
    KM_REF_EACH(i, qs) {
        if (i[2] == 0)
            assert_true(km_ref_get(d[0], i) == 0);
        else
            assert_true(fabs(km_ref_get(d[0], i)) < 1e-6); /* both keys are the same */
    }
    KM_REF_EACH(i, ks) { /* weights 1 and 1/2 on the first key, 1/2 on the second, in two heads */
        assert_true(fabs(km_ref_get(d[2], i) - (i[2] == 0 ? 3 : 1)) < 1e-6);
    }
}

static void attention_over_no_keys_gives_zero(void **state) {
    km_tensor *q = RT(KM_F64, KM_SHAPE(1, 1, 1, 2), 1, 2);
    km_tensor *none = rt_new(KM_F64, KM_SHAPE(1, 1, 0, 2));
    km_tensor *o[] = {rt_new(KM_F64, q->shape), rt_new(KM_F64, KM_SHAPE(1, 1, 1))};
    km_params p = {.f = {1}};
    run(KM_OP_ATTENTION, &p, (km_tensor *[]){q, none, none}, 3, o, 2);
    HAS(o[0], 0, 0);
    HAS(o[1], -INFINITY);
    km_tensor *d[] = {rt_new(KM_F64, q->shape), none, none};
    run(KM_OP_ATTENTION_GRAD, &p, (km_tensor *[]){q, q, none, none, o[0], o[1]}, 6, d, 3);
    HAS(d[0], 0, 0);
}

static void the_clamp_gradient_counts_its_bounds_in(void **state) {
    km_tensor *dy = RT(KM_F64, KM_SHAPE(5), 1, 2, 3, 4, 5);
    km_tensor *x = RT(KM_F64, KM_SHAPE(5), -1, 1, -1.01, 1.01, NAN);
    km_params p = {.f = {-1, 1}};
    HAS(APPLY(KM_OP_CLAMP_GRAD, p, KM_F64, KM_SHAPE(5), dy, x), 1, 2, 0, 0, 0);
}

static void losses_of_nothing_are_nan_as_a_mean_and_zero_as_a_sum(void **state) {
    km_tensor *x = rt_new(KM_F32, KM_SHAPE(0, 3)), *ids = rt_new(KM_I64, KM_SHAPE(0));
    km_tensor *loss[] = {rt_new(KM_F32, KM_SCALAR), rt_new(KM_F32, KM_SHAPE(0))};
    for (int reduction = KM_MEAN; reduction <= KM_SUM; reduction++) {
        km_params p = {.n = {-100, reduction}};
        double want = reduction == KM_MEAN ? NAN : 0;
        run(KM_OP_CROSS_ENTROPY, &p, (km_tensor *[]){x, ids}, 2, loss, 2);
        HAS(loss[0], want);
        run(KM_OP_MSE, &p, (km_tensor *[]){x, x}, 2, loss, 1);
        HAS(loss[0], want);
        run(KM_OP_BCE, &p, (km_tensor *[]){x, x}, 2, loss, 1);
        HAS(loss[0], want);
    }
}

static void reductions_over_nothing_give_the_neutral_element(void **state) {
    km_tensor *x = rt_new(KM_F32, KM_SHAPE(2, 0)), *n = rt_new(KM_I32, KM_SHAPE(1, 0));
    km_params p = {.axes = 2};
    km_shape s = KM_SHAPE(2);
    HAS(APPLY(KM_OP_SUM, p, KM_F32, s, x), 0, 0);
    HAS(APPLY(KM_OP_SUMSQ, p, KM_F32, s, x), 0, 0);
    HAS(APPLY(KM_OP_MEAN, p, KM_F32, s, x), NAN, NAN);
    HAS(APPLY(KM_OP_VAR, p, KM_F32, s, x), NAN, NAN);
    HAS(APPLY(KM_OP_LOGSUMEXP, p, KM_F32, s, x), -INFINITY, -INFINITY);
    HAS(APPLY(KM_OP_MAX, p, KM_F32, s, x), -INFINITY, -INFINITY);
    HAS(APPLY(KM_OP_MAX, p, KM_I32, KM_SHAPE(1), n), INT32_MIN);
    HAS(APPLY(KM_OP_ARGMAX, p, KM_I64, s, x), 0, 0);
    km_params all = {.axes = 0};
    HAS(APPLY(KM_OP_SUM, all, KM_F32, KM_SCALAR, RT(KM_F32, KM_SCALAR, 5)), 5);
}

/* Empty tensors have no memory behind them here, so any touch would crash. */
static void empty_tensors_are_left_alone(void **state) {
    km_shape s = KM_SHAPE(2, 0, 3);
    km_tensor *e = rt_new(KM_F32, s), *b = rt_new(KM_BOOL, s), *ids = rt_new(KM_I64, s);
    km_tensor *w3 = RT(KM_F32, KM_SHAPE(3), 1, 1, 1), *no_rows = rt_new(KM_F32, KM_SHAPE(0));
    km_tensor *in[] = {e, e}, *out[] = {e, no_rows, no_rows};
    for (int op = KM_OP_FULL; op <= KM_OP_CLAMP_GRAD; op++)
        run((km_op)op, NULL, in, 2, op >= KM_OP_EQ && op <= KM_OP_GE ? &b : &e, 1);
    run(KM_OP_WHERE, NULL, (km_tensor *[]){b, e, e}, 3, &e, 1);
    run(KM_OP_MASKED_FILL, NULL, (km_tensor *[]){e, b}, 2, &e, 1);
    const km_op one[] = {KM_OP_TRIU, KM_OP_TRIL, KM_OP_DROPOUT, KM_OP_CONCAT, KM_OP_ROPE};
    for (size_t k = 0; k < sizeof one / sizeof *one; k++) run(one[k], NULL, in, 1, &e, 1);
    for (int axis = 0; axis < 3; axis++) {
        km_params p = {.axis = axis};
        run(KM_OP_SOFTMAX, &p, in, 1, &e, 1);
        run(KM_OP_LOG_SOFTMAX_GRAD, &p, in, 2, &e, 1);
        run(KM_OP_GATHER, &p, (km_tensor *[]){e, ids}, 2, &e, 1);
        run(KM_OP_SCATTER_ADD, &p, (km_tensor *[]){e, ids, e}, 3, &e, 1);
    }
    run(KM_OP_LAYER_NORM, NULL, (km_tensor *[]){e, w3, w3}, 3, out, 3);
    run(KM_OP_RMS_NORM, NULL, (km_tensor *[]){e, w3}, 2, out, 2);
    run(KM_OP_MATMUL, NULL,
        (km_tensor *[]){rt_new(KM_F32, KM_SHAPE(0, 2)), RT(KM_F32, KM_SHAPE(2, 1), 1, 2)}, 2,
        (km_tensor *[]){rt_new(KM_F32, KM_SHAPE(0, 1))}, 1);
    run(KM_OP_EMBEDDING, NULL, (km_tensor *[]){w3, ids}, 2,
        (km_tensor *[]){rt_new(KM_F32, KM_SHAPE(2, 0, 3, 4))}, 1);

    /* No rows: the weights' gradients are still written. */
    km_tensor *d[] = {e, rt_new(KM_F32, KM_SHAPE(3)), rt_new(KM_F32, KM_SHAPE(3))};
    run(KM_OP_LAYER_NORM_GRAD, NULL, (km_tensor *[]){e, e, w3, no_rows, no_rows}, 5, d, 3);
    HAS(d[1], 0, 0, 0);
    HAS(d[2], 0, 0, 0);
}

/* ---- Indices out of range: read as 0, written nowhere ---- */

static void bad_indices_stay_in_memory(void **state) {
    km_tensor *x = RT(KM_F32, KM_SHAPE(2), 5, 6);
    km_tensor *bad = RT_INTS(KM_I64, -1, 1, 2, INT64_MAX, INT64_MIN);
    km_tensor *five = RT(KM_F32, KM_SHAPE(5), 1, 1, 1, 1, 1);
    HAS(APPLY(KM_OP_GATHER, NONE, KM_F32, KM_SHAPE(5), x, bad), 0, 6, 0, 0, 0);
    HAS(APPLY(KM_OP_INDEX_SELECT, NONE, KM_F32, KM_SHAPE(5), x, bad), 0, 6, 0, 0, 0);
    HAS(APPLY(KM_OP_SCATTER_ADD, NONE, KM_F32, KM_SHAPE(2), x, bad, five), 5, 7);
    km_tensor *table = RT(KM_F32, KM_SHAPE(2, 1), 5, 6), *dy = rt_copy(five, KM_F32, false);
    dy->shape = KM_SHAPE(5, 1);
    dy->stride[1] = 1;
    HAS(APPLY(KM_OP_EMBEDDING, NONE, KM_F32, KM_SHAPE(5, 1), table, bad), 0, 6, 0, 0, 0);
    HAS(APPLY(KM_OP_EMBEDDING_GRAD, NONE, KM_F32, KM_SHAPE(2, 1), dy, bad), 0, 1);

    km_tensor *logits = RT(KM_F64, KM_SHAPE(5, 2), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    km_params p = {.n = {-100, KM_MEAN}};
    km_tensor *out[] = {rt_new(KM_F64, KM_SCALAR), rt_new(KM_F64, KM_SHAPE(5)),
                        rt_new(KM_F64, KM_SHAPE(5, 2))};
    run(KM_OP_CROSS_ENTROPY, &p, (km_tensor *[]){logits, bad}, 2, out, 3);
    HAS(out[0], log(2));
    HAS(out[2], 0, 0, 0.5, -0.5, 0, 0, 0, 0, 0, 0);
}

/* ---- Memory ---- */

static void running_out_of_scratch_is_reported(void **state) {
    km_tensor *in[] = {RT(KM_F32, KM_SHAPE(1, 1), 1), RT_INTS(KM_I64, 0)};
    km_tensor *table = RT(KM_F32, KM_SHAPE(1, 1), 3);
    km_alloc_fail_nth(0);
    assert_int_equal(rt_run(KM_OP_EMBEDDING_GRAD, NULL, in, 2, &table, 1), KM_ERR_MEMORY);
    km_alloc_fail_nth(-1);
    assert_int_equal(rt_ctx.error.code, KM_ERR_MEMORY);
    HAS(table, 3);
}

int main(void) {
#define TEST(name) cmocka_unit_test_teardown(name, rt_teardown)
    const struct CMUnitTest tests[] = {
        TEST(integer_arithmetic_wraps_around),
        TEST(integer_division_truncates_and_by_zero_gives_zero),
        TEST(integer_powers_are_exact_and_truncate_fractions),
        TEST(large_integers_compare_exactly),
        TEST(integer_unary_ops_stay_exact),
        TEST(integers_pass_through_choices_and_moves),
        TEST(elementwise_ops_may_write_over_their_first_operand),
        TEST(broadcast_operands_have_zero_strides),
        TEST(matmul_adds_beta_times_what_is_there),
        TEST(matmul_broadcasts_a_batch_by_stride_zero),
        TEST(embedding_gradient_accumulates_when_asked),
        TEST(repeated_indices_are_summed_before_rounding),
        TEST(fused_norms_are_an_add_and_then_a_norm),
        TEST(a_query_that_sees_no_key_gives_zero),
        TEST(attention_over_no_keys_gives_zero),
        TEST(the_clamp_gradient_counts_its_bounds_in),
        TEST(losses_of_nothing_are_nan_as_a_mean_and_zero_as_a_sum),
        TEST(reductions_over_nothing_give_the_neutral_element),
        TEST(empty_tensors_are_left_alone),
        TEST(bad_indices_stay_in_memory),
        TEST(running_out_of_scratch_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
